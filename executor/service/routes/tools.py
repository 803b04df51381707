"""The tools that jobs may use."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from executor.service.schemas import ToolsOut
from executor.service.state import offer, reply
from executor.service.talk import Who

router = APIRouter(tags=["tools"])

FLAGS = ("read_only", "idempotent", "pure", "requires_approval", "network", "filesystem")


@router.get("/v1/tools", summary="The tools that jobs may use", responses={200: {"model": ToolsOut}})
async def list_tools(request: Request, who: Who) -> Response:
    rows = [
        {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "timeout": tool.timeout,
            **{flag: bool(getattr(tool, flag)) for flag in FLAGS},
        }
        for tool in offer(request).tools
    ]
    return reply({"data": rows})
