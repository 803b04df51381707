"""Settings: where values come from, and what is said of wrong ones."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from executor.settings import ALIASES, MASK, data_folder, describe, load_settings, read_environment, unknown_variables
from registry.errors import ConfigError


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults(tmp_path: Path) -> None:
    settings = load_settings({"HOME": "/h"}, cwd=tmp_path)
    assert (settings.max_concurrency, settings.step_timeout, settings.step_retries) == (5, 600, 0)
    assert (settings.max_iterations, settings.cycle_detection_threshold, settings.completion_check_min_tools) == (
        50,
        3,
        3,
    )
    assert (settings.self_reflection_interval, settings.max_replan_rounds, settings.replan_stop_confidence) == (
        6,
        3,
        0.8,
    )
    assert (settings.structured_context_multiplier, settings.max_steps, settings.answer_mode) == (3, 64, "synthesis")
    assert (settings.llm_tries, settings.llm_wait_cap, settings.llm_total_wait) == (6, 60, 300)
    assert (settings.llm_context_size, settings.workspace, settings.fetch_allow) == (None, None, ())
    assert settings.data_dir == data_folder({"HOME": "/h"})


def test_they_are_frozen_and_read_nothing_by_themselves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DAGWRIGHT_MAX_CONCURRENCY", "9")
    settings = load_settings({"HOME": "/h"}, cwd=tmp_path)
    assert settings.max_concurrency == 5
    assert type(settings)().max_concurrency == 5
    with pytest.raises(ValidationError):
        settings.max_concurrency = 1  # type: ignore[misc]
    assert load_settings(cwd=tmp_path).max_concurrency == 9


VALUES: dict[str, tuple[str, Any]] = {
    "max_concurrency": ("7", 7),
    "cycle_detection_threshold": ("4", 4),
    "completion_check_min_tools": ("0", 0),
    "max_replan_rounds": ("1", 1),
    "replan_stop_confidence": ("0.5", 0.5),
    "structured_context_multiplier": ("2", 2),
    "citation_verification": ("true", True),
    "llm_context_size": ("32000", 32_000),
    "llm_max_output_tokens": ("4000", 4_000),
    "database_url": ("postgresql://h/d", SecretStr("postgresql://h/d")),
}


@pytest.mark.parametrize("name", ALIASES)
def test_the_other_names_work_and_our_own_go_first(name: str, tmp_path: Path) -> None:
    text, value = VALUES[name]
    alias = ALIASES[name]
    settings = load_settings({"HOME": "/h", alias: text}, cwd=tmp_path)
    assert getattr(settings, name) == value
    assert settings.origins[name] == alias
    assert getattr(load_settings({"HOME": "/h"}, cwd=tmp_path), name) != value
    both = {"HOME": "/h", alias: "nonsense", f"DAGWRIGHT_{name.upper()}": text}
    assert getattr(load_settings(both, cwd=tmp_path), name) == value


def test_environment_over_dotenv_over_toml(tmp_path: Path) -> None:
    write(tmp_path, "dagwright.toml", "max_concurrency = 2\nmax_steps = 3\nmax_iterations = 4\nstep_timeout = 1.5\n")
    write(tmp_path, ".env", "MAX_CONCURRENCY=20\nDAGWRIGHT_MAX_STEPS=30\nOPENAI_API_KEY=sk-1\n")
    settings = load_settings({"HOME": "/h", "DAGWRIGHT_MAX_CONCURRENCY": "200"}, cwd=tmp_path)
    assert (settings.max_concurrency, settings.max_steps, settings.max_iterations) == (200, 30, 4)
    assert settings.step_timeout == 1.5
    rows = {row.name: (row.value, row.origin) for row in describe(settings)}
    assert rows["max_concurrency"] == ("200", "DAGWRIGHT_MAX_CONCURRENCY")
    assert rows["max_steps"] == ("30", "DAGWRIGHT_MAX_STEPS in .env")
    assert rows["max_iterations"] == ("4", str(tmp_path / "dagwright.toml"))
    assert rows["router"] == ("true", "default")
    given = load_settings({"HOME": "/h"}, cwd=tmp_path, given={"max_steps": 9})
    assert (given.max_steps, given.origins["max_steps"]) == (9, "the command")
    assert read_environment({"HOME": "/h"}, tmp_path)["OPENAI_API_KEY"] == "sk-1"
    assert read_environment({"OPENAI_API_KEY": "sk-2"}, tmp_path)["OPENAI_API_KEY"] == "sk-2"


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    assert load_settings({"HOME": "/h", "MAX_CONCURRENCY": " "}, cwd=tmp_path).max_concurrency == 5


def test_the_file_is_looked_for_like_the_models(tmp_path: Path) -> None:
    users = tmp_path / "config" / "dagwright"
    users.mkdir(parents=True)
    write(users, "dagwright.toml", "max_steps = 1")
    named = write(tmp_path, "named.toml", "max_steps = 2")
    env = {"HOME": "/h", "XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert load_settings(env, cwd=tmp_path).max_steps == 1
    assert load_settings({**env, "DAGWRIGHT_SETTINGS": str(named)}, cwd=tmp_path).max_steps == 2
    assert load_settings(env, named, cwd=tmp_path).max_steps == 2
    with pytest.raises(ConfigError, match="no such file"):
        load_settings(env, "nowhere.toml", cwd=tmp_path)


@pytest.mark.parametrize(
    ("variable", "value", "right"),
    [
        ("MAX_CONCURRENCY", "0", "a whole number, at least 1"),
        ("MAX_CONCURRENCY", "many", "a whole number, at least 1"),
        ("DAGWRIGHT_STEP_TIMEOUT", "inf", "a number, more than 0"),
        ("DAG_REPLAN_STOP_CONFIDENCE", "1.5", "a number, at least 0 and at most 1"),
        ("DAGWRIGHT_ROUTER", "maybe", "true or false"),
        ("DAGWRIGHT_ANSWER_MODE", "loud", "one of synthesis, direct"),
        ("DAGWRIGHT_LOG_LEVEL", "chatty", "one of DEBUG, INFO, WARNING, ERROR"),
        ("DAGWRIGHT_FETCH_ALLOW", "10.0.0.1", "a list of host:port"),
        ("DAGWRIGHT_FETCH_ALLOW", "h:99999", "a list of host:port"),
        ("LLM_CONTEXT_SIZE", "32k", "a whole number, at least 1"),
    ],
)
def test_a_wrong_value_is_told_with_its_variable_and_what_is_right(
    variable: str, value: str, right: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings({"HOME": "/h", variable: value}, cwd=tmp_path)
    assert str(caught.value) == f"{variable} = {value!r}: must be {right}"


def test_all_wrong_values_are_told_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, "dagwright.toml", "max_steps = true\nfetch_allow = ['h:x']\n")
    write(tmp_path, ".env", "DAGWRIGHT_STEP_RETRIES=-1\n")
    with pytest.raises(ConfigError) as caught:
        load_settings({"HOME": "/h"}, cwd=tmp_path)
    assert sorted(str(caught.value).splitlines()) == sorted(
        [
            "DAGWRIGHT_STEP_RETRIES in .env = '-1': must be a whole number, at least 0",
            f"{path}: fetch_allow = ['h:x']: must be a list of host:port",
            f"{path}: max_steps = true: must be a whole number, at least 1",
        ]
    )


def test_unknown_names_are_told_with_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path, "dagwright.toml", "max_concurency = 2")
    with pytest.raises(ConfigError, match=r"unknown key 'max_concurency': did you mean 'max_concurrency'\?") as caught:
        load_settings({"HOME": "/h"}, cwd=tmp_path)
    assert str(path) in str(caught.value)
    path.unlink()
    with pytest.raises(ConfigError, match="no setting 'max_stepps': did you mean 'max_steps'"):
        load_settings({"HOME": "/h"}, cwd=tmp_path, given={"max_stepps": 1})
    env = {"DAGWRIGHT_MAX_CONCURENCY": "1", "DAGWRIGHT_MODEL": "m", "DAGWRIGHT_MAX_STEPS": "1", "MAX_STEPS": "1"}
    assert unknown_variables(env) == (
        "DAGWRIGHT_MAX_CONCURENCY is set, but nothing reads it: did you mean 'DAGWRIGHT_MAX_CONCURRENCY'?",
    )


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    secret = "postgresql://me:hunter2@db/x"
    env = {"HOME": "/h", "DAGWRIGHT_DATABASE_URL": secret, "OPENAI_API_KEY": "sk-hunter2"}
    settings = load_settings(env, cwd=tmp_path)
    assert settings.database_url is not None
    assert settings.database_url.get_secret_value() == secret
    rows = describe(settings, env)
    assert ("database_url", MASK, "DAGWRIGHT_DATABASE_URL") in rows
    assert ("OPENAI_API_KEY", MASK, "environment") in rows
    assert "hunter2" not in repr(rows) + repr(settings) + str(settings)
    with pytest.raises(ConfigError) as caught:
        load_settings({"HOME": "/h"}, cwd=tmp_path, given={"database_url": ["hunter2"]})
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_data_goes_where_the_platform_says() -> None:
    assert data_folder({"HOME": "/h"}, "linux") == Path("/h/.local/share/dagwright")
    assert data_folder({"HOME": "/h", "XDG_DATA_HOME": "/d"}, "linux") == Path("/d/dagwright")
    assert data_folder({"HOME": "/h"}, "darwin") == Path("/h/Library/Application Support/dagwright")
    assert data_folder({"HOME": "/h", "LOCALAPPDATA": "/l"}, "win32") == Path("/l/dagwright")
