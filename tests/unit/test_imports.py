"""Which module imports which, and what importing does: nothing but define names."""

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("registry", "agent", "planner", "executor")
"""From left to right: a room imports from those to its left."""
HEAVY = {
    "aiohttp",
    "anthropic",
    "ddgs",
    "genai_prices",
    "jsonschema",
    "mcp",
    "networkx",
    "openai",
    "pydantic_monty",
    "opentelemetry",
    "prometheus_client",
    "pydantic_settings",
    "rich",
    "trafilatura",
}
"""Packages that are imported on first use."""
BY_OTHERS = {"opentelemetry", "rich"}
"""Of these: what structlog (rich) and FastAPI (opentelemetry) import where it is installed."""
MAY_IMPORT = {"executor.settings_model": {"pydantic_settings"}, "executor.workers.engine_queue": {"pydantic_settings"}}
"""Modules that exist to hold what needs a heavy package; they are imported on first use themselves."""


def modules() -> dict[str, Path]:
    found = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(name: str, tree: ast.AST, *, typing: bool) -> Iterator[str]:
    """The modules of ours that a module imports anywhere in it; `typing`: those for type checkers only, too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in ROOMS)
        elif isinstance(node, ast.ImportFrom):
            yield from imported_from(name, node)
        elif typing or not is_type_checking(node):
            yield from imports(name, node, typing=typing)
        else:
            assert isinstance(node, ast.If)
            for other in node.orelse:
                yield from imports(name, ast.Module([other], []), typing=typing)


def imported_from(name: str, node: ast.ImportFrom) -> Iterator[str]:
    base = node.module or ""
    if node.level:
        is_package = MODULES[name].name == "__init__.py"
        parts = name.split(".")
        parents = parts[: len(parts) - node.level + (1 if is_package else 0)]
        base = ".".join([*parents, *([base] if base else [])])
    if base.split(".")[0] not in ROOMS:
        return
    for alias in node.names:
        inner = f"{base}.{alias.name}"
        yield inner if inner in MODULES else base


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


@cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text("utf-8"))


def edges(*, typing: bool) -> dict[str, set[str]]:
    return {name: set(imports(name, tree_of(name), typing=typing)) - {name} for name in MODULES}


def back_edges(graph: dict[str, set[str]]) -> list[str]:
    place = {room: number for number, room in enumerate(ROOMS)}
    return sorted(
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in others
        if place[other.split(".")[0]] > place[name.split(".")[0]]
    )


def test_rooms_import_only_from_their_left() -> None:
    assert back_edges(edges(typing=True)) == []


def test_modules_do_not_import_each_other_in_circles() -> None:
    try:
        TopologicalSorter(edges(typing=False)).prepare()
    except CycleError as error:
        pytest.fail(f"cycle: {' <- '.join(error.args[1])}")


def test_all_imports_of_ours_exist() -> None:
    missing = [f"{a} imports {b}" for a, others in edges(typing=True).items() for b in others if b not in MODULES]
    assert missing == []


def test_these_tests_see_back_edges_and_cycles() -> None:
    assert back_edges({"registry.llm": {"executor"}, "agent": {"registry.llm"}}) == ["registry.llm imports executor"]
    source = "from ..errors import X\nfrom . import wire\ndef f():\n    import planner.plan\n"
    tree = ast.parse(source + "if TYPE_CHECKING:\n    from executor.job import Job\n")
    name = "registry.adapters.base"
    assert list(imports(name, tree, typing=False)) == ["registry.errors", "registry.adapters.wire", "planner.plan"]
    assert "executor" in {found.split(".")[0] for found in imports(name, tree, typing=True)}


def at_import(tree: ast.AST) -> Iterator[str]:
    """The packages that a module imports when it is imported, rather than in a function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "" if node.level else (node.module or "").split(".")[0]
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not is_type_checking(node):
            yield from at_import(node)


def test_heavy_packages_are_imported_on_first_use() -> None:
    found = [
        f"{name} imports {package}"
        for name in MODULES
        for package in sorted(set(at_import(tree_of(name))) & HEAVY - MAY_IMPORT.get(name, set()))
    ]
    assert found == []
    assert list(at_import(ast.parse("try:\n    import rich.text\nexcept E:\n    def f(): import openai"))) == ["rich"]


