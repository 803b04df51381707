"""Loads the settings: environment over `.env` over `dagwright.toml`. Each value's origin is kept."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from registry.errors import ConfigError, UsageError
from registry.mcp.config import servers_from_toml
from registry.redaction import know_environment, know_url, redact
from registry.toml_file import FOLDER, find_file, nearest, read_toml, shown

from .hooks_config import read_hooks
from .routing_settings import anchored_setting, read_policies, shown_routing

if TYPE_CHECKING:
    from pydantic import ValidationError

    from .settings_model import Settings

PREFIX = "DAGWRIGHT_"
FILE = "dagwright.toml"
FILE_VARIABLE = "DAGWRIGHT_SETTINGS"
ALIASES: Mapping[str, str] = {
    "max_concurrency": "MAX_CONCURRENCY",
    "cycle_detection_threshold": "REACT_CYCLE_DETECTION_THRESHOLD",
    "completion_check_min_tools": "REACT_COMPLETION_CHECK_MIN_TOOLS",
    "max_replan_rounds": "DAG_MAX_REPLAN_ROUNDS",
    "replan_stop_confidence": "DAG_REPLAN_STOP_CONFIDENCE",
    "structured_context_multiplier": "DAG_STRUCTURED_CONTEXT_MULTIPLIER",
    "citation_verification": "DAG_CITATION_VERIFICATION",
    "llm_context_size": "LLM_CONTEXT_SIZE",
    "llm_max_output_tokens": "LLM_MAX_OUTPUT_TOKENS",
    "database_url": "DATABASE_URL",
}
"""Names that work beside our own, which go first."""
OF_A_JOB = (
    "max_concurrency",
    "step_timeout",
    "step_retries",
    "max_iterations",
    "cycle_detection_threshold",
    "completion_check_min_tools",
    "self_reflection_interval",
    "max_replan_rounds",
    "replan_stop_confidence",
    "structured_context_multiplier",
    "step_verification",
    "citation_verification",
    "max_steps",
    "router",
    "answer_mode",
    "budget",
    "routing",
    "roles",
)
"""What whoever asks for a job may set for it. The others belong to the machine it runs on."""
OTHER_VARIABLES = (
    "DAGWRIGHT_API_KEY",
    "DAGWRIGHT_MODELS",
    "DAGWRIGHT_MODEL",
    "DAGWRIGHT_SMART_MODEL",
    "DAGWRIGHT_FAST_MODEL",
    "DAGWRIGHT_REASONING_MODEL",
    FILE_VARIABLE,
)
"""Our variables that are no settings."""
SECRET_VARIABLES = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "TAVILY_API_KEY")
MASK = "********"


class Described(NamedTuple):
    """A setting as `config check` shows it; secrets are masked."""

    name: str
    value: str
    origin: str


class _Value(NamedTuple):
    value: Any
    origin: str  # as in "MAX_CONCURRENCY in .env"
    written: str  # as in "MAX_CONCURRENCY in .env = '5'"


def load_settings(
    env: Mapping[str, str] | None = None,
    toml: str | os.PathLike[str] | None = None,
    *,
    cwd: str | os.PathLike[str] | None = None,
    given: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings of the first source that has each: `given` (the command's options), the environment, `.env` in
    `cwd`, the TOML file (`toml`, `DAGWRIGHT_SETTINGS`, `dagwright.toml` in `cwd` or the user's folder), the default.

    Raises ConfigError, which names for each wrong value the variable or the file's key, the value and what is right.
    """
    from .settings_model import Settings

    env = os.environ if env is None else env
    here = Path.cwd() if cwd is None else Path(cwd)
    file = find_file(FILE, toml, FILE_VARIABLE, env=read_environment(env, here), cwd=here)
    values: dict[str, _Value] = {}
    for source, folder in (
        (_from_file(file, Settings), here if file is None else file.parent),
        (_from_variables(_dotenv(here), Settings, " in .env"), here),
        (_from_variables(env, Settings, ""), here),
        ({name: _Value(value, "the command", _as_option(name, value)) for name, value in (given or {}).items()}, here),
    ):
        values |= source
        if "routing" in source:
            values["routing"] = _anchored_routing(values, folder)
    if "data_dir" not in values:
        folder = data_folder(env)
        values["data_dir"] = _Value(folder, "default", str(folder))
    know_environment(read_environment(env, here))
    settings = _checked(values, Settings)
    if settings.database_url is not None:
        know_url(settings.database_url.get_secret_value())
    return settings


