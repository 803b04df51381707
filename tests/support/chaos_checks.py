"""What must hold after any number of blows: nothing lost, nothing twice. Each check gives the faults that it finds."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.support.chaos import Blow, World
from tests.support.chaos_process import counted_names
from tests.support.chaos_work import MORE, UNCERTAIN, WORDS, Answered, Work

ONCE = ("record", "send")
"""Tools whose calls must take effect once, whatever happens."""
STRAY = 10.0
"""Seconds that an answer may take to get into a log, on a busy machine."""

LATE = 2.0
"""Seconds within which one that was away notices that others have taken over."""


@dataclass(frozen=True)
class History:
    """A job as the database has it."""

    work: Work
    row: Mapping[str, Any]
    events: Sequence[Mapping[str, Any]]

    def told(self, channel: str) -> Iterator[Mapping[str, Any]]:
        return (event for event in self.events if event["channel"] == channel)

    @property
    def name(self) -> str:
        return f"{self.work.tag} ({self.work.kind}, {self.row['status']})"


@dataclass
class Found:
    """What the checks looked at, and what they found."""

    histories: list[History]
    faults: list[str]
    figures: dict[str, Any]


async def examined(world: World) -> Found:
    """All checks on a world that rests."""
    rows = {row["id"]: row for row in await world.sql("select * from dw_jobs")}
    histories = []
    for work in world.works:
        events = await world.sql("select * from dw_events where job = $1 order by seq", work.job_id)
        histories.append(History(work, rows[work.job_id], events))
    faults = [f"a job nobody knows of: {job_id}" for job_id in set(rows) - {work.job_id for work in world.works}]
    faults += [f"a request of no job: {text}" for text in world.model.strange]
    faults += [f"the provider refused a request: {refusal}" for refusal in world.fake.refusals]
    for history in histories:
        for check in (history_is_whole, end_is_right, no_finished_step_again, calls_are_accounted_for, messages_once):
            faults += [f"{history.name}: {fault}" for fault in check(history)]
        faults += [f"{history.name}: {fault}" for fault in reader_saw_all(world, history)]
    faults += list(effects_once(world, histories))
    faults += list(replies_once(world, histories))
    keep(world, [history for history in histories if any(history.work.tag in fault for fault in faults)])
    return Found(histories, faults, figures(world, histories))


def keep(world: World, histories: Sequence[History]) -> None:
    """Writes histories into the world's folder, for whoever looks for the cause."""
    for history in histories:
        lines = [f"{event['seq']} {event['ts']:.2f} {event['channel']} {event['step_id']} {event['payload']}"
                 for event in history.events]  # fmt: skip
        decided = [str(decision) for decision in world.decisions if decision[0] == history.work.job_id]
        asked = [str(answered) for answered in world.model.book if answered.place[0] == history.work.tag]
        (world.home / f"{history.work.tag}.events").write_text(
            "\n".join([str(dict(history.row)), *lines, *asked, *decided])
        )


def history_is_whole(history: History) -> Iterator[str]:
    """Numbered from 1 without a gap, `done` last and once."""
    seqs = [event["seq"] for event in history.events]
    if seqs != list(range(1, len(seqs) + 1)) or history.row["seq"] != len(seqs):
        yield f"seq {history.row['seq']}, but events {seqs}"
    done = [event["seq"] for event in history.told("done")]
    if done != ([len(seqs)] if history.row["ended_at"] is not None else []):
        yield f"done at {done} of {len(seqs)}"
    if history.row["ended_at"] is not None and history.row["owner"] is not None:
        yield "it has ended and has an owner"


