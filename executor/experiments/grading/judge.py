"""A model as a judge: each answer is judged twice, its parts in one order and in the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, ClassVar

from agent.context import FATAL
from agent.structured import StructuredOutputError, structured_llm_call
from executor.experiments.types import Arm, Experiment, Grade, Outcome, Task
from registry.context import calling
from registry.errors import ConfigError, LLMError
from registry.llm import LLM
from registry.messages import Message, canonical_json
from registry.metering import Meter
from registry.models import ModelRegistry
from registry.text import clean, cut_end, cut_middle, load_prompt, marked, unforgeable_marker
from registry.toml_file import Table, nearest

from .base import ANSWERED, Grader, one_of
from .families import families

ROLE = "judge"
PART_CHARS = 20_000
"""So much of an answer, a reference or a task is shown; of a longer one head and tail."""
REASON_CHARS = 500
TARGET = "target"
STEP = 1
"""Grades of the two orders that differ by no more than this agree."""
_REASON = {"reasoning": {"type": "string"}}
GRADE_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {**_REASON, "grade": {"type": "integer", "minimum": 1, "maximum": 5}},
    "required": ["reasoning", "grade"],
}
PAIR_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {**_REASON, "better": {"type": "string", "enum": ["first", "second", "tie"]}},
    "required": ["reasoning", "better"],
}
"""The reasons come first: the verdict then follows from them."""


class Judge(Grader):
    """A model that judges, by a grade or by comparing.

    `model`: its name or role (role `judge` where nothing is said). `mode` "grade": a grade from 1 to 5, as 0 to 1, by
    the target as the reference where the task has one, and by `rubric`, a text; asked twice, answer first and answer
    last, the score is the mean, and the two agree where they are at most one grade apart. `mode` "pair": which of two
    answers is better, this one or the one it is compared with (`against`: "target", or an arm's name); asked twice, in
    both orders. The same winner twice is worth 1 or 0; a tie, or a verdict that turns with the order, is worth 0.5 (as
    in Zheng et al., arXiv 2306.05685, section 3.4).

    A judge of the family of a model that answered is refused, unless `allow_same_family` is true; grades then say so.
    """

    needs_target: ClassVar[bool] = False

    def __init__(self, table: Table, models: ModelRegistry | None, arms: Sequence[Arm] = ()) -> None:
        table.only(("model", "mode", "rubric", "against", "allow_same_family"))
        self.mode = one_of(table, "mode", ("grade", "pair"))
        self.rubric, self.against = table.text("rubric"), table.text("against") or TARGET
        if "against" in table.values and self.mode == "grade":
            table.wrong("against", 'is for mode = "pair"')
        names = [arm.name for arm in arms]
        if self.against != TARGET and arms and self.against not in names:
            table.wrong("against", f'must be "target" or an arm: {nearest(self.against, names)}')
        self.same_family_allowed = table.flag("allow_same_family")
        self.named = table.text("model")
        self.llm = None if models is None else _judge(table, self.named, models)
        self.models, self.opponents = models, {}  # type: ignore[var-annotated]
        self.same_family: tuple[str, ...] = ()
        self.refused = ""  # why nothing more is asked: a wrong key, say

    # Before it judges

    def begin(self, experiment: Experiment, outcomes: Iterable[Outcome]) -> None:
        """Looks at who answered. Raises ConfigError where the judge is of the same family, or there are no models."""
        names: set[str] = set()
        for outcome in outcomes:
            names.update(outcome.models, outcome.by_model)
            if outcome.cell.arm == self.against:
                self.opponents[outcome.cell.task, outcome.cell.repeat] = outcome
        self.refuse_family(experiment, names)

    def refuse_family(self, experiment: Experiment, names: Iterable[str]) -> None:
        """Raises ConfigError where one of these models is of the judge's family, and that is not allowed."""
        names = sorted(names)
        unknown = [name for name in names if name in experiment.recorded and not experiment.recorded[name].model]
        if unknown and not self.same_family_allowed:
            raise ConfigError(
                f"whether the judge is of the family of {unknown[0]!r} is not known: give [recorded.{unknown[0]}] the "
                'provider\'s name for it, such as model = "vendor/name", or set allow_same_family = true in [grader]'
            )
        own = families(self._llm().model_id)
        same = [name for name in names if own & families(self._model_id(experiment, name))]
        if same and not self.same_family_allowed:
            raise ConfigError(
                f"the judge {self._llm().model_id!r} is of the same family as {same[0]!r}, which it is to judge: "
                "judges favour their own kind. Name another `model` in [grader], or set allow_same_family = true"
            )
        self.same_family = tuple(same)

    def _model_id(self, experiment: Experiment, name: str) -> str:
        if name in experiment.recorded:
            return experiment.recorded[name].model or name
        return self.models.get(name).model_id if self.models is not None and name in self.models else name

    def _llm(self) -> LLM:
        if self.llm is None:
            raise ConfigError("a judge calls a model, and there are no models here")
        return self.llm

    # Judging

    def key(self, task: Task, outcome: Outcome) -> str:
        """What a verdict depends on, as a hash: a grade with this key need not be asked for again."""
        asked = [self._llm().model_id, self.mode, self.rubric, task.input, task.target, outcome.answer, self.against]
        opponent = self.opponents.get((outcome.cell.task, outcome.cell.repeat))
        asked.append(None if opponent is None else opponent.answer)
        return sha256(canonical_json(asked).encode("utf-8", "surrogatepass")).hexdigest()[:16]

    async def judge(self, task: Task, outcome: Outcome) -> Grade:
        """The mean of both orders, and whether they agree."""
        other, grade = self._other(task, outcome)
        if grade is not None:
            return grade
        if self.refused:
            return Grade(outcome.cell, None, self.refused)
        meter = Meter()
        llm = meter.metered(self._llm())
        asked = _Asked(self.mode, self.rubric, task, outcome.answer, other)
        try:
            with calling(role=ROLE):
                one = await asked.verdict(llm, turned=False)
                two = await asked.verdict(llm, turned=True)
        except (LLMError, StructuredOutputError) as error:
            reason = f"the judge failed: {error}"
            if error.code in FATAL:  # the next answer would be refused alike
                self.refused = reason
            return Grade(outcome.cell, None, reason, cost=meter.usage.cost)
        score, agreed = self._score(one[0], two[0])
        details = {
            "orders": [one[0], two[0]],
            "agreed": agreed,
            "reasons": [one[1], two[1]],
            "judge": self._llm().model_id,
            "key": self.key(task, outcome),
        }
        if self.same_family:
            details["same_family"] = list(self.same_family)
        return Grade(
            outcome.cell, score, one[1] if agreed else f"the orders disagree: {one[1]}", details, meter.usage.cost
        )

    def _score(self, one: float, two: float) -> tuple[float, bool]:
        if self.mode == "pair":
            return (one if one == two else 0.5), one == two
        return (one + two) / 2, abs(one - two) * 4 <= STEP

    def _other(self, task: Task, outcome: Outcome) -> tuple[str | None, Grade | None]:
        """The answer to compare with, or to go by; or the grade where nothing is left to be judged."""
        if self.mode == "grade":
            return (None if task.target is None else _told(task.target)), None
        if self.against == TARGET:
            if task.target is None:
                return None, Grade(outcome.cell, None, "the task has no target to compare with")
            return _told(task.target), None
        if outcome.cell.arm == self.against:
            return None, Grade(outcome.cell, 0.5, "the arm that the others are compared with")
        opponent = self.opponents.get((outcome.cell.task, outcome.cell.repeat))
        if opponent is None:
            return None, Grade(outcome.cell, None, f"there is no answer of {self.against!r} to compare with")
        if opponent.status not in ANSWERED:
            return None, Grade(outcome.cell, 1.0, f"{self.against!r} has no answer")
        return opponent.answer, None


class _Asked:
    """What a judge is asked of one answer."""

    def __init__(self, mode: str, rubric: str | None, task: Task, answer: str, other: str | None) -> None:
        self.pair = mode == "pair"
        given = [task.input, answer, *([] if other is None else [other])]
        shown = [cut_middle(clean(text), PART_CHARS) for text in given]
        self.task, self.answer, self.other = shown[0], shown[1], shown[2] if other is not None else None
        self.rubric = rubric or _prompt("judge_right" if other is not None and not self.pair else "judge_good", {})
        self.marker = unforgeable_marker(shown)

    async def verdict(self, llm: LLM, *, turned: bool) -> tuple[float, str]:
        """What the answer is worth in one order, and why. Raises LLMError and StructuredOutputError."""
        messages = [Message.system(self._rules()), Message.user(self._parts(turned))]
        schema = PAIR_SCHEMA if self.pair else GRADE_SCHEMA
        result = await structured_llm_call(llm, messages, schema, "verdict", description="Hands over the verdict.")
        value = result.value
        return self._worth(value, turned), cut_end(" ".join(str(value["reasoning"]).split()), REASON_CHARS)

    def _worth(self, value: Mapping[str, Any], turned: bool) -> float:
        if not self.pair:
            return (int(value["grade"]) - 1) / 4
        if value["better"] == "tie":
            return 0.5
        return float((value["better"] == "first") != turned)

    def _rules(self) -> str:
        name = "judge_pair" if self.pair else "judge"
        reference = "" if self.other is None else "a reference that is right, "
        words = {"rubric": self.rubric} if self.pair else {"rubric": self.rubric, "reference": reference}
        return _prompt(name, words)

    def _parts(self, turned: bool) -> str:
        task = marked(self.task, "the task", self.marker)
        if self.pair:
            answers = [self.answer, self.other or ""]
            answers = answers[::-1] if turned else answers
            told = zip(("the first answer", "the second answer"), answers, strict=True)
            return "\n\n".join([task, *(marked(text, what, self.marker) for what, text in told), "Which is better?"])
        answer = marked(self.answer, "the answer", self.marker)
        rest = [task] if self.other is None else [task, marked(self.other, "the reference", self.marker)]
        parts = [answer, *rest] if turned else [*rest, answer]
        return "\n\n".join([*parts, "Which grade does the answer deserve?"])


def _judge(table: Table, named: str | None, models: ModelRegistry) -> LLM:
    """The judge's model; nobody stands in for it."""
    name = named or ROLE
    if name in models.roles():
        return models.get_by_role(name)
    if name in models:
        return models.get(name)
    if named is None:
        raise ConfigError(
            f'{table.path}: [{table.name}] model is missing: the judge, a model or a role ("judge" where '
            "nothing is said, which no model has)"
        )
    return table.wrong("model", f"no model and no role: {nearest(name, (*models.names(), *models.roles()))}")


def _prompt(name: str, words: Mapping[str, str]) -> str:
    return load_prompt("executor.experiments.grading", name).substitute(words)


def _told(target: Any) -> str:
    return target if isinstance(target, str) else canonical_json(target)