def _anchored_routing(values: Mapping[str, _Value], folder: Path) -> _Value:
    """The routing policy, its files looked for where it was written."""
    found, policies = values["routing"], values.get("routing_policies")
    try:
        return found._replace(value=anchored_setting(found.value, {} if policies is None else policies.value, folder))
    except UsageError as error:
        raise ConfigError(f"{found.origin}: {error}") from None


def _as_option(name: str, value: Any) -> str:
    """A value as it was given to the command."""
    option = {"fetch_allow": "allow", "roles": "role"}.get(name, name.replace("_", "-"))
    return f"--{option} {', '.join(value) if isinstance(value, tuple) else value}"


def settings_of_job(settings: Settings, options: Mapping[str, Any]) -> Settings:
    """The settings with a job's own on top. Raises ConfigError, which names each option that is wrong, and for one
    that is not the job's to choose."""
    for name in options:
        if name not in OF_A_JOB:
            raise ConfigError(f"options.{name}: {nearest(name, OF_A_JOB)}")
    if not options:
        return settings
    values = {
        name: _Value(getattr(settings, name), settings.origins.get(name, "given"), "")
        for name in type(settings).model_fields
        if name in settings.model_fields_set
    }
    values |= {name: _Value(value, "the job", f"options.{name} = {shown(value)}") for name, value in options.items()}
    return _checked(values, type(settings))


def of_a_job(settings: Settings) -> dict[str, Any]:
    """What was set of a job's own, as JSON data: it holds wherever the job goes on."""
    return {name: getattr(settings, name) for name in OF_A_JOB if name in settings.model_fields_set}


def read_environment(env: Mapping[str, str] | None = None, cwd: str | os.PathLike[str] | None = None) -> dict[str, str]:
    """The environment with what `.env` in `cwd` adds to it: for models and keys, too."""
    env = os.environ if env is None else env
    return {**_dotenv(Path.cwd() if cwd is None else Path(cwd)), **env}


def describe(settings: Settings, env: Mapping[str, str] | None = None) -> list[Described]:
    """Each setting, its value and where it came from; then the keys that `env` holds. No secret is shown."""
    rows = [
        Described(name, _shown(name, getattr(settings, name)), settings.origins.get(name, "default"))
        for name in type(settings).model_fields
    ]
    rows += [Described(name, MASK, "environment") for name in SECRET_VARIABLES if env and env.get(name)]
    return rows


def unknown_variables(env: Mapping[str, str]) -> tuple[str, ...]:
    """A warning for each variable with our prefix that nothing reads: a misspelt name is silent otherwise."""
    from .settings_model import Settings

    known = [*OTHER_VARIABLES, *(PREFIX + name.upper() for name in Settings.model_fields)]
    names = sorted(name for name in env if name.startswith(PREFIX) and name not in known)
    return tuple(f"{name} is set, but nothing reads it: {nearest(name, known)}" for name in names)


def data_folder(env: Mapping[str, str], platform: str = sys.platform) -> Path:
    """The user's folder for our data, by the rules of the platform; it need not exist."""
    home = Path(env.get("HOME") or Path.home())
    if platform == "win32":
        return Path(env.get("LOCALAPPDATA") or home / "AppData" / "Local") / FOLDER
    if platform == "darwin":
        return home / "Library" / "Application Support" / FOLDER
    base = Path(env.get("XDG_DATA_HOME") or home / ".local" / "share")
    return (base if base.is_absolute() else home / ".local" / "share") / FOLDER