def end_is_right(history: History) -> Iterator[str]:
    """Completed with the known answer; cancelled where that was asked; else short of it for one cause alone."""
    row, work = history.row, history.work
    summary = row["summary"] or {}
    if row["status"] == "completed":
        if summary.get("answer") != work.answer:
            yield f"the answer is {summary.get('answer')!r}"
        if open_uncertain(history):
            yield f"completed with unsettled calls: {open_uncertain(history)}"
    elif row["status"] == "cancelled":
        if not work.cancelled:
            yield "nobody cancelled it"
    elif row["status"] == "needs_decision" and row["ended_at"] is None:
        yield f"it waits although all was decided: {_waiting(history)}"
    elif row["status"] in ("partial", "failed"):
        codes = {step.get("error_code") for step in summary.get("steps", ()) if step["status"] == "failed"}
        codes |= {summary.get("error_code")} if not codes else set()
        if codes != {UNCERTAIN} or not uncertain_keys(history):
            yield f"ended for {codes}: {summary.get('error')}"
    else:
        yield f"not at an end: {row['status']}"


def _waiting(history: History) -> set[str]:
    """Calls that a human is still asked about."""
    last = {event["payload"]["call_id"]: event["payload"]["status"] for event in history.told("approval")}
    return {call_id for call_id, status in last.items() if status in ("waiting", "uncertain")}


def uncertain_keys(history: History) -> set[str]:
    """Calls that were reported as uncertain."""
    return {event["payload"]["key"] for event in history.told("call") if event["payload"]["status"] == "uncertain"}


def open_uncertain(history: History) -> set[str]:
    """Those of them that nobody has settled."""
    settled = {event["payload"]["key"] for event in history.told("call") if event["payload"]["status"] == "settled"}
    return uncertain_keys(history) - settled


def no_finished_step_again(history: History) -> Iterator[str]:
    """Nothing of a step comes after its end, within its plan."""
    ended: dict[str, int] = {}
    begun: Counter[str] = Counter()
    for event in history.events:
        step, payload = event["step_id"], event["payload"]
        if event["channel"] == "plan":
            ended = {name: seq for name, seq in ended.items() if name in payload.get("kept", ())}
            begun.clear()
        elif step in ended and event["channel"] in ("step", "turn", "call", "step_progress"):
            yield f"step {step} ended with event {ended[step]} and goes on with {event['seq']} ({event['channel']})"
        elif event["channel"] == "step_progress":
            if payload["status"] == "running" and begun[step] and not _waited(history, step, event["seq"]):
                yield f"step {step} began again with event {event['seq']}"
            begun[step] += payload["status"] == "running"
            if payload["status"] in ("completed", "failed", "skipped", "cancelled"):
                ended[step] = event["seq"]


def _waited(history: History, step: str, before: int) -> bool:
    """Whether the last that was said of a step's progress is that it waits."""
    told = [event["payload"]["status"] for event in history.told("step_progress")
            if event["step_id"] == step and event["seq"] < before]  # fmt: skip
    return bool(told) and told[-1] != "running"


def calls_are_accounted_for(history: History) -> Iterator[str]:
    """Each call that began has one end, or is said to be uncertain; one that is not to be repeated began once."""
    told: dict[str, list[str]] = defaultdict(list)
    tools: dict[str, str] = {}
    for event in history.told("call"):
        payload = event["payload"]
        told[payload["key"]].append(payload["status"])
        if "tool_name" in payload:
            tools[payload["key"]] = payload["tool_name"]
    over = history.row["status"] in ("cancelled",)
    for key, statuses in told.items():
        counts = Counter(statuses)
        if counts["end"] > 1 or counts["uncertain"] > 1 or counts["settled"] > 1 or counts["rejected"] > 1:
            yield f"call {key}: {statuses}"
        if counts["start"] and not (counts["end"] or counts["uncertain"]) and not over:
            yield f"call {key} of {tools.get(key)} began, and nothing is known of it: {statuses}"
        if counts["start"] > 1 and tools.get(key) in ("record", "send"):
            yield f"call {key} of {tools[key]} began {counts['start']} times"


