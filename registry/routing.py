"""Routing: which model does a piece of work, decided before it is called, with the reason."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:
    from .budget import Room
    from .models import ModelRegistry


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """What is known of a piece of work before any model is called for it.

    `task` is its text, `goal` that of the whole job. `step_id` None: the whole goal, by one agent. `kind` is the kind
    of work where somebody named one (a task's subject, say). `steps_left`: steps of the plan that have not ended, this
    one among them. `room`: what the job's budget leaves beyond what is kept for the answer; None: no budget in money
    or tokens. `tokens`: what an ended step of this job took on average, input and output; None: none has ended.
    """

    task: str
    goal: str = ""
    step_id: str | None = None
    kind: str | None = None
    tool_hint: str | None = None
    model_hint: str | None = None
    domain: str | None = None
    dependencies: int = 0
    steps_left: int = 1
    room: Room | None = None
    tokens: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A model's registered name, and why it. `score`: how much the work gains by the stronger model, by the policy's
    own measure, where it has one: more means that the stronger model is worth more."""

    model: str
    reason: str
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of the work on a model. `error`: code of its failure; `check`: what its checks found wrong, empty where
    they passed or there were none; `confidence`: its own report, 0 to 1, None where it was not asked or did not say;
    `asked`: whether it was."""

    model: str
    output: str = ""
    error: str | None = None
    check: str = ""
    confidence: float | None = None
    asked: bool = False


class RoutingPolicy(ABC):
    """Turns a step into a model. Without state of its own: the same request gets the same choice, so that a job that
    goes on elsewhere, or is replayed, is routed as before. Must not wait and must not call a model."""

    name: ClassVar[str]

    @abstractmethod
    def choose(self, request: RouteRequest, models: ModelRegistry) -> Choice:
        """The model that begins. Raises UsageError where the policy names one that is not registered."""

    def escalate(self, request: RouteRequest, models: ModelRegistry, tried: Trial) -> Choice | None:
        """The model that does the work anew after this trial; None: the trial's outcome stands. Not asked after errors
        that no other model can help (auth, quota, the budget), nor for a model that was tried already."""
        return None

    def asks(self, request: RouteRequest, models: ModelRegistry, model: str) -> bool:
        """Whether a success on this model is followed by the question how sure it is (`Trial.confidence`)."""
        return False

    def checks(self, request: RouteRequest, models: ModelRegistry, model: str) -> bool:
        """Whether a result of this model gets the step check, also where the options don't ask for one."""
        return False

    def check(self, models: ModelRegistry) -> None:
        """Raises UsageError where the policy can't route among these models: asked before anything runs. By default it
        chooses for an empty request, to see."""
        chosen(self, self.choose(RouteRequest("", step_id=""), models), models)

    @abstractmethod
    def to_json(self) -> Mapping[str, Any]:
        """The policy as `registry.routing_config.policy_of` reads it, as plain JSON data."""


Factory: TypeAlias = "Callable[..., RoutingPolicy]"
"""Makes a policy of its own keys, given as keyword arguments; raises UsageError for wrong ones."""


@dataclass(frozen=True, slots=True)
class Hint(RoutingPolicy):
    """The plan's own `model_hint`, resolved by the registry. The default."""

    name: ClassVar[str] = "hint"

    def choose(self, request: RouteRequest, models: ModelRegistry) -> Choice:
        """The model that the hint comes to; for a whole goal in a domain the reasoning model, else the default."""
        if request.step_id is None and request.domain:
            return Choice(models.name_of(models.for_role("reasoning")), f"the goal is a {request.domain} question")
        hint = request.model_hint
        return Choice(models.resolve_name(hint), "no hint: the default model" if hint is None else f"hint {hint!r}")

    def to_json(self) -> Mapping[str, Any]:
        """The policy as `policy_of` reads it."""
        return {"use": self.name}


@dataclass(frozen=True, slots=True)
class Fixed(RoutingPolicy):
    """One model, or the one of a role, for everything."""

    name: ClassVar[str] = "fixed"
    model: str = "general"

    def choose(self, request: RouteRequest, models: ModelRegistry) -> Choice:
        """Always the same."""
        return Choice(named(models, self.model), f"fixed: {self.model}")

    def to_json(self) -> Mapping[str, Any]:
        """The policy as `policy_of` reads it."""
        return {"use": self.name, "model": self.model}


@dataclass(frozen=True, slots=True)
class ByKind(RoutingPolicy):
    """A table from the kind of work to a model or role; `default` for all other kinds, None: by the hint.

    The keys that are looked for, in this order: the kind, `tool:NAME` of the tool hint, `hint:NAME` of the model hint,
    `domain:NAME`.
    """

    name: ClassVar[str] = "table"
    models: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None

    def choose(self, request: RouteRequest, models: ModelRegistry) -> Choice:
        """The first key of the table that fits."""
        for key in kinds_of(request):
            if key in self.models:
                return Choice(named(models, self.models[key]), f"table: {key}")
        if self.default is not None:
            return Choice(named(models, self.default), "table: default")
        return Hint().choose(request, models)

    def check(self, models: ModelRegistry) -> None:
        """All models that the table names must be there."""
        for name in (*self.models.values(), *(() if self.default is None else (self.default,))):
            named(models, name)

    def to_json(self) -> Mapping[str, Any]:
        """The policy as `policy_of` reads it."""
        return {
            "use": self.name,
            "models": dict(self.models),
            **({} if self.default is None else {"default": self.default}),
        }


@dataclass(frozen=True, slots=True)
class Pinned(RoutingPolicy):
    """Some steps have their model, which nothing changes; the others are routed by another policy."""

    name: ClassVar[str] = "pinned"
    models: Mapping[str, str]
    others: RoutingPolicy

    def choose(self, request: RouteRequest, models: ModelRegistry) -> Choice:
        """The step's own model."""
        pin = self._pin(request)
        if pin is None:
            return self.others.choose(request, models)
        return Choice(models.resolve_name(pin), f"pinned: {pin}")

    def escalate(self, request: RouteRequest, models: ModelRegistry, tried: Trial) -> Choice | None:
        """None for a step that has its model."""
        return None if self._pin(request) is not None else self.others.escalate(request, models, tried)

    def asks(self, request: RouteRequest, models: ModelRegistry, model: str) -> bool:
        """As the other policy says, for its steps."""
        return self._pin(request) is None and self.others.asks(request, models, model)

    def checks(self, request: RouteRequest, models: ModelRegistry, model: str) -> bool:
        """As the other policy says, for its steps."""
        return self._pin(request) is None and self.others.checks(request, models, model)

    def check(self, models: ModelRegistry) -> None:
        """As the other policy says."""
        self.others.check(models)

    def to_json(self) -> Mapping[str, Any]:
        """What is pinned, and the other policy; this one is never configured."""
        return {"use": self.name, "models": dict(self.models), "others": dict(self.others.to_json())}

    def _pin(self, request: RouteRequest) -> str | None:
        return None if request.step_id is None else self.models.get(request.step_id)


def kinds_of(request: RouteRequest) -> tuple[str, ...]:
    """The kinds that a request counts as, the most particular first."""
    return tuple(
        key
        for key in (
            request.kind,
            request.tool_hint and f"tool:{request.tool_hint}",
            request.model_hint and f"hint:{request.model_hint}",
            request.domain and f"domain:{request.domain}",
        )
        if key
    )


def chosen(policy: RoutingPolicy, choice: Choice, models: ModelRegistry) -> Choice:
    """A policy's choice, once it is known to be one. Raises UsageError for anything but a registered model."""
    from .errors import UsageError

    if not isinstance(choice, Choice):
        raise UsageError(f"the routing policy {policy.name!r} gave a {type(choice).__name__}, not a Choice")
    if not isinstance(choice.model, str) or choice.model not in models:
        known = ", ".join(models.names())
        raise UsageError(
            f"the routing policy {policy.name!r} chose {choice.model!r}, which is no model: there are {known}"
        )
    return choice


def named(models: ModelRegistry, name: str) -> str:
    """The registered name of a model or role that a policy names. Raises UsageError."""
    from .errors import UsageError
    from .models import STAND_INS

    if name in models or name in models.roles() or name in STAND_INS:
        return models.resolve_name(name)
    known = ", ".join(dict.fromkeys((*models.roles(), *models.names())))
    raise UsageError(f"the routing policy names {name!r}, which is neither a model nor a role: there are {known}")
