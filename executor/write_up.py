"""Writing the answer: asked for within what the budget allows, streamed, and void when something is said meanwhile."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from agent.events import Emit
from agent.synthesis import AnswerDelta, stream_synthesis
from registry.errors import BudgetExceededError
from registry.llm import LLM
from registry.messages import Message
from registry.models import ModelRegistry

from .budget_end import USED_UP, synthesis_within
from .job_time import JobTime
from .ledger import Ledger


class Writer:
    """Writes a job's answer with its models, within its budget and its time; `emit` takes the events. `written`: an
    answer that stands in the log of a job that goes on; it is not written again."""

    def __init__(
        self, models: ModelRegistry, ledger: Ledger, time: JobTime, emit: Emit, written: str | None = None
    ) -> None:
        self.models, self.ledger, self.time, self.emit = models, ledger, time, emit
        self.written = written

    async def write(
        self, llm: LLM, query: str, work: str, fallback: str, interrupted: Callable[[], bool] = lambda: False
    ) -> str | None:
        """The answer to a query from the work; the fallback where the model gives none; None where the budget allows no
        call for it. It ends early where somebody interrupts, and is then no answer."""
        if self.written is not None:
            return self.written
        messages = self._request(llm, query, work)
        if messages is None:
            return None
        answer = ""
        async with aclosing(self._stream(llm, messages, fallback)) as deltas:
            async for delta in deltas:
                answer = "" if delta.reset else answer + delta
                if interrupted():
                    break
        return answer if answer.strip() else fallback

    async def write_last(self, goal: str, work: str, fallback: str) -> str:
        """The answer of a job whose budget is used up, by the smart model, from what is kept for it; else the
        fallback."""
        if self.written is not None:
            return self.written
        if self.time.answering:  # the time ended in the middle of the answer
            return self._instead(fallback)
        llm = self.models.for_role("smart")
        try:
            answer = await self.time.answer(lambda: self.write(llm, f"{goal}\n\n{USED_UP}", work, fallback))
        except BudgetExceededError:  # out of time
            return self._instead(fallback)
        return fallback if answer is None else answer

    def say(self, answer: str) -> None:
        """An answer that no model has to write."""
        if self.written is not None:
            return
        self.emit("answer", status="start")
        self.emit("answer", status="delta", content=answer)
        self.emit("answer", status="done")

    def void(self) -> None:
        """What was written is no answer any more."""
        self.written = None
        self.emit("answer", status="reset")
        self.time.close_reserve()

    def _request(self, llm: LLM, query: str, work: str) -> list[Message] | None:
        """What the model is asked, cut to what the budget allows. From here on the answer has the time kept for it."""
        messages = synthesis_within(llm, query, work, self.ledger.answer_bytes(llm))
        if messages is None:
            self.ledger.refuse_answer()
            return None
        self.emit("phase", phase="synthesizing")
        self.time.open_reserve()
        return messages

    def _stream(self, llm: LLM, messages: Sequence[Message], fallback: str) -> AsyncGenerator[AnswerDelta, None]:
        return stream_synthesis(llm, messages, fallback, self.emit, models=self.models)

    def _instead(self, answer: str) -> str:
        self.written = None
        self.emit("answer", status="reset")
        self.say(answer)
        return answer
