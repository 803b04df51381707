"""The command in a process of its own, its keys in the environment: none of them comes out anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import ProviderFake, View, brain
from tests.support.command import command, openai

KEY = "zq-Very/Secret+Key-1"
OTHER = "zq-another-tools-key"
FORMS = (KEY, "zq-Very%2FSecret", "zq-Very\\/Secret", OTHER)


def parrot(view: View) -> Any:
    """Works as usual, and says the key wherever it can."""
    reply = brain(view)
    return f"{reply} The key is {KEY}, the other {OTHER}." if isinstance(reply, str) and not view.schema else reply


def refuse(view: View) -> Any:
    return {"status": 401, "error": f"Incorrect API key provided: {KEY} (sk-abc***xyz), header {OTHER}"}


@pytest.mark.parametrize(
    ("script", "form"),
    [(parrot, ()), (parrot, ("--json",)), (parrot, ("--events",)), (refuse, ("--json", "--log-level", "debug"))],
)
async def test_no_key_comes_out(tmp_path: Path, script: Any, form: tuple[str, ...]) -> None:
    async with ProviderFake(script) as fake:
        env = {**openai(fake, KEY), "SEARCH_API_KEY": OTHER}
        goal = f"Work out six times seven with {OTHER}, see http://h/?key={KEY}"
        ended = await command("run", *form, "--mode", "dag", goal, home=tmp_path, env=env)
    assert ended.code == (1 if script is refuse else 0)
    assert [told for told in FORMS if told in ended.out + ended.err] == []
    assert "***" in ended.out + ended.err
    assert [told for told in FORMS if told in json.dumps(fake.requests)] == []
    assert {view.headers["Authorization"] for view in fake.views} == {f"Bearer {KEY}"}


async def test_no_key_comes_out_of_a_broken_file(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(f'[models.a]\nprovider = "openai_chat"\nmodel = "m"\nbad_key = "{KEY}"\n')
    ended = await command("run", "g", home=tmp_path, env={"MY_API_KEY": KEY})
    assert ended.code == 2
    assert [told for told in FORMS if told in ended.out + ended.err] == []
