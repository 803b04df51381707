"""Which models there are: a file's, else the environment's."""

from __future__ import annotations

import os
from collections.abc import Mapping

from .models import ModelRegistry
from .providers import Demo
from .toml_file import find_file


def load_models(
    path: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    demo: Demo | None = None,
) -> ModelRegistry:
    """The models of the first file there is: `path`, `DAGWRIGHT_MODELS`, `models.toml` in `cwd` and in the user's
    configuration folder; without a file, what the environment offers (`ModelRegistry.from_env`).

    Raises ConfigError, NoModelError among them.
    """
    env = os.environ if env is None else env
    found = find_file("models.toml", path, "DAGWRIGHT_MODELS", env=env, cwd=cwd)
    return ModelRegistry.from_toml(found, env=env) if found is not None else ModelRegistry.from_env(env, demo=demo)