def messages_once(history: History) -> Iterator[str]:
    """A message that was taken is heard, once."""
    heard = sum(event["payload"].get("content", "").count(MORE) for event in history.told("inject"))
    ended_otherwise = history.row["status"] != "completed"
    if heard > 1 or (history.work.said and not heard and not ended_otherwise):
        yield f"the message was taken: {history.work.said}, and heard {heard} times"


def reader_saw_all(world: World, history: History) -> Iterator[str]:
    """What a reader was sent is the stored history, and the text of it is the answer."""
    reader = world.readers[history.work.tag]
    yield from reader.faults
    public = [event for event in history.events if event["public"]]
    seen = [(event.id, event.channel) for event in reader.events]
    if seen != [(event["seq"], event["channel"]) for event in public]:
        yield f"the reader saw {seen}, stored are {[(event['seq'], event['channel']) for event in public]}"
        return
    for event, stored in zip(reader.events, public, strict=True):
        data = {name: value for name, value in event.data.items() if name not in ("seq", "ts", "step_id")}
        if data != stored["payload"]:
            yield f"event {event.id} was {event.data} for the reader, stored is {stored['payload']}"
    if history.row["status"] == "completed" and reader.answer.text != history.work.answer:
        yield f"the reader's text is {reader.answer.text!r}"


def effects_once(world: World, histories: Sequence[History]) -> Iterator[str]:
    """Each call had its effect once, by its key and by what it meant; nothing that was completed lacks one."""
    by_what: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in world.effects():
        by_what[line["what"]].append(line)
    keys: dict[str, set[str]] = defaultdict(set)
    for what, lines in by_what.items():
        for line in lines:
            keys[line["key"]].add(what)
        if len(lines) > 1 and lines[0]["tool"] in ONCE:
            yield f"{what} happened {len(lines)} times: {lines}"
        if len(lines) > 1 and lines[0]["tool"] == "checked" and not _by_one_that_was_away(world, lines):
            yield f"{what} happened {len(lines)} times: {lines}"
        if len({line["key"] for line in lines}) > 1:
            yield f"{what} happened under several keys: {lines}"
    yield from (f"the key {key} stands for {sorted(whats)}" for key, whats in keys.items() if len(whats) > 1)
    for history in histories:
        if history.row["status"] == "completed":
            needed = [what for tool, what in history.work.calls() if tool in counted_names()]
            missing = [what for what in needed if what not in by_what]
            excused = _settled_as_undone(history)
            if missing and not excused:
                yield f"{history.name}: completed without {missing}"


