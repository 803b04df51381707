"""The page: its files, and what tools made, shown without a way to run anything."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Request
from starlette.responses import Response

from executor.service.problems import not_found
from executor.service.state import database
from executor.service.talk import OwnJob
from executor.store.database import cleaned

from .results import LONGEST_NAME

router = APIRouter(include_in_schema=False)

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FRAMED = ("text/html", "image/svg+xml")
"""Types of artifacts that the page shows in a frame of an origin of its own, without scripts."""
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "frame-src 'self'",
        "font-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
FRAME_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'self'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
FOR_EVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class Files:
    """The page's files by path, and one version of them all: a hash over what they hold."""

    by_path: dict[str, tuple[bytes, str]]
    version: str


@router.get("/")
async def index(request: Request) -> Response:
    """The page. What it shows it asks the API for, which asks for a key."""
    page = page_files()
    tag = f'"{page.version}"'
    headers = {**HEADERS, "Cache-Control": "no-cache", "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(None, 304, headers=headers)
    body, kind = page.by_path["index.html"]
    scripts = [path for path in page.by_path if path.endswith(".mjs")]
    preload = "\n".join(f'<link rel="modulepreload" href="/page/{page.version}/{path}">' for path in scripts)
    text = body.replace(b"{{version}}", page.version.encode()).replace(b"{{preload}}", preload.encode())
    return Response(text, headers={**headers, "Content-Type": kind})


@router.get("/page/{version}/{path:path}")
async def file(version: str, path: str) -> Response:
    """A file of the page. Of another version than this server's (one of two is being replaced) ours is given, and
    nothing keeps it."""
    page = page_files()
    found = page.by_path.get(path)
    if found is None or path == "index.html":
        raise not_found("file", path[:100])
    kept = FOR_EVER if version == page.version else "no-store"
    return Response(found[0], headers={**HEADERS, "Cache-Control": kept, "Content-Type": found[1]})


@router.get("/view/{job_id}/{name}")
async def framed(request: Request, job: OwnJob, name: str) -> Response:
    """An HTML or SVG artifact for a frame: the sandbox gives it an origin of its own, so that it reads nothing of
    ours; it runs no script and loads nothing."""
    row = None
    if len(name) <= LONGEST_NAME:
        row = await database(request).row("jobs.artifact", job["id"], job["tenant"], cleaned(name))
    kind = "" if row is None else row["mime"].partition(";")[0].strip().lower()
    if row is None or kind not in FRAMED:
        raise not_found("artifact to be shown", cleaned(name)[:100])
    headers = {
        **HEADERS,
        "Cache-Control": "private, no-store",
        "Content-Security-Policy": FRAME_POLICY,
        "Content-Type": f"{kind}; charset=utf-8",
    }
    return Response(row["data"], headers=headers)


@cache
def page_files() -> Files:
    """The files as they are installed, read once."""
    found: dict[str, tuple[bytes, str]] = {}
    _collect(files("executor.page"), "", found)
    digest = hashlib.sha256()
    for path, (data, _) in found.items():
        digest.update(f"{path}\0{len(data)}\0".encode() + data)
    return Files(found, digest.hexdigest()[:16])


def _collect(folder: Traversable, path: str, found: dict[str, tuple[bytes, str]]) -> None:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            _collect(entry, f"{path}{entry.name}/", found)
        elif kind := next((kind for end, kind in KINDS.items() if entry.name.endswith(end)), None):
            found[path + entry.name] = entry.read_bytes(), kind