WATCH = """
    import contextlib, importlib, io, json, os, sys, sysconfig

    root, names, heavy = sys.argv[1], json.loads(sys.argv[2]), set(json.loads(sys.argv[3]))
    sys.path.insert(0, root)
    stdlib = sysconfig.get_paths()["stdlib"]
    rooms = tuple(os.path.join(root, room) + os.sep for room in ("registry", "agent", "planner", "executor"))
    done, current = [], ""

    def ours():
        '''Whether one of our modules does this now, and not the import of another module.'''
        frame = sys._getframe(2)
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith("<frozen importlib._bootstrap"):
                return False
            if not file.startswith(("<frozen", stdlib)) or "site-packages" in file:
                return file.startswith(rooms)
            frame = frame.f_back
        return False

    class Watched(type(os.environ)):
        def __getitem__(self, key):
            if ours():
                done.append(f"{current} reads the variable {key}")
            return super().__getitem__(key)

    old = os.environ
    os.environ = Watched(old._data, old.encodekey, old.decodekey, old.encodevalue, old.decodevalue)

    def audit(event, args):
        if event in ("open", "socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.listdir", "os.scandir"):
            if ours():
                done.append(f"{current} does {event}: {args[0]!r}")

    sys.addaudithook(audit)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        for current, allowed in names:
            before = set(sys.modules)
            importlib.import_module(current)
            new = {name.partition(".")[0] for name in set(sys.modules) - before} & heavy
            done += [f"{current} imports {name}" for name in sorted(new - set(allowed))]
            if out.getvalue() or err.getvalue():
                done.append(f"{current} writes {out.getvalue() + err.getvalue()!r}")
                out.truncate(0), err.truncate(0)
    print(json.dumps(done))
"""


def watched(root: Path, names: list[tuple[str, list[str]]]) -> list[str]:
    """What importing these modules, one after the other in a fresh process, does beside defining names."""
    command = [
        sys.executable,
        "-W",
        "error",
        "-c",
        dedent(WATCH),
        str(root),
        json.dumps(names),
        json.dumps([*(HEAVY - BY_OTHERS)]),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    found: list[str] = json.loads(ended.stdout)
    return found


def test_importing_does_nothing() -> None:
    names = sorted(MODULES, key=lambda name: (name in MAY_IMPORT, name))
    assert watched(ROOT, [(name, [*MAY_IMPORT.get(name, ())]) for name in names]) == []


def test_this_test_sees_what_importing_does(tmp_path: Path) -> None:
    (tmp_path / "registry").mkdir()
    (tmp_path / "registry" / "__init__.py").write_text("")
    bad = {
        "env": "import os\nA = os.environ.get('A_VARIABLE')",
        "getenv": "import os\nA = os.getenv('HOME')",
        "file": "from pathlib import Path\nA = Path(__file__).read_text()",
        "speaks": "print('hello')",
        "heavy": "import networkx",
        "good": "import os\nfrom registry import speaks\ndef f():\n    return os.environ['A']",
    }
    for name, text in bad.items():
        (tmp_path / "registry" / f"{name}.py").write_text(text)
    found = watched(tmp_path, [(f"registry.{name}", []) for name in bad])
    assert [line.partition(":")[0] for line in found] == [
        "registry.env reads the variable A_VARIABLE",
        "registry.getenv reads the variable HOME",
        "registry.file does open",
        "registry.speaks writes 'hello\\n'",
        "registry.heavy imports networkx",
    ]


BASE = "import asyncio, structlog, pydantic\nclass M(pydantic.BaseModel):\n    a: int"


def seconds(code: str) -> float:
    timed = f"import time; t = time.perf_counter()\n{code}\nprint(time.perf_counter() - t)"
    runs = [subprocess.run([sys.executable, "-c", timed], capture_output=True, check=True, cwd=ROOT) for _ in range(3)]
    return min(float(run.stdout) for run in runs)


def test_a_bare_import_is_cheap() -> None:
    rooms = [room for room in ROOMS if room in MODULES]
    # the aim is 1.3 times; shared machines need room
    assert seconds(f"import {', '.join(rooms)}") <= 5 * 1.3 * seconds(BASE)


@pytest.mark.parametrize("room", [room for room in ROOMS if room in MODULES])
def test_public_names_are_there(room: str) -> None:
    module = importlib.import_module(room)
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for name in module.__all__:
        assert getattr(module, name) is not None
        assert name in dir(module)


def test_the_names_that_others_rely_on() -> None:
    names = (
        "Message ToolCall Usage LLMResult StreamChunk LLM Abilities ModelRegistry OpenAIChatLLM OpenAIResponsesLLM "
        "AnthropicLLM Tool ToolRegistry tool"
    )
    assert set(names.split()) <= set(importlib.import_module("registry").__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        importlib.import_module("registry").Nothing  # noqa: B018