def _by_one_that_was_away(world: World, lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a worker that others took for dead went on with its call: found undone, it had been made again. Nothing
    can prevent that but a service that knows the key."""
    return len({line["pid"] for line in lines}) == len(lines) <= 1 + world.logged('"ownership_lost"')


def _settled_as_undone(history: History) -> bool:
    return any(
        event["payload"]["status"] == "settled" and not event["payload"].get("took_effect")
        for event in history.told("call")
    )


def replies_once(world: World, histories: Sequence[History]) -> Iterator[str]:
    """No reply that is in a log was asked for again, and none stands in one twice."""
    book = {answered.number: answered for answered in world.model.book}
    recorded: dict[tuple[Any, ...], dict[int, float]] = defaultdict(dict)
    for history in histories:
        within: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for number, event in recorded_replies(history):
            if number not in book:
                yield f"{history.name}: event {event['seq']} holds reply {number}, which was never given"
                continue
            place, payload = book[number].place, event["payload"]
            recorded[place][number] = event["ts"]
            within[*place, payload.get("round", 1), payload["step_attempt"]].append(number)
        yield from _twice(history, within)
    for answered in world.model.book:
        known = recorded[answered.place]
        if answered.number in known:
            continue
        yield from _lost_for_a_reason(world, answered)
        if any(0 <= answered.asked - moment < LATE for moment in world.returns):
            continue
        before = [number for number, moment in known.items() if moment < answered.asked]
        if before and all(moment < answered.asked for moment in known.values()) and not _unheard(world, answered):
            yield f"reply {before[-1]} was recorded and asked for again as {answered.number}: {answered.place}"


def _twice(history: History, within: Mapping[tuple[Any, ...], list[int]]) -> Iterator[str]:
    """Places with more replies than there can be: a step's one, those of the whole job as many as there are rounds."""
    rounds = 1 + sum(event["payload"]["role"] == "planner" for event in history.told("turn"))
    for place, numbers in within.items():
        if len(numbers) > (1 if place[1] == "step" else rounds):
            yield f"{history.name}: replies {numbers} are all recorded for {place}"


def _unheard(world: World, answered: Answered) -> bool:
    """Whether the reply may have come too late for anybody to want it: its job was cancelled, or spoken to."""
    work = world.model.works[answered.place[0]]
    return work.to_cancel or work.extra is not None


def _lost_for_a_reason(world: World, answered: Answered) -> Iterator[str]:
    """A reply that is in no log was under way when a process ended, or when its job was cancelled or spoken to."""
    if _unheard(world, answered):
        return
    until = answered.told + STRAY + (WORDS * world.model.pace if answered.place[1] == "synthesis" else 0)
    if not any(answered.asked - STRAY < moment < until for moment in ends_of_processes(world)):
        yield f"reply {answered.number} was lost while nothing was killed: {answered}"


def ends_of_processes(world: World) -> list[float]:
    """Every moment at which something was killed or ended by itself, seconds since the epoch."""
    found = [blow.at for blow in world.blows]
    for part in world.parts:
        found += [moment for moment, _ in part.ends]
        for line in part.text().splitlines():
            if '"worker_ended"' in line or '"ownership_lost"' in line or '"suspect_ended"' in line:
                found.append(datetime.fromisoformat(json.loads(line)["timestamp"]).timestamp())
    return found


def recorded_replies(history: History) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The numbers of the replies in a log, each with its event."""
    for event in history.told("turn"):
        if event["payload"]["result"] is not None:
            found = re.search(r"reply (\d+)", event["payload"]["result"]["message"].get("reasoning") or "")
            if found is not None:
                yield int(found[1]), event


def figures(world: World, histories: Sequence[History]) -> dict[str, Any]:
    """The run in numbers."""
    recorded = {number for history in histories for number, _ in recorded_replies(history)}
    lost = [answered for answered in world.model.book if answered.number not in recorded]
    return {
        "kills": dict(Counter(blow.kind for blow in world.blows)),
        "running at a kill": [len(blow.running) for blow in world.blows],
        "jobs": dict(Counter(f"{history.row['status']}" for history in histories)),
        "replies paid": len(world.model.book),
        "replies recorded": len(recorded),
        "replies lost": len(lost),
        "requests open at kills": sum(blow.open for blow in world.blows),
        "effects": len(world.effects()),
        "repeated idempotent effects": len(world.effects()) - len({line["key"] for line in world.effects()}),
        "uncertain": sum(len(uncertain_keys(history)) for history in histories),
        "still unsettled": sum(len(open_uncertain(history)) for history in histories),
        "verified by the tool": sum(
            event["payload"]["status"] == "settled" for history in histories for event in history.told("call")
        ),
        "streams resumed": sum(reader.breaks for reader in world.readers.values()),
        "processes ended by 75": world.logged('"ownership_lost"'),
        "seconds to recover": recovery(world.blows),
    }


def recovery(blows: Sequence[Blow]) -> dict[str, Any]:
    """Seconds until all jobs that were running had gone on; and the jobs that took longest."""
    known = sorted((blow for blow in blows if blow.recovered), key=lambda blow: blow.recovered)
    if not known:
        return {}
    middle, worst = known[len(known) // 2], known[-1]
    figures = {"median": round(middle.recovered[0], 1), "worst": round(worst.recovered[0], 1)}
    return {**figures, "worst after": worst.kind, "last of the worst": worst.last}
