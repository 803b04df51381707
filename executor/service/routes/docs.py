"""The API's description as a page, made of files of our own: nothing of it comes from another host."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

router = APIRouter(include_in_schema=False)

TYPES = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@router.get("/docs")
async def get_docs() -> Response:
    """The page."""
    return _file("docs.html")


@router.get("/docs/docs.css")
async def get_style() -> Response:
    """Its style."""
    return _file("docs.css")


@router.get("/docs/docs.js")
async def get_script() -> Response:
    """Its script."""
    return _file("docs.js")


def _file(name: str) -> Response:
    return Response(_content(name), headers={**HEADERS, "Content-Type": TYPES[name.rpartition(".")[2]]})


@cache
def _content(name: str) -> bytes:
    return files("executor.service").joinpath("pages", name).read_bytes()
