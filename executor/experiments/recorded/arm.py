"""Arms of recorded answers: a policy chooses among models that nobody calls, and the answer on file counts."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterator, Mapping
from decimal import Decimal
from typing import Any, NoReturn

from executor.experiments.types import Arm, Cell, Experiment, Outcome, RecordedAnswer, Task
from registry.errors import ConfigError, DagwrightError, UsageError
from registry.llm import LLM
from registry.llm_types import ChatRequest, Prepared
from registry.messages import LLMResult, StreamChunk
from registry.models import ModelRegistry
from registry.routing import Choice, RouteRequest, RoutingPolicy, Trial

from .draws import uniform
from .longest import Longest

WRONG = "the checker says that it is wrong"


class RecordedLLM(LLM):
    """Stands for a model whose answers are on file, so that its name and roles resolve. It can't be called."""

    dialect = "recorded"

    def prepare(self, request: ChatRequest) -> Prepared:
        """Raises UsageError."""
        self._refuse()

    async def send(self, prepared: Prepared) -> Any:
        """Raises UsageError."""
        self._refuse()

    def parse(self, reply: Any, prepared: Prepared) -> LLMResult:
        """Raises UsageError."""
        self._refuse()

    def open_stream(self, prepared: Prepared) -> AsyncGenerator[StreamChunk, None]:
        """Raises UsageError."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UsageError(f"{self.name!r} stands for answers on file: it can't be called")


def models_of(experiment: Experiment, arm: Arm) -> ModelRegistry:
    """The recorded models of an arm, in the order of `among`, with their roles.

    Where none of them has the role `fast`, the first one has it, and where none has `reasoning`, the last: `among` goes
    from the weak to the strong. Raises ConfigError where answers are not on file.
    """
    registry = ModelRegistry()
    known = [experiment.recorded[name] for name in arm.among if name in experiment.recorded]
    if len(known) < len(arm.among) or not known:
        missing = next((name for name in arm.among if name not in experiment.recorded), None)
        raise ConfigError(
            f"arm {arm.name!r}: no answers of {missing!r} are recorded"
            if missing
            else f"arm {arm.name!r} names no recorded model in `among`"
        )
    taken = {role for model in known for role in model.roles}
    for place, model in enumerate(known):
        roles = list(model.roles)
        if place == 0 and "fast" not in taken:
            roles.append("fast")
        if place == len(known) - 1 and "reasoning" not in taken:
            roles.append("reasoning")
        registry.register(model.name, RecordedLLM(model.model or model.name, name=model.name), roles)
    return registry


def policy_of_arm(experiment: Experiment, arm: Arm) -> RoutingPolicy | None:
    """The policy that chooses among an arm's recorded models; None for a single one that needs none. Raises
    ConfigError, which names the arm, also for models that are not there and for a cascade that could never escalate."""
    if arm.routing is None and len(arm.among) > 1:
        raise ConfigError(f"arm {arm.name!r} needs `routing` to choose among {', '.join(arm.among)}")
    policy = None if arm.routing is None else _policy(experiment, arm)
    if arm.checker is not None and (policy is None or type(policy).escalate is RoutingPolicy.escalate):
        raise ConfigError(f'arm {arm.name!r}: `checker` is for routing that escalates, such as "cascade"')
    _has_grounds(experiment, arm, policy)
    return policy


def _policy(experiment: Experiment, arm: Arm) -> RoutingPolicy:
    from registry.routing_config import policy_of

    try:
        if (longest := Longest.read(arm.routing)) is not None:
            policy: RoutingPolicy = longest
        else:
            policy = policy_of(arm.routing, base=experiment.base)
        policy.check(models_of(experiment, arm))
        return policy
    except DagwrightError as error:
        raise ConfigError(f"arm {arm.name!r}: {error}") from error


def request_of(task: Task) -> RouteRequest:
    """What a policy knows of a task before it is done: its text and its kind."""
    return RouteRequest(task=task.input, goal=task.input, kind=task.kind)


def route_scores(experiment: Experiment, arm: Arm) -> list[float] | None:
    """How much each task, in the experiment's order, gains by the strong model by the arm's policy; None where the
    policy does not say. Raises ConfigError."""
    policy: Any = None if arm.kind != "recorded" or not arm.among else policy_of_arm(experiment, arm)
    if policy is None or not callable(getattr(policy, "score", None)):
        return None
    return [float(policy.score(request_of(task))) for task in experiment.tasks]


def recorded_outcomes(experiment: Experiment, arm: Arm) -> Iterator[Outcome]:
    """What comes of an arm's cells: for each repeat the tasks in the experiment's order.

    A cascade pays for every answer that it looks at, and waits for each. Its checker is simulated: one of accuracy a
    calls a wrong answer wrong with the chance a, a right one with 1 - a; an answer of score s counts as right to the
    part s. Its draws depend on seed, task, repeat and model alone, so that arms with checkers of different accuracy are
    compared on the same draws. Raises ConfigError, which names the arm.
    """
    models, policy = models_of(experiment, arm), policy_of_arm(experiment, arm)
    for repeat in range(1, experiment.repeats + 1):
        for task in experiment.tasks:
            yield _outcome(_Run(experiment, arm, models, policy, task, repeat))


def _has_grounds(experiment: Experiment, arm: Arm, policy: RoutingPolicy | None) -> None:
    """Refuses a cascade that would never escalate."""
    if policy is None or policy.name != "cascade" or arm.checker is not None:
        return
    among = [experiment.recorded[name] for name in arm.among]
    if all(answer.confidence is None for model in among for answer in model.answers.values()):
        raise ConfigError(
            f"arm {arm.name!r}: a cascade has nothing to escalate by on recorded answers: give `checker = 0.9`, the "
            "accuracy of a simulated checker, or name a column with each answer's `confidence` in [recorded.*]"
        )


class _Run:
    """One cell: the models tried, in order, each with its answer."""

    def __init__(
        self,
        experiment: Experiment,
        arm: Arm,
        models: ModelRegistry,
        policy: RoutingPolicy | None,
        task: Task,
        repeat: int,
    ) -> None:
        self.experiment, self.arm, self.models, self.task, self.repeat = experiment, arm, models, task, repeat
        self.tried: list[tuple[str, RecordedAnswer]] = []
        if policy is None:
            self._try(arm.among[0])
            return
        request = request_of(task)
        try:
            choice: Choice | None = policy.choose(request, models)
            while choice is not None:
                choice = policy.escalate(request, models, self._try(choice.model))
        except UsageError as error:
            raise ConfigError(f"arm {arm.name!r}: {error}") from error

    def _try(self, model: str) -> Trial:
        if model not in self.models:
            raise UsageError(f"the policy chose {model!r}, which is not among {', '.join(self.models.names())}")
        if any(model == name for name, _ in self.tried):
            raise UsageError(_second(model, self.task))
        answer = self.experiment.recorded[model].answers[self.task.id]
        self.tried.append((model, answer))
        return _trial(model, answer, self._check(model, answer))

    def _check(self, model: str, answer: RecordedAnswer) -> str:
        accuracy = self.arm.checker
        if accuracy is None:
            return ""
        if answer.score is None:
            raise UsageError(_no_verdict(model, self.task))
        chance = says_wrong(accuracy, answer.score)
        return WRONG if uniform(self.experiment.seed, self.task.id, self.repeat, model) < chance else ""


def says_wrong(accuracy: float, score: float) -> float:
    """The chance that a checker of this accuracy calls an answer of this score wrong."""
    return accuracy * (1 - score) + (1 - accuracy) * score


def _outcome(run: _Run) -> Outcome:
    model, answer = run.tried[-1]
    answers = [answer for _, answer in run.tried]
    costs = [answer.cost for answer in answers if answer.cost is not None]
    waits = [answer.latency for answer in answers if answer.latency is not None]
    return Outcome(
        Cell(run.arm.name, run.task.id, run.repeat),
        "completed",
        answer.text,
        cost=sum(costs, Decimal(0)) if len(costs) == len(answers) else None,
        latency=sum(waits) if len(waits) == len(answers) else None,
        steps=1,
        models={model: 1},
        escalated=int(len(answers) > 1),
        recorded_score=answer.score,
    )


def expected(experiment: Experiment, arm: Arm) -> Mapping[str, tuple[float, float | None]]:
    """By task, the exact expectation of score and cost of a cascade over its checker's draws: no simulation.

    Raises ConfigError where the arm is no cascade with a checker, or an answer has no verdict.
    """
    models, policy = models_of(experiment, arm), policy_of_arm(experiment, arm)
    if policy is None or arm.checker is None:
        raise ConfigError(f"arm {arm.name!r} is no cascade with a checker: there is nothing to expect")
    found = {}
    for task in experiment.tasks:
        expecting = _Expected(experiment, arm, models, policy, task)
        score, cost = expecting.of(policy.choose(expecting.request, models), ())
        found[task.id] = (score, None if math.isnan(cost) else cost)
    return found


class _Expected:
    """What a task comes to on average, by each of the two things that the checker may say."""

    def __init__(
        self, experiment: Experiment, arm: Arm, models: ModelRegistry, policy: RoutingPolicy, task: Task
    ) -> None:
        self.experiment, self.arm, self.models, self.policy, self.task = experiment, arm, models, policy, task
        self.request = request_of(task)

    def of(self, choice: Choice, tried: tuple[str, ...]) -> tuple[float, float]:
        """Score and cost from this choice on, after those that were tried; a cost that is not known is not a number."""
        if choice.model in tried:
            raise ConfigError(f"arm {self.arm.name!r}: {_second(choice.model, self.task)}")
        answer = self.experiment.recorded[choice.model].answers[self.task.id]
        if answer.score is None or self.arm.checker is None:
            raise ConfigError(f"arm {self.arm.name!r}: {_no_verdict(choice.model, self.task)}")
        wrong = says_wrong(self.arm.checker, answer.score)
        score, cost = 0.0, math.nan if answer.cost is None else float(answer.cost)
        for chance, check in ((wrong, WRONG), (1 - wrong, "")):
            after = self.policy.escalate(self.request, self.models, _trial(choice.model, answer, check))
            if after is None or not chance:
                score += chance * answer.score
            else:
                more = self.of(after, (*tried, choice.model))
                score, cost = score + chance * more[0], cost + chance * more[1]
        return score, cost


def _trial(model: str, answer: RecordedAnswer, check: str) -> Trial:
    sure = answer.confidence
    return Trial(model, answer.text, check=check, confidence=sure, asked=sure is not None)


def _second(model: str, task: Task) -> str:
    return f"the policy chose {model!r} a second time for the task {task.id!r}"


def _no_verdict(model: str, task: Task) -> str:
    return (
        f"there is no verdict on the answer of {model!r} to the task {task.id!r}: name the column with it (`score`), "
        "which the simulated checker knows"
    )
