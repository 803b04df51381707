"""The arm to compare with: a plain loop with a good prompt. No constraint, no repair; json.loads and nothing else."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from typing import Any

from common import MAX_TURNS, PEOPLE_AND_CITIES, PLAN_TOKENS, TURN_TOKENS, Record, calculator, lookup, strict_plan

PLAN_SYSTEM = """\
You are a planner. Split the user's goal into 2 to 6 small steps that form a DAG.
Answer with one JSON object only, no other text and no code fence:
{"steps":[{"id":"s1","task":"...","dependencies":[],"tool_hint":"lookup","model_hint":null}, ...]}.
"dependencies" lists the ids of earlier steps whose result the step needs; steps that need nothing have [].
"tool_hint" is one of: "calculator" (arithmetic), "lookup" (facts about people and cities), null (thinking or writing).
"model_hint" is "fast" for easy steps, null for ordinary ones, "reasoning" for hard ones."""

REACT_SYSTEM = f"""\
Answer the question step by step with tools. Each turn is one JSON object only, no other text and no code fence.
To look up facts about {PEOPLE_AND_CITIES}:
{{"thought":"...","action":"lookup","input":"one name"}}
To evaluate arithmetic:
{{"thought":"...","action":"calculator","input":"an expression made of numbers"}}
To end, with the full answer to the question:
{{"thought":"...","action":"final","input":"..."}}
After a lookup or a calculation I reply with Observation."""

REACT_ONE_LINE = f"""\
Answer the question step by step. Tools: calculator(expression) evaluates arithmetic; \
lookup(name) gives facts about {PEOPLE_AND_CITIES}.
Each turn answer with one JSON object only, no other text and no code fence: \
{{"thought":"...","action":"calculator|lookup|final","input":"..."}}.
The input is an arithmetic expression, one name, or (for final) the full answer to the question. \
I then reply with Observation."""

PROMPTS = {"bare": REACT_SYSTEM, "bare-one-line": REACT_ONE_LINE, "bare-tolerant": REACT_SYSTEM}
"""Two wordings of the loop's prompt, so that the comparison does not hang on one; and the first one again with the
reading that one adds next: the first JSON object of the reply, whatever stands around it."""

TOOLS = {"calculator": calculator, "lookup": lookup}


class Model:
    """One request at a time, plain HTTP; a reply that is known already isn't asked for again."""

    def __init__(self, base_url: str, record: Record) -> None:
        self.base_url, self.record = base_url, record

    def reply(self, messages: list[dict[str, str]], max_tokens: int) -> str:
        """The text of the model's turn."""
        body = {"model": "local", "messages": messages, "temperature": 0, "max_tokens": max_tokens}
        if known := self.record.known(body):
            return str(known["raw"])
        started = time.monotonic()
        request = urllib.request.Request(
            self.base_url + "/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=900) as response:
            data = json.load(response)
        choice = data["choices"][0]
        line = self.record.keep(
            body,
            raw=choice["message"]["content"] or "",
            finish=choice["finish_reason"],
            usage=data.get("usage"),
            seconds=round(time.monotonic() - started, 1),
        )
        return str(line["raw"])


def plan(goal: dict[str, Any], model: Model) -> dict[str, Any]:
    """One reply, read strictly."""
    messages = [{"role": "system", "content": PLAN_SYSTEM}, {"role": "user", "content": "Goal: " + goal["goal"]}]
    raw = model.reply(messages, PLAN_TOKENS)
    try:
        error = strict_plan(json.loads(raw))
    except ValueError:
        error = "not JSON"
    return {"raw": raw, "valid": error is None, "error": error, "valid_unfenced": _valid_unfenced(raw)}


def _valid_unfenced(raw: str) -> bool:
    """Whether the plan would be valid if the loop took one code fence off."""
    try:
        return strict_plan(json.loads(re.sub(r"\A```(?:json)?\n|\n```\Z", "", raw.strip()))) is None
    except ValueError:
        return False


def _first_object(raw: str) -> Any:
    """The first JSON object in a text."""
    return json.JSONDecoder().raw_decode(raw, raw.index("{"))[0]


def question(row: dict[str, Any], model: Model) -> dict[str, Any]:
    """The loop: a turn that can't be read ends the run."""
    messages = [
        {"role": "system", "content": PROMPTS[model.record.arm]},
        {"role": "user", "content": "Question: " + row["question"]},
    ]
    tolerant = model.record.arm == "bare-tolerant"
    for _ in range(MAX_TURNS):
        raw = model.reply(messages, TURN_TOKENS)
        try:
            turn = _first_object(raw) if tolerant else json.loads(raw)
            action, text = turn["action"], str(turn["input"])
        except (ValueError, KeyError, TypeError):
            return {"answer": None, "error": "unreadable turn", "raw": raw}
        if action == "final":
            return {"answer": text, "error": None}
        try:
            observation = TOOLS[action](text)
        except (KeyError, TypeError):
            observation = f"Error: there is no action {action!r}"
        except (ValueError, ZeroDivisionError) as error:
            observation = f"Error: {error}"
        messages += [
            {"role": "assistant", "content": json.dumps(turn, ensure_ascii=False) if tolerant else raw},
            {"role": "user", "content": "Observation: " + observation},
        ]
    return {"answer": None, "error": "turn limit"}
