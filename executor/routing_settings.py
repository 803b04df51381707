"""The settings that say how jobs are routed: `routing`, the operator's `[routing_policies.NAME]`, and `roles`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from registry.errors import ConfigError, UsageError
from registry.models import ModelRegistry
from registry.redaction import redact_fields
from registry.routing import RoutingPolicy
from registry.routing_config import BASE, anchored, foreign, policy_names, policy_of

if TYPE_CHECKING:
    from .settings_model import Settings

RIGHT_ROLES = "models by their roles, such as smart=large,fast=small, or a table of them"


def routing_of(settings: Settings) -> RoutingPolicy:
    """The policy that the settings say. Raises ConfigError."""
    try:
        return policy_of(_meant(settings.routing, settings.routing_policies))
    except UsageError as error:
        origin = settings.origins.get("routing", "routing")
        raise ConfigError(f"{origin}: {error}") from error


def check_policies(settings: Settings) -> None:
    """Makes every policy that the operator has named, to see. Raises ConfigError."""
    routing_of(settings)
    for name, value in settings.routing_policies.items():
        try:
            policy_of(value)
        except UsageError as error:
            origin = settings.origins.get("routing_policies", "routing_policies")
            raise ConfigError(f"{origin}: [routing_policies.{name}]: {error}") from error


def routed_models(settings: Settings, models: ModelRegistry) -> ModelRegistry:
    """The models with the roles that the settings give them, once the policy can route among them. Raises ConfigError,
    and UsageError for models that are not there."""
    models = models.with_roles(settings.roles) if settings.roles else models
    routing_of(settings).check(models)
    return models


def asked_by_stranger(value: Any, policies: Mapping[str, Any]) -> str | None:
    """Why somebody who is not the operator may not have this policy; None: they may. Raises UsageError where it is
    none."""
    if is_declared(value, policies):
        _meant(value, policies)
        return None
    why = foreign(value)
    if why is None:
        return None
    named = (
        f"has named ({', '.join(policies)})"
        if policies
        else "has named under [routing_policies], of which there are none"
    )
    return f"{why}: here only policies may be named that need neither files nor code, or that the operator {named}"


def anchored_setting(value: Any, policies: Mapping[str, Any], folder: str | os.PathLike[str]) -> Any:
    """The setting as plain data whose files and modules begin at `folder`. Raises UsageError."""
    return value if is_declared(value, policies) else anchored(value, folder)


def is_declared(value: Any, policies: Mapping[str, Any]) -> bool:
    """Whether a policy as data is the name of one of the operator's."""
    return _name(value) in policies


def read_policies(path: str | os.PathLike[str], tables: Any) -> dict[str, Any]:
    """The policies that a file names, as plain data. Raises ConfigError."""
    if not isinstance(tables, dict):
        raise ConfigError(f"{path}: routing_policies: must be tables, each begun with [routing_policies.NAME]")
    found = {}
    for name, table in tables.items():
        if not name.isidentifier() or name in policy_names():
            raise ConfigError(
                f"{path}: [routing_policies.{name}]: a policy's name is letters, digits and _, and none of "
                f"{', '.join(policy_names())}"
            )
        try:
            found[name] = anchored(table, os.path.dirname(os.path.abspath(path)))
        except UsageError as error:
            raise ConfigError(f"{path}: [routing_policies.{name}]: {error}") from None
    return found


def read_roles(value: Any) -> dict[str, str]:
    """Roles with their models from a text or a table. Raises ValueError."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
        pairs = [(role.strip(), model.strip()) for role, _, model in (part.partition("=") for part in parts)]
        if len({role for role, _ in pairs}) < len(pairs):
            raise ValueError(f"a role is there twice: must be {RIGHT_ROLES}")
        value = dict(pairs)
    if not isinstance(value, Mapping):
        raise ValueError(f"must be {RIGHT_ROLES}")
    for role, model in value.items():
        if not (isinstance(role, str) and isinstance(model, str) and role and model):
            raise ValueError(f"must be {RIGHT_ROLES}")
    return dict(value)


def shown_routing(value: Any) -> str:
    """A policy as data as `config check` shows it: no secret, no folder."""
    if isinstance(value, str):
        return value
    table = {key: item for key, item in value.items() if key not in ("use", BASE)}
    return str(value["use"]) + (f" {json.dumps(redact_fields(table), ensure_ascii=False)}" if table else "")


def _name(value: Any) -> str | None:
    """The name that a policy as data has, where it may be one of the operator's."""
    found = value.get("use") if isinstance(value, Mapping) else value
    return found.strip() if isinstance(found, str) else None


def _meant(value: Any, policies: Mapping[str, Any]) -> Any:
    """What the operator means by a name, else the value itself. Raises UsageError."""
    name = _name(value)
    if name is None or name not in policies:
        return value
    if isinstance(value, Mapping) and len(value) > 1:
        raise UsageError(f"routing: the policy {name!r} is declared by the operator: it takes no keys beside use")
    return policies[name]
