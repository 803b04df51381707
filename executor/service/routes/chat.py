"""The planner as a model: any client of OpenAI's chat completions can use it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response

from executor.service.chat.access import ChatCaller
from executor.service.chat.answer import Piece, Shape
from executor.service.chat.errors import RESPONSES, refused, response_of
from executor.service.chat.request import NAME, ChatRequest, chosen, model_names, order_of
from executor.service.chat.stream import ChatStream, ClientLeftError, JobFollower, while_there
from executor.service.orders import ordered
from executor.service.problems import problem_of
from executor.service.state import jobs, offer, reply, settings
from executor.service.talk import create
from executor.store.database import database_errors
from registry.errors import DagwrightError

CREATED = 1_795_996_800
"""When these models came to be, 2026-11-30, in seconds since the epoch: clients sort by it."""
JOB_HEADER = "X-Dagwright-Job"
"""Names the job that answers a request."""


class ChatRoute(APIRoute):
    """A route whose errors have OpenAI's shape, those of its dependencies too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's handler within what tells its errors."""
        handler = super().get_route_handler()
        told: tuple[type[Exception], ...] = (DagwrightError, HTTPException, RequestValidationError, *database_errors())

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except told as error:
                return response_of(problem_of(error))

        return handle


router = APIRouter(prefix="/v1", tags=["chat"], route_class=ChatRoute, responses=RESPONSES)
COMPLETION: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The completion, as OpenAI tells it; a stream of its chunks where `stream` is true",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
}


@router.get("/models", summary="dagwright as models for chat clients")
async def list_models(request: Request, _: ChatCaller) -> Response:
    """`dagwright` chooses between a plan and a single agent, `dagwright:dag` plans, `dagwright:react` lets one agent
    work; `dagwright/NAME` does it with one of the registered models alone."""
    names = model_names(offer(request).models.names())
    return reply({"object": "list", "data": [_model(name) for name in names]})


@router.get("/models/{name:path}", summary="One of the models")
async def get_model(name: str, request: Request, _: ChatCaller) -> Response:
    """The model of this name."""
    chosen(name, offer(request).models.names())
    return reply(_model(name))


@router.post("/chat/completions", summary="A chat completion, made by a job", responses=COMPLETION)
async def complete(body: ChatRequest, request: Request, who: ChatCaller) -> Response:
    """The last message of the user is the goal, earlier ones its history. The job is cancelled when the client leaves.

    With `stream` progress comes as `reasoning_content` and the answer as `content`. Of OpenAI's other fields those
    that would change what the answer is are refused by name, the others are accepted and change nothing.
    """
    if body.stream_options is not None and not body.stream:
        raise refused("stream_options are for streams: set stream to true", "stream_options", "invalid_value")
    job = ordered(order_of(body, offer(request).models.names()), offer(request), settings(request))
    row = await create(request, who, job, None, b"")
    with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    notice = offer(request).notice
    heading = f"[{notice}]\n\n" if notice else ""
    shape = Shape(row["id"], body.model, int(row["created_at"].timestamp()), with_usage, heading)
    follower = JobFollower(request.app.state.hub, jobs(request), who.tenant, shape)
    headers = {JOB_HEADER: row["id"]}
    if body.stream:
        return ChatStream(follower, shape, headers)
    try:
        done = await while_there(request.receive, partial(follower.follow, _unheard), follower.cancel)
    except ClientLeftError:
        return Response(status_code=499)
    return reply(shape.completion(done), headers=headers)


async def _unheard(pieces: list[Piece]) -> None:
    """Who waits for the whole answer reads no progress."""


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": CREATED, "owned_by": NAME}
