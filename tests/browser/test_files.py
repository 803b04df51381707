"""The page's files as the service gives them: of our own alone, under a policy that lets nothing else in."""

from __future__ import annotations

import re
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import executor.page
from tests.support.service import Service, running

from .tales import DIAMOND, diamond, plan, tale

ROOT = Path(executor.page.__file__).parent
LONGEST = 300


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    async with running(database_url) as found:
        yield found


async def test_the_policy_lets_nothing_in_but_the_page_itself(service: Service) -> None:
    index = await service.http.get("/")
    assert (index.status_code, index.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = dict(part.split(" ", 1) for part in index.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in str(policy)
    for found in re.findall(r'(?:src|href)="([^"]*)"', index.text):
        assert found.startswith("/page/") or found == "/docs", found
        assert (await service.http.get(found)).status_code == 200
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", index.text)


async def test_files_are_kept_for_ever_and_the_page_is_asked_for(service: Service) -> None:
    index = await service.http.get("/")
    assert index.headers["cache-control"] == "no-cache"
    again = await service.http.get("/", headers={"if-none-match": index.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    version = index.headers["etag"].strip('"')
    for path in sorted(ROOT.rglob("*")):
        if path.suffix not in (".mjs", ".css", ".svg"):
            continue
        name = path.relative_to(ROOT).as_posix()
        found = await service.http.get(f"/page/{version}/{name}")
        assert (found.status_code, found.content) == (200, path.read_bytes())
        assert "immutable" in found.headers["cache-control"]
        other = await service.http.get(f"/page/0123456789abcdef/{name}")
        assert other.headers["cache-control"] == "no-store"
    for path in ("index.html", "__init__.py", "../service/app.py", "js", "", "js/none.mjs"):
        assert (await service.http.get(f"/page/{version}/{path}")).status_code == 404


async def test_a_brief_list_is_light(service: Service) -> None:
    await tale(service, diamond(text="A long answer. " * 1_000), goal="g" * 10_000, metadata={"a": 1})
    await tale(service, diamond(), status=None)
    whole = (await service.http.get("/v1/jobs")).json()["data"]
    reply = await service.http.get("/v1/jobs?brief=true")
    brief = reply.json()["data"]
    assert len(reply.content) < 8_000
    for one, other in zip(brief, whole, strict=True):
        assert one.keys() == other.keys()
        assert (one["plan"], one["steps"], one["answer"], one["goal"]) == (None, [], None, other["goal"][:2_000])
        parts = ("id", "status", "usage", "metadata", "created_at", "ended_at")
        assert [one[name] for name in parts] == [other[name] for name in parts]
    assert len(whole[1]["steps"]) == 4


async def test_the_drawing_of_a_plan_is_part_of_the_api(service: Service) -> None:
    job = await tale(service, [plan(), plan([("e", ("a",))], round=2, kept=("a",))], status=None)
    of = f"/v1/jobs/{job.id}/plan?format=layout"
    last, first = (await service.http.get(of)).json(), (await service.http.get(f"{of}&round=1")).json()
    assert (last["round"], {node["id"] for node in last["nodes"]}) == (2, {"a", "e"})
    assert (first["round"], [node["id"] for node in first["nodes"]]) == (1, [name for name, _ in DIAMOND])
    assert (await service.http.get(f"{of}&round=0")).status_code == 422
    none = await tale(service, status=None)
    assert (await service.http.get(f"/v1/jobs/{none.id}/plan?format=layout")).json()["code"] == "no_plan"


def test_all_of_them_are_installed() -> None:
    """A wheel holds what these patterns name, and nothing else."""
    packaged = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    kept = {path for pattern in (*packaged["*"], *packaged["executor.page"]) for path in ROOT.glob(pattern)}
    assert {path for path in ROOT.rglob("*") if path.suffix in (".mjs", ".css", ".svg", ".html")} <= kept


def test_the_scripts_are_small_and_have_no_way_from_a_text_to_markup() -> None:
    ways = r"(inner|outer|Adjacent)HTML|document\.write|\beval\b|new Function|DOMParser|ContextualFragment|srcdoc"
    scripts = sorted(ROOT.rglob("*.mjs"))
    assert scripts
    for path in scripts:
        text = path.read_text()
        assert len(text.splitlines()) < LONGEST, path
        assert not re.search(ways, text), path
        assert not re.search(r"https?://(?!www\.w3\.org)[a-z]", re.sub(r"//.*", "", text)), path
