"""Which model does what: named models, their roles, and what a plan's hint comes to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from .errors import NoModelError, UnknownModelError, UsageError
from .llm import LLM, Scope

if TYPE_CHECKING:
    from .providers import Demo, ModelEntry

GENERAL = "general"
ROLES: Mapping[str, str] = {
    "general": "ordinary work; the same as no hint",
    "fast": "simple deterministic work",
    "reasoning": "deep analysis",
    "smart": "planning, judging and writing up",
    "compact": "shortening long conversations",
    "check": "a second look at results",
}
"""The roles with a meaning of their own, and what each is for. Any other name is a role of the user's."""
STAND_INS: Mapping[str, tuple[str, ...]] = {
    "general": (),
    "fast": ("general",),
    "reasoning": ("smart", "general"),
    "smart": ("general",),
    "compact": ("fast", "general"),
}
"""Which roles stand in, in this order, where nobody has the role."""
OFFERED = ("fast", "reasoning")
"""Hints a planner is always told of: where no model has the role, another one stands in."""


class ModelRegistry:
    """Named models with roles. The first one registered for a role has it; the first `general` one is the default.

    `origin` says for each name, in words, where the model comes from (a file, a variable, a local server).
    """

    def __init__(self) -> None:
        self._models: dict[str, LLM] = {}
        self._roles: dict[str, list[str]] = {}
        self._fallbacks: dict[str, tuple[str, ...]] = {}
        self.origin: dict[str, str] = {}

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], *, env: Mapping[str, str] | None = None) -> ModelRegistry:
        """The models of a `models.toml`. `env` (default: the process's) holds the keys the file names.

        Raises ConfigError, which names file, table and key of a mistake and what would be right.
        """
        from .models_toml import read_models

        return cls._of(read_models(path, env=os.environ if env is None else env))

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None, *, demo: Demo | None = None) -> ModelRegistry:
        """The models the environment offers, looked for in a fixed order: OpenAI or a compatible server, Anthropic,
        a local server on loopback, the installed demonstration model (`demo()` gives it, or None).

        Does I/O: it may ask the named or a local server which models it has. Raises NoModelError, whose text says
        what to set, and ConfigError where variables contradict each other.
        """
        from .environment import models_from_env

        return cls._of(models_from_env(os.environ if env is None else env, demo=demo))

    @classmethod
    def _of(cls, entries: Iterable[ModelEntry]) -> ModelRegistry:
        registry = cls()
        for entry in entries:
            registry.register(entry.name, entry.llm, entry.roles, entry.fallbacks, origin=entry.origin)
        return registry

    def register(
        self,
        name: str,
        llm: LLM,
        roles: Iterable[str] = (),
        fallbacks: Iterable[str] = (),
        *,
        origin: str = "",
    ) -> None:
        """Adds a model. `fallbacks` name the models that take over, in order, while this one's provider is out; they
        may be registered later. A model without a name of its own takes this one. Raises UsageError."""
        roles, fallbacks = _names(roles), _names(fallbacks)
        if not name or not isinstance(name, str):
            raise UsageError(f"a model needs a name, not {name!r}")
        if not isinstance(llm, LLM):
            raise UsageError(f"model {name!r} is a {type(llm).__name__}, not an LLM")
        if name in self._models:
            raise UsageError(f"there is a model {name!r} already")
        for what, given in (("role", roles), ("fallback", fallbacks)):
            if doubled := sorted({item for item in given if given.count(item) > 1}):
                raise UsageError(f"model {name!r} has the {what} {doubled[0]!r} twice")
        if name in fallbacks:
            raise UsageError(f"model {name!r} is its own fallback")
        self._models[name] = llm
        self._fallbacks[name] = fallbacks
        for role in roles:
            self._roles.setdefault(role, []).append(name)
        if origin:
            self.origin[name] = origin
        if llm.name == llm.model_id:
            llm.name = name

    def get(self, name: str) -> LLM:
        """The model of that name. Raises UnknownModelError."""
        try:
            return self._models[name]
        except KeyError:
            raise UnknownModelError(f"no model {name!r}: {_known(self._models)}") from None

    def get_by_role(self, role: str) -> LLM:
        """The first model registered for the role; nobody stands in. Raises UnknownModelError."""
        return self.all_by_role(role)[0]

    def all_by_role(self, role: str) -> tuple[LLM, ...]:
        """All models of a role, in the order of their registration; never empty. Raises UnknownModelError."""
        if role not in self._roles:
            raise UnknownModelError(f"no model has the role {role!r}: {_known(self._roles)}")
        return tuple(self._models[name] for name in self._roles[role])

    def get_default(self) -> LLM:
        """The first model with the role `general`, else the first of all. Raises NoModelError where there is none."""
        return self._models[self._default()]

    def for_role(self, role: str) -> LLM:
        """The model of a role, or of the next role that stands in for it (`STAND_INS`), at last the default."""
        return self._models[self._by_role(role) or self._default()]

    def resolve(self, hint: str | None) -> LLM:
        """What a plan's `model_hint` comes to: a role or a model's name; None and unknown hints: the default."""
        return self._models[self.resolve_name(hint)]

    def resolve_name(self, hint: str | None) -> str:
        """The name of the model that `resolve` gives. A role goes before a model that is called like it."""
        if hint is None or hint == GENERAL:
            return self._default()
        if hint in self._models and hint not in self._roles:
            return hint
        return self._by_role(hint) or self._default()

    def name_of(self, llm: LLM) -> str:
        """The name a model is registered under here, else its own."""
        return next((name for name, model in self._models.items() if model is llm), llm.name)

    def fallbacks(self, name: str) -> tuple[str, ...]:
        """The models that take over for this one, in order. Raises UsageError where one is not registered."""
        self.get(name)
        for other in self._fallbacks[name]:
            if other not in self._models:
                raise UsageError(f"model {name!r} falls back to {other!r}, which is not registered")
        return self._fallbacks[name]

    def names(self) -> tuple[str, ...]:
        """The models' names in the order of their registration."""
        return tuple(self._models)

    def roles(self, name: str | None = None) -> tuple[str, ...]:
        """All roles that models have here, or those of one model."""
        return tuple(role for role, names in self._roles.items() if name is None or name in names)

    def hints(self) -> dict[str, str]:
        """What a planner may write as `model_hint`, each with what it is for. No hint means the default model."""
        told = {hint: ROLES[hint] for hint in OFFERED}
        told |= {role: ROLES.get(role, f"work of the kind {role!r}") for role in self._roles if role not in told}
        for name in self._models:
            roles = ", ".join(self.roles(name))
            told.setdefault(name, f"the model for {roles}" if roles else "the model of this name")
        return told

    def subset(self, names: Iterable[str]) -> ModelRegistry:
        """A registry of these models alone, in this order; fallbacks that are not among them are left out. Raises
        UnknownModelError."""
        wanted = dict.fromkeys(_names(names))
        twin = ModelRegistry()
        twin._models = {name: self.get(name) for name in wanted}
        twin._fallbacks = {name: tuple(other for other in self._fallbacks[name] if other in wanted) for name in wanted}
        for role, having in self._roles.items():
            if left := [name for name in wanted if name in having]:
                twin._roles[role] = left
        twin.origin = {name: self.origin[name] for name in wanted if name in self.origin}
        return twin

    def with_roles(self, roles: Mapping[str, str]) -> ModelRegistry:
        """The same models, with these going first for their roles: `{"smart": "large"}`. Raises UnknownModelError."""
        twin = self.each(lambda llm: llm)
        for role, name in roles.items():
            self.get(name)
            twin._roles[role] = [name, *(other for other in self._roles.get(role, ()) if other != name)]
        return twin

    def scoped(self, scope: Scope) -> ModelRegistry:
        """The same models, their calls bound to a job's budget and ledger; clients and lessons are shared."""
        return self.each(lambda llm: llm.scoped(scope))

    def each(self, change: Callable[[LLM], LLM]) -> ModelRegistry:
        """The same registry with `change(model)` in each model's place: metered ones, say."""
        twin = ModelRegistry()
        twin._models = {name: change(llm) for name, llm in self._models.items()}
        twin._roles = {role: list(names) for role, names in self._roles.items()}
        twin._fallbacks = dict(self._fallbacks)
        twin.origin = dict(self.origin)
        return twin

    def warm_up(self) -> None:
        """Imports what the first calls of all models need; see `LLM.warm_up`."""
        for llm in self._models.values():
            llm.warm_up()

    async def aclose(self) -> None:
        """Closes the running loop's clients of all models, each once; all are tried, whatever one of them raises."""
        async with AsyncExitStack() as stack:
            for llm in {id(llm): llm for llm in self._models.values()}.values():
                stack.push_async_callback(llm.aclose)

    def __len__(self) -> int:
        return len(self._models)

    def __contains__(self, name: object) -> bool:
        return name in self._models

    def __repr__(self) -> str:
        return f"ModelRegistry({', '.join(self._models)})"

    def _default(self) -> str:
        if not self._models:
            raise NoModelError("no model is registered: register one, or use ModelRegistry.from_env()")
        return self._roles[GENERAL][0] if GENERAL in self._roles else next(iter(self._models))

    def _by_role(self, role: str) -> str | None:
        for candidate in (role, *STAND_INS.get(role, ())):
            if candidate in self._roles:
                return self._roles[candidate][0]
        return None


def as_registry(models: Any) -> ModelRegistry:
    """A registry as it is; one bare LLM as a registry in which it is `general`. Raises UsageError."""
    if isinstance(models, ModelRegistry):
        return models
    if isinstance(models, LLM):
        registry = ModelRegistry()
        registry.register(models.name, models, roles=(GENERAL,))
        return registry
    raise UsageError(f"models must be a ModelRegistry or an LLM, not {type(models).__name__}")


def _names(given: Iterable[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if not name or not isinstance(name, str):
            raise UsageError(f"a role or a model's name is a text, not {name!r}")
    return names


def _known(names: Iterable[str]) -> str:
    known = ", ".join(names)
    return f"there are only these: {known}" if known else "there are none"
