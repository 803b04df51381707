"""The demonstration profile: every key of it takes effect, and what the user says goes before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from executor.demo.profile import Use, adapted, profile
from executor.job_options import JobOptions
from executor.options import RunOptions
from executor.settings import load_settings
from registry.errors import ConfigError
from registry.models import as_registry
from registry.testing import ScriptedLLM
from registry.toolbox import default_tools


def values(use: Use) -> Mapping[str, Any]:
    """All that a profile can change, by the names it uses."""

    def named() -> Iterator[tuple[str, Any]]:
        yield from ((field.name, getattr(use.options, field.name)) for field in fields(JobOptions))
        yield from ((field.name, getattr(use.options.run, field.name)) for field in fields(RunOptions))
        yield from use.options.run.agent.items()
        yield "mode", use.mode
        yield "tools", list(use.tools.names())

    return dict(named())


def test_every_key_takes_effect() -> None:
    plain = values(adapted({}, JobOptions(), default_tools()))
    used = values(adapted(profile(), JobOptions(), default_tools()))
    assert profile()
    for name, value in profile().items():
        assert used[name] == value, name
        assert plain.get(name) != value, f"{name} changes nothing"


def test_a_key_that_nothing_uses_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_stepz, temperature"):
        adapted({"temperature": 0, "mode": "dag", "max_stepz": 3}, JobOptions(), default_tools())


def test_what_the_user_said_stands(tmp_path: Path) -> None:
    settings = load_settings({"HOME": str(tmp_path), "MAX_CONCURRENCY": "7"}, cwd=tmp_path, given={"max_steps": 20})
    used = adapted(profile(), JobOptions.from_settings(settings), default_tools(), said=settings.origins)
    assert (used.options.run.max_concurrency, used.options.max_steps) == (7, 20)
    assert used.options.max_replan_rounds == profile()["max_replan_rounds"]


def test_tools_are_the_named_ones_and_files_where_the_user_named_a_folder(tmp_path: Path) -> None:
    assert adapted(profile(), JobOptions(), default_tools()).tools.names() == ("calculate",)
    named = adapted(profile(), JobOptions(), default_tools(tmp_path)).tools
    assert "read_file" in named
    assert "web_fetch" not in named


def test_the_planner_is_held_to_the_profile() -> None:
    used = adapted(profile(), JobOptions(), default_tools())
    planner = used.options.planner(as_registry(ScriptedLLM([])), used.tools)
    expected = profile()
    assert (planner.max_steps, planner.max_task_chars) == (expected["max_steps"], expected["max_task_chars"])
    assert planner.prompt_name == expected["plan_prompt"]
