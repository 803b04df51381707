"""A job's events as a chat client reads them: progress as reasoning, the answer as content, the end as a completion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent.waits import ASKED
from executor.command.view import JobView
from executor.service.problems import ProblemError
from registry.messages import Event

from .errors import NO_RETRY

VOID = "\n\n[What stands above is void: the work went on. The answer:]\n\n"
"""What a stream says where its answer begins anew: what was sent can't be taken back."""
FINISH = {"completed": "stop", "partial": "stop", "budget_exceeded": "length", "cancelled": "length"}
"""How a job's end is told. A job that was stopped with grace is cancelled, and its answer is what there was by then."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of progress or of the answer, for one chunk."""

    reasoning: str = ""
    content: str = ""


class ChatAnswer:
    """The fold of one job's events. Pieces of the answer come stored and, ahead of that, live; each is said once.

    `length` counts the characters of the answer that were said since it last began, `done` is the payload of the job's
    last event. `heading` stands above the answer.
    """

    def __init__(self, job_id: str, heading: str = "") -> None:
        self.job_id = job_id
        self.length = 0
        self.done: Mapping[str, Any] | None = None
        self._view = JobView()
        self._said: list[str] = []
        self._part = 0
        self._stored_part, self._stored = 0, 0
        self._before = heading

    def event(self, event: Event) -> Iterator[Piece]:
        """Takes the next stored event in."""
        if event.channel == "answer" and event.step_id is None:
            yield from self._answer(event.payload)
        elif event.channel == "done":
            yield from self.end(event.payload)
        elif (line := self._view.apply(event)) and not self._is_late(event):
            yield Piece(reasoning=f"{line}{self._how_to_decide(event)}\n")

    def live(self, part: int, offset: int, text: str) -> Iterator[Piece]:
        """Takes a piece in that is not stored yet, or was on its way when it was. `offset` counts characters, `part`
        the answers before it that are void."""
        if part < self._part:
            return
        if part > self._part:
            if offset:
                return  # its beginning was lost on the way: it comes from storage
            self._begin(part)
        if offset <= self.length < offset + len(text):
            yield from self._say(text[self.length - offset :])

    def end(self, done: Mapping[str, Any]) -> Iterator[Piece]:
        """Takes the account of how the job ended in, and says what its answer has that was not said yet. One that was
        written without events begins anew."""
        self.done = done
        answer, said = str(done["answer"] or ""), "".join(self._said)
        if failure(self.job_id, done) is not None or answer.strip() == said.strip():
            return
        if not answer.startswith(said):
            self._begin(self._part + 1)
        yield from self._say(answer[self.length :])

    def _answer(self, payload: Mapping[str, Any]) -> Iterator[Piece]:
        if payload["status"] == "delta":
            content = payload["content"]
            self._stored_part = payload.get("part", self._stored_part)
            offset = payload.get("offset", self._stored)
            self._stored = offset + len(content)
            yield from self.live(self._stored_part, offset, content)
        elif payload["status"] != "done" and self._stored:  # it begins anew: live pieces of it may have come before
            self._stored_part, self._stored = self._stored_part + 1, 0
            if self._stored_part > self._part:
                self._begin(self._stored_part)

    def _begin(self, part: int) -> None:
        if self.length:
            self._before = VOID
        self._part, self._said, self.length = part, [], 0

    def _say(self, text: str) -> Iterator[Piece]:
        if not text:
            return
        self._said.append(text)
        self.length += len(text)
        before, self._before = self._before, ""
        yield Piece(content=before + text)

    def _is_late(self, event: Event) -> bool:
        """That the answer is being written is no news where it is there: its pieces come ahead of what is stored."""
        return event.channel == "phase" and event.payload["phase"] == "synthesizing" and self.length > 0

    def _how_to_decide(self, event: Event) -> str:
        if event.channel != "approval" or event.payload["status"] not in ASKED:
            return ""
        return f" (POST /v1/jobs/{self.job_id}/approvals/{event.payload['call_id']} decides)"


def failure(job_id: str, done: Mapping[str, Any]) -> ProblemError | None:
    """What is told of a job that came to no answer; None of one that has an answer.

    The status is one that clients don't repeat by themselves: the work was done, and would be paid for again.
    """
    status, cause = done["status"], done.get("error")
    if status in FINISH and (status != "cancelled" or done.get("error_code") == "stopped"):
        return None
    told = str(done["answer"] or "").strip()
    if cause and cause not in told:
        told = f"{cause} {told}".strip()
    detail = f"{job_id} {status}: {told or 'no cause is known'}"
    return ProblemError(422, f"job_{status}", "The job came to no answer", detail, headers=NO_RETRY)


def usage_of(done: Mapping[str, Any]) -> dict[str, Any]:
    """What all calls of the job used, in the words of chat completions."""
    used = done["usage"]
    prompt, completion = used["input_tokens"], used["output_tokens"]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": used["cached_tokens"]},
        "completion_tokens_details": {"reasoning_tokens": used["reasoning_tokens"]},
    }


@dataclass(frozen=True, slots=True)
class Shape:
    """What all chunks of one completion have in common. `created` is in seconds since the epoch; `with_usage`: a
    stream's last chunk holds the usage; `heading` stands above the answer."""

    job_id: str
    model: str
    created: int
    with_usage: bool = False
    heading: str = ""

    def completion(self, done: Mapping[str, Any]) -> dict[str, Any]:
        """The whole answer of a job that has one."""
        message = {"role": "assistant", "content": self.heading + str(done["answer"] or ""), "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": FINISH[done["status"]]}
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage_of(done), **self._account(done)}

    def chunk(self, delta: Mapping[str, Any], finish_reason: str | None = None, **more: Any) -> dict[str, Any]:
        """One chunk of a stream."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self.with_usage else {}
        return {**self._head("chat.completion.chunk"), "choices": [choice], **usage, **more}

    def last_chunks(self, done: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The end of a stream: why it ends, and the usage where it was asked for."""
        yield self.chunk({}, FINISH[done["status"]], **self._account(done))
        if self.with_usage:
            yield {**self._head("chat.completion.chunk"), "choices": [], "usage": usage_of(done)}

    def _head(self, kind: str) -> dict[str, Any]:
        name = f"chatcmpl-{self.job_id.removeprefix('job_')}"
        return {"id": name, "object": kind, "created": self.created, "model": self.model}

    def _account(self, done: Mapping[str, Any]) -> dict[str, Any]:
        """What OpenAI's shape has no place for, under this service's own name."""
        usage = done["usage"]
        told = {"job": self.job_id, "status": done["status"], "calls": usage["calls"], "cost_usd": usage["cost_usd"]}
        return {"dagwright": {**told, "partial": usage["partial"]}}
