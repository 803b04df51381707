"""The settings' names, types, defaults and bounds. Imports pydantic-settings: use `executor.settings` to load them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, SecretStr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from registry.budget import RIGHT, Budget
from registry.errors import ConfigError, UsageError
from registry.mcp.config import McpServer
from registry.routing_config import RIGHT as RIGHT_ROUTING
from registry.toolbox.web_search import RIGHT_SETTING, checked_setting

from .hooks_config import HookEntry
from .routing_settings import RIGHT_ROLES, read_roles


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _host_and_port(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ValueError("must be host:port")
    return value.lower()


def _no_truth(value: Any) -> Any:
    if isinstance(value, bool):  # True would count as 1
        raise ValueError("must be a number")
    return value


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def _hook_entry(value: Any) -> HookEntry:
    if not isinstance(value, HookEntry):
        raise ValueError("must be a [[hooks]] table")
    return value


def _mcp_server(value: Any) -> McpServer:
    if not isinstance(value, McpServer):
        raise ValueError("must be an [mcp.NAME] table")
    return value


def _search(value: str) -> str:
    try:
        return checked_setting(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _budget(value: Any) -> Any:
    try:
        return str(Budget.of(value))
    except UsageError as error:
        raise ValueError(str(error)) from None


def _routing(value: Any) -> Any:
    if not isinstance(value, str | dict) or not value:
        raise ValueError("must be a text or a table")
    return value


BudgetText = Annotated[str, BeforeValidator(_budget), Field(json_schema_extra={"right": RIGHT})]
HostAndPort = Annotated[str, AfterValidator(_host_and_port), Field(json_schema_extra={"right": "host:port"})]
DeclaredHook = Annotated[
    Any, AfterValidator(_hook_entry), Field(json_schema_extra={"right": "[[hooks]] tables in dagwright.toml"})
]
DeclaredServer = Annotated[
    Any, AfterValidator(_mcp_server), Field(json_schema_extra={"right": "[mcp.NAME] tables in dagwright.toml"})
]
SearchText = Annotated[str, AfterValidator(_search), Field(json_schema_extra={"right": RIGHT_SETTING})]
Routing = Annotated[Any, BeforeValidator(_routing), Field(json_schema_extra={"right": RIGHT_ROUTING})]
Roles = Annotated[Mapping[str, str], BeforeValidator(read_roles), Field(json_schema_extra={"right": RIGHT_ROLES})]
Count = Annotated[int, Field(ge=1), BeforeValidator(_no_truth)]
Whole = Annotated[int, Field(ge=0), BeforeValidator(_no_truth)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Settings(BaseSettings):
    """How a job is run; frozen. Built at the edge by `executor.settings.load_settings` and passed down.

    It reads nothing by itself: no environment, no files. `origins` says for each name where its value comes from.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid", validate_default=False, env_prefix="DAGWRIGHT_")

    max_concurrency: Count = 5
    """Steps at once."""
    step_timeout: Seconds = 600.0
    """Seconds a step may run, waits for a human not counted."""
    step_retries: Whole = 0
    """New tries of a failed step."""
    max_iterations: Count = 50
    """Turns of an agent's loop."""
    cycle_detection_threshold: Annotated[int, Field(ge=2), BeforeValidator(_no_truth)] = 3
    """The same call so often in a row is a loop."""
    completion_check_min_tools: Whole = 3
    """Tool calls from which on an answer is checked for completeness."""
    self_reflection_interval: Whole = 6
    """Turns between reflections; 0: none."""
    max_replan_rounds: Count = 3
    """Rounds of planning and running, the first included."""
    replan_stop_confidence: Share = 0.8
    """Confidence that a goal is achieved from which on no new plan is made."""
    structured_context_multiplier: Count = 3
    """How much more room dependencies' results get where they hold tables, code or citations."""
    step_verification: bool = False
    """A model takes a second look at each step's result; one that fails is worked over once."""
    citation_verification: bool = False
    """Citations in each step's result are checked; in legal, medical and financial questions they always are."""
    max_steps: Count = 64
    """Steps of a plan."""
    answer_mode: Literal["synthesis", "direct"] = "synthesis"
    """How a job's answer is made: written up from the results, or the loop's own last turn."""
    router: bool = True
    """Mode auto asks a model whether a goal needs a plan."""
    budget: BudgetText | None = None
    """What a job may cost at most, such as 0.50usd, 20k tokens, 10m; several joined by commas."""
    routing: Routing = "hint"
    """Which model does a step: hint (the plan's word), fixed:MODEL, table, cascade, budget, learned:FILE, a table with
    the policy's keys, package.module:Class of one's own, or a name of routing_policies."""
    roles: Roles = Field(default_factory=dict)
    """Models by the roles that they have before all others, such as smart=large,fast=small."""
    routing_policies: Annotated[Mapping[str, Any], Field(json_schema_extra={"right": "tables"})] = Field(
        default_factory=dict
    )
    """Policies that jobs may name, also over the API: `[routing_policies.NAME]` tables of the file."""
    llm_tries: Count = 6
    """Tries of one model call."""
    llm_wait_cap: Seconds = 60.0
    """Seconds between two tries at most."""
    llm_total_wait: Seconds = 300.0
    """Seconds for all tries and waits of one call."""
    llm_context_size: Count | None = None
    """Tokens of context of models that the environment names."""
    llm_max_output_tokens: Count | None = None
    """Tokens a reply may have of models that the environment names."""
    workspace: Path | None = None
    """The folder the file tools may use; none: no file tools."""
    fetch_allow: Annotated[tuple[HostAndPort, ...], BeforeValidator(_split)] = ()
    """Private addresses (host:port) that may be fetched."""
    search: SearchText | None = None
    """What web_search searches with: searxng:URL, tavily, duckduckgo, none; not set: tavily where its key is."""
    mcp: tuple[DeclaredServer, ...] = ()
    """Servers whose tools are taken: `[mcp.NAME]` tables of the file, read by `registry.mcp`."""
    data_dir: Path | None = None
    """Where jobs, keys and downloaded files are kept."""
    database_url: SecretStr | None = None
    """The PostgreSQL database of the service; `serve` starts an embedded one where it is not set."""
    host: str = "127.0.0.1"
    """The address the service listens on; any but the machine's own only once there are API keys."""
    port: Annotated[int, Field(ge=0, le=65535), BeforeValidator(_no_truth)] = 8080
    """The service's port; 0: any that is free."""
    workers: Count | None = None
    """Worker processes of this machine; not set: one for two cores."""
    jobs_per_worker: Annotated[int, Field(ge=2), BeforeValidator(_no_truth)] = 64
    """Jobs a worker process runs at once: they wait for models most of the time."""
    heartbeat_timeout: Seconds = 30.0
    """Seconds without a sign of life of a worker after which its jobs are given to others."""
    drain_seconds: Seconds = 7.0
    """Seconds that running jobs have when a worker is told to end; then they are handed over."""
    max_request_bytes: Count = 8 << 20
    """Bytes of a request's body to the service."""
    max_batch_bytes: Count = 256 << 20
    """Bytes of a batch's JSON lines."""
    max_goal_chars: Count = 200_000
    """Characters of a goal that the service takes."""
    max_batch_items: Count = 50_000
    """Lines of a batch."""
    batch_hours: Annotated[float, Field(gt=0, le=8_760, allow_inf_nan=False)] = 24.0
    """Hours after which what is left of a batch expires."""
    webhook_secret_env: str | None = None
    """The environment variable that holds the secret of webhooks' signatures; without it webhooks are refused."""
    hooks: tuple[DeclaredHook, ...] = ()
    """What runs around every tool call: `[[hooks]]` tables of the file, read by `executor.hooks_config`."""
    log_level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_upper)] = "INFO"
    """What is logged."""
    telemetry: bool | None = None
    """Spans are sent by OTLP; not set: where OTEL_EXPORTER_OTLP_ENDPOINT is. Needs the extra `otel`."""
    telemetry_content: bool = False
    """Spans hold messages, tool arguments and results, too."""

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Any], origins: Mapping[str, str]) -> Settings:
        """Settings with these values; raises pydantic's ValidationError."""
        settings = cls(**values)
        settings._origins.update(origins)
        return settings

    @property
    def origins(self) -> Mapping[str, str]:
        """Where each value comes from, by name; a missing name has its default."""
        return dict(self._origins)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what it is given: `load_settings` reads the sources, so that each value's origin is known."""
        return (init_settings,)
