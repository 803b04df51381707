"""What the README shows is true: its example is the file in `examples/`, runs as it stands, and its commands exist."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from tests.fakes import ProviderFake, brain
from tests.support.command import environment, openai

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "library.py"


def test_the_example_in_the_readme_is_the_file() -> None:
    block = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert block is not None
    assert EXAMPLE.read_text(encoding="utf-8").endswith(block[1])


async def test_the_example_runs_as_it_stands(tmp_path: Path) -> None:
    async with ProviderFake(brain) as fake:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(EXAMPLE),
            cwd=tmp_path,
            env={**environment(tmp_path, **openai(fake)), "PYTHONPATH": str(ROOT)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, err.decode()
        assert out.decode().startswith("completed ")
        assert "s4 completed" in out.decode()
        assert not fake.refusals


def test_make_targets_and_files_that_the_readme_names_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`make ([a-z-]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for path in set(re.findall(r"^\| `([^`, ]+)` \|", README, re.MULTILINE)):
        assert (ROOT / path).exists(), path
