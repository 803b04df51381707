"""The models of one piece of work, a step's or a whole goal's: chosen before it begins, and changed when a policy says
that what came of it does not do. Each choice is told once, and never made anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from registry.budget import Room
from registry.errors import UsageError
from registry.models import ModelRegistry
from registry.routing import Choice, RouteRequest, RoutingPolicy, Trial, chosen

from .results import StepResult
from .routed import Routed

if TYPE_CHECKING:
    from planner.plan import PlanStep

    from .recovery.step_past import StepPast
    from .step_runner import StepRunner

T = TypeVar("T")
Tell = Callable[[Routed], object]


def no_room() -> Room | None:
    """No budget."""
    return None


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What a job knows of itself that its steps are routed by. `room` says what its budget leaves now."""

    domain: str | None = None
    kind: str | None = None
    room: Callable[[], Room | None] = no_room


class StepRoute:
    """`made` are the choices so far, the last one holds. `known` are choices that stand in the log already: those up
    to `attempt` are made, the others come again in their place. `untold`: a first choice that nobody has heard of."""

    def __init__(
        self,
        policy: RoutingPolicy,
        models: ModelRegistry,
        request: RouteRequest,
        known: Sequence[Routed] = (),
        attempt: int = 1,
    ) -> None:
        self.policy, self.models, self.request = policy, models, request
        self.made = [one for one in known if one.attempt <= attempt]
        self._ahead = list(known[len(self.made) :])
        self.untold: Routed | None = None
        if not self.made:
            choice = self._asked(partial(policy.choose, request, models))
            self.untold = self._routed(chosen(policy, choice, models), attempt)
            self.made.append(self.untold)

    @property
    def now(self) -> Routed:
        """The choice that holds."""
        return self.made[-1]

    @property
    def names(self) -> tuple[str, ...]:
        """The name of the model, and of those that take over while providers are out. Raises UsageError where one of
        them is not registered."""
        return (self.now.model, *self.models.fallbacks(self.now.model))

    def escalated_from(self, model: str | None) -> str | None:
        """The model that was chosen first, where a policy has taken the work from there to this one."""
        first = self.made[0].model
        return first if len(self.made) > 1 and model != first else None

    def escalate(
        self, tried: Trial, done_by: str | None, attempt: int, tell: Tell, *, only_known: bool = False
    ) -> Routed | None:
        """The choice of the model that does the work anew, as `attempt`; None where what came of it stands. `done_by`
        is the model that did it, which may have stood in for the one that was chosen: where the policy would go on with
        that very one, it is asked what comes after it. `only_known`: nothing new is chosen any more."""
        if self._ahead:
            if self._ahead[0].attempt > attempt:
                return None
            self.made.append(self._ahead.pop(0))
            return self.now
        choice = None if only_known else self._following(tried, {one.model for one in self.made}, done_by)
        if choice is None:
            return None
        self.made.append(self._routed(choice, attempt, self.now.model))
        tell(self.now)
        return self.now

    def _following(self, tried: Trial, been: set[str], done_by: str | None) -> Choice | None:
        """What the policy goes on with; no model comes twice."""
        while True:
            choice = self._asked(partial(self.policy.escalate, self.request, self.models, tried))
            if choice is None or chosen(self.policy, choice, self.models).model in been:
                return None
            if choice.model != done_by:
                return choice
            tried, been, done_by = replace(tried, model=choice.model), {*been, choice.model}, None

    def _routed(self, choice: Choice, attempt: int, before: str | None = None) -> Routed:
        asks = self._asked(partial(self.policy.asks, self.request, self.models, choice.model))
        checks = self._asked(partial(self.policy.checks, self.request, self.models, choice.model))
        return Routed(
            self.policy.name, choice.model, choice.reason, choice.score, attempt, before, bool(asks), bool(checks)
        )

    def _asked(self, question: Callable[[], T]) -> T:
        """The policy's answer. What goes wrong in it is whose it is, and said so."""
        try:
            return question()
        except UsageError:
            raise
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            raise UsageError(f"the routing policy {self.policy.name!r} failed: {told}") from error


@runtime_checkable
class Routes(Protocol):
    """A runner whose steps are routed."""

    def route(self, request: RouteRequest, known: Sequence[Routed] = (), attempt: int = 1) -> StepRoute:
        """The models of a step, of which these choices are `known`. Raises UsageError."""


class PlanRoutes:
    """The routes of a plan's steps in one execution. `begun` are steps that go on, `routed` the choices that stand in
    the log for steps that have not begun, `results` those that there are already."""

    def __init__(
        self,
        runner: StepRunner,
        goal: str,
        steps: Mapping[str, PlanStep],
        facts: JobFacts,
        begun: Mapping[str, StepPast],
        routed: Mapping[str, Sequence[Routed]],
        results: Iterable[StepResult],
    ) -> None:
        self.runner, self.goal, self.steps, self.facts = runner, goal, steps, facts
        self._begun, self._routed = begun, routed
        self._routes: dict[str, StepRoute] = {}
        self._count = self._input = self._output = 0
        for result in results:
            self.hear(result)

    def hear(self, result: StepResult) -> None:
        """What a step came to: those that have ended tell what the next ones may take."""
        if result.status in ("completed", "failed") and result.usage.input_tokens > 0:
            self._count += 1
            self._input += result.usage.input_tokens
            self._output += result.usage.output_tokens

    @property
    def tokens(self) -> tuple[int, int] | None:
        """Input and output tokens that a step which has ended took on average; None where none has that is known."""
        return (self._input // self._count, self._output // self._count) if self._count else None

    def choose(self, step: str, left: int) -> tuple[str | None, Routed | None]:
        """The model that a step begins on, and the choice where nobody has heard of it yet; `left` steps have not
        ended, this one among them."""
        if not isinstance(self.runner, Routes):
            return self.runner.model_of(self.steps[step]), None
        past = self._begun.get(step)
        known: Sequence[Routed] = self._routed.get(step, ()) if past is None else past.routes
        request = step_request(self.steps[step], self.goal, self.facts, left, self.tokens)
        route = self.runner.route(request, known, 1 if past is None else past.start.attempt)
        self._routes[step] = route
        return route.now.model, route.untold

    def of(self, step: str) -> StepRoute | None:
        """The models of a step that began."""
        return self._routes.get(step)


def step_request(
    step: PlanStep, goal: str, facts: JobFacts, left: int = 1, tokens: tuple[int, int] | None = None
) -> RouteRequest:
    """What is known of a step that is about to begin; `left` steps have not ended, which take so many `tokens` each."""
    return RouteRequest(
        step.task,
        goal,
        step.id,
        facts.kind,
        step.tool_hint,
        step.model_hint,
        facts.domain,
        len(set(step.dependencies)),
        max(1, left),
        facts.room(),
        tokens,
    )