def _from_variables(env: Mapping[str, str], model: type[Settings], where: str) -> dict[str, _Value]:
    """The settings that variables hold; an empty variable counts as not set."""
    found = {}
    for name in model.model_fields:
        for variable in filter(None, (PREFIX + name.upper(), ALIASES.get(name))):
            if text := env.get(variable, "").strip():
                found[name] = _Value(text, f"{variable}{where}", f"{variable}{where} = {text!r}")
                break
    return found


def _from_file(path: Path | None, model: type[Settings]) -> dict[str, _Value]:
    if path is None:
        return {}
    table = read_toml(path)
    for key in table:
        if key not in model.model_fields:
            raise ConfigError(f"{path}: unknown key {key!r}: {nearest(key, model.model_fields)}")
    if "hooks" in table:
        table["hooks"] = read_hooks(path, table["hooks"])
    if "routing_policies" in table:
        table["routing_policies"] = read_policies(path, table["routing_policies"])
    if "mcp" in table:
        table["mcp"] = servers_from_toml(path, table["mcp"])
    return {key: _Value(value, str(path), f"{path}: {key} = {shown(value)}") for key, value in table.items()}


def _dotenv(folder: Path) -> dict[str, str]:
    path = folder / ".env"
    if not path.is_file():
        return {}
    from pydantic_settings import BaseSettings, DotEnvSettingsSource

    try:
        source = DotEnvSettingsSource(BaseSettings, env_file=path, env_file_encoding="utf-8", case_sensitive=True)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return {name: value for name, value in source.env_vars.items() if value is not None}


def _checked(values: Mapping[str, _Value], model: type[Settings]) -> Settings:
    from pydantic import ValidationError

    unknown = [name for name in values if name not in model.model_fields]
    if unknown:
        raise ConfigError(f"no setting {unknown[0]!r}: {nearest(unknown[0], model.model_fields)}")
    try:
        return model.of(
            {name: value.value for name, value in values.items()},
            {name: value.origin for name, value in values.items()},
        )
    except ValidationError as error:
        raise ConfigError("\n".join(_problems(error, values, model))) from None  # the cause would show secrets


def _problems(error: ValidationError, values: Mapping[str, _Value], model: type[Settings]) -> Iterator[str]:
    schema = model.model_json_schema()["properties"]
    for name in dict.fromkeys(str(problem["loc"][0]) for problem in error.errors(include_input=False)):
        secret = schema[name].get("anyOf", [schema[name]])[0].get("format") == "password"
        written = f"{values[name].origin} = {MASK}" if secret else redact(values[name].written)
        yield f"{written}: must be {_right(schema[name])}"


def _right(schema: Mapping[str, Any]) -> str:
    """What a value must be, in words, from its JSON Schema."""
    if "anyOf" in schema:
        return _right(next(part for part in schema["anyOf"] if part.get("type") != "null"))
    if "right" in schema:
        return str(schema["right"])
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    if schema.get("type") == "array":
        return f"a list of {schema['items'].get('right', 'texts')}"
    kinds = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}
    bounds = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most"}
    limits = [f"{words} {schema[key]:g}" for key, words in bounds.items() if key in schema]
    return ", ".join([kinds.get(str(schema.get("type")), "a text"), " and ".join(limits)]).removesuffix(", ")


def _shown(name: str, value: Any) -> str:
    if name == "routing":
        return shown_routing(value)
    if name == "routing_policies" and value:
        return "; ".join(f"{policy}: {shown_routing(table)}" for policy, table in value.items())
    return _masked(value)


def _masked(value: Any) -> str:
    from pydantic import SecretStr

    if isinstance(value, SecretStr):
        return MASK
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "none"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
