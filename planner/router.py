"""One agent or a plan? One cheap call decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from agent.structured import structured_llm_call
from registry.context import calling
from registry.fallback import Told, with_fallback
from registry.llm import LLM
from registry.messages import Message
from registry.models import ModelRegistry
from registry.text import cut_end, cut_middle

from .material import Context, conversation, framed, model_for, prompt
from .schemas import route_schema

Mode = Literal["react", "dag"]
Domain = Literal["legal", "medical", "financial"]

GOAL_CHARS = 8_000
HISTORY_CHARS = 4_000
"""The call is to be cheap: a few thousand characters show what kind of request it is."""


@dataclass(frozen=True, slots=True)
class Route:
    """How a request is worked on. A `domain_hint` asks for the reasoning model and for sources."""

    mode: Mode
    domain_hint: Domain | None = None

    def to_json(self) -> dict[str, Any]:
        """The route as plain JSON data."""
        return asdict(self)


async def route(
    llm: LLM | ModelRegistry, goal: str, history: Context = (), *, on_fallback: Told | None = None
) -> Route:
    """Decides between one agent and a plan. An answer that can't be read means a plan, which is always right. While
    the fast model's provider is out its fallbacks decide, and `on_fallback` hears of it.

    Raises LLMError.
    """
    said = conversation(history)[-HISTORY_CHARS:]
    told = prompt("route_input", goal=cut_middle(goal, GOAL_CHARS), context=framed(said))
    with calling(role="router"):
        call = await with_fallback(
            llm,
            model_for(llm, "fast"),
            lambda model: structured_llm_call(
                model,
                [Message.system(prompt("route")), Message.user(told)],
                route_schema(),
                "choose_mode",
                parse_fn=read_route,
                default_value=Route("dag"),
                validate=False,
            ),
            on_fallback,
        )
    found: Route = call.value
    return found


def read_route(data: Any) -> Route:
    """A route from what the model wrote. Raises ValueError where the mode is unknown; an unknown domain is none."""
    if not isinstance(data, Mapping):
        raise ValueError("a route is an object with mode and domain_hint")
    word = str(data.get("mode")).strip().casefold()
    mode = next((known for known in get_args(Mode) if known == word), None)
    if mode is None:
        raise ValueError(f"mode must be react or dag, not {cut_end(word, 100)!r}")
    domain = str(data.get("domain_hint")).strip().casefold()
    return Route(mode, next((known for known in get_args(Domain) if known == domain), None))
