"""From a goal to a plan, and from a plan that fell short to the next one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agent.structured import StructuredOutputError, StructuredTruncatedError, structured_llm_call
from registry.clock import SYSTEM_CLOCK, Clock
from registry.context import calling
from registry.fallback import Told, with_fallback
from registry.llm import LLM
from registry.messages import Message
from registry.models import ModelRegistry
from registry.text import cut_middle

from .checks import PlanError
from .material import (
    Context,
    conversation,
    framed,
    model_for,
    model_lines,
    prompt,
    shortened,
    step_report,
    today,
    tool_lines,
)
from .parse import MAX_STEPS, parse_plan
from .plan import Plan
from .replan import finished_steps, parse_replan
from .schemas import SHORT_MAX_STEPS, TASK_CHARS, plan_schema, replan_schema

FINISHED_CHARS = 500
"""Characters of each finished step's result that a replan sees."""
SHOWN_PLAN_CHARS = 20_000
"""Characters of a wrong plan that go back with its problems."""


class DAGPlanner:
    """Plans by one structured call to the smart model; what is wrong with the plan goes back once.

    `llm` is a model, or a registry, whose smart model plans and whose compacting one shortens long goals. `tools` are
    tools or their names. `models` are the hints to offer: a registry, a mapping of hint to purpose, or names; None
    takes them from the registry. `prompt_name` is "plan", or "plan_short" for small models. `max_task_chars` bounds a
    step's task. While the smart model's provider is out its fallbacks plan; `on_fallback` hears of it.
    """

    def __init__(
        self,
        llm: LLM | ModelRegistry,
        *,
        tools: Iterable[Any] = (),
        models: ModelRegistry | Mapping[str, str] | Iterable[str] | None = None,
        max_steps: int = MAX_STEPS,
        prompt_name: str = "plan",
        max_task_chars: int = TASK_CHARS,
        clock: Clock = SYSTEM_CLOCK,
        on_fallback: Told | None = None,
    ) -> None:
        self.llm, self.max_steps, self.on_fallback = llm, max_steps, on_fallback
        self.prompt_name, self.max_task_chars, self.clock = prompt_name, max_task_chars, clock
        self._tools, self._tool_lines = tool_lines(tools)
        self._models, self._model_lines = model_lines(models, llm)

    async def plan(self, goal: str, context: Context = None) -> Plan:
        """The plan for a goal. `context` is what was said before, as text or messages.

        Raises PlanError where the plan is still not valid after one correction, and LLMError for what the provider
        refuses or fails at.
        """
        with calling(role="planner"):
            messages = [
                Message.system(self._rules(self.prompt_name)),
                Message.user(prompt("goal", goal=await self._short(goal), context=await self._framed(context))),
            ]
            limit = min(self.max_steps, SHORT_MAX_STEPS) if self.prompt_name == "plan_short" else self.max_steps
            schema = plan_schema(limit, self.max_task_chars)
            return await self._ask(messages, schema, "make_plan", lambda value: self._parsed(value, goal))

    async def replan(
        self,
        goal: str,
        plan: Plan,
        results: Any,
        verdict_reasoning: str,
        context: Context = None,
        *,
        may_rest: bool = False,
    ) -> Plan:
        """The plan of the next round, as a change to `plan`: finished steps are kept, failed ones replaced, new ones
        added (`diff_plans` says which). `results` are the step results, or the PlanResult that holds them. `may_rest`:
        after a message of the user's, all may be kept and nothing added, where only the answer is to be another.

        Raises as `plan` does.
        """
        with calling(role="planner"):
            told = prompt(
                "replan_input",
                goal=await self._short(goal),
                context=await self._framed(context),
                steps=step_report(results, FINISHED_CHARS, plan.steps),
                reasoning=verdict_reasoning or "(not said)",
            )
            finished = len(finished_steps(plan, results))
            may_rest = may_rest and finished > 0
            schema = replan_schema(self.max_steps, finished, self.max_task_chars, may_rest=may_rest)
            names: dict[str, Any] = {"tools": self._tools, "models": self._models, "max_steps": self.max_steps}
            rest = f"\n{prompt('replan_rest')}" if may_rest else ""
            messages = [Message.system(self._rules("replan", rest=rest)), Message.user(told)]
            return await self._ask(
                messages,
                schema,
                "revise_plan",
                lambda value: parse_replan(value, plan, results, goal=goal, may_rest=may_rest, **names),
            )

    def _parsed(self, value: Any, goal: str) -> Plan:
        return parse_plan(value, tools=self._tools, models=self._models, max_steps=self.max_steps, goal=goal)

    def _rules(self, name: str, **more: str) -> str:
        return prompt(name, date=today(self.clock), tools=self._tool_lines, models=self._model_lines, **more)

    async def _short(self, text: str) -> str:
        return await shortened(text, self.llm)

    async def _framed(self, context: Context) -> str:
        return framed(await self._short(conversation(context)))

    async def _ask(
        self, messages: list[Message], schema: Mapping[str, Any], name: str, parse: Callable[[Any], Plan]
    ) -> Plan:
        """One call, and one more that quotes all problems where the plan has some."""
        value = await self._value(messages, schema, name)
        try:
            return parse(value)
        except PlanError as error:
            problems = "\n".join(f"- {problem.message}" for problem in error.problems[:50])
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        correction = [
            *messages,
            Message.assistant(cut_middle(written, SHOWN_PLAN_CHARS)),
            Message.user(prompt("correct", problems=problems)),
        ]
        return parse(await self._value(correction, schema, name))

    async def _value(self, messages: list[Message], schema: Mapping[str, Any], name: str) -> Any:
        try:
            call = await with_fallback(
                self.llm,
                model_for(self.llm, "smart"),
                lambda llm: structured_llm_call(llm, messages, schema, name, validate=False, description="The plan."),
                self.on_fallback,
            )
        except StructuredTruncatedError:
            raise
        except StructuredOutputError as error:
            return error.last_reply  # no data at all: as a plan, this is the text that it is
        return call.value
