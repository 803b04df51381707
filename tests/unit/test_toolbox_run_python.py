"""run_python: what it returns, and everything a hostile program may try."""

import asyncio
import os
import re
import resource
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.tool_run import run_tool
from registry.toolbox import run_python, run_python_tool
from registry.toolbox.run_python import MODULES, OUTPUT_LIMIT, PythonError, Shown

SECRET = "a-value-of-the-environment"


async def run(code: str):
    tool = run_python_tool()
    return await run_tool(tool, tool.check({"code": code}))


def workers() -> set[str]:
    """The processes of this process that run now."""
    found = set()
    for task in os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else ():
        try:
            with open(f"/proc/self/task/{task}/children") as file:
                found |= set(file.read().split())
        except FileNotFoundError:  # the thread has ended meanwhile
            continue
    return found


@pytest.mark.parametrize(
    ("code", "shows"),
    [
        ("1 + 1", "2"),
        ("print('a')\nprint('b', end='')", "a\nb"),
        ("print('a')\n[1, 'x', None]", "a\nValue of the last expression: [1, 'x', None]"),
        ("'two\\nlines'", "two\nlines"),
        ("import json\njson.dumps({'a': [1.5]})", '{"a": [1.5]}'),
        ("import math\nmath.factorial(20)", "2432902008176640000"),
        ("import re\nre.findall(r'\\d+', 'a1b22')", "['1', '22']"),
        ("def f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2)\nf(12)", "144"),
        ("import asyncio\nasync def f():\n    return 3\nawait f()", "3"),
        ("sorted({'b': 1, 'a': 2}.items())", "[('a', 2), ('b', 1)]"),
        ("{}, set(), frozenset(), (), (1,), {1}, frozenset({2})",
         "({}, set(), frozenset(), (), (1,), {1}, frozenset({2}))"),
        ("import collections\ncollections.namedtuple('P', 'x y')(1, [2])", "P(x=1, y=[2])"),
        ("import dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int\nP(1)", "P(x=1)"),
        ("ValueError('a')", "ValueError('a')"),
        ("import decimal\ndecimal.Decimal('1.10')", "Decimal('1.10')"),
        ("10 ** 5000", "(an integer of 16,610 bits)"),
        ("a = []\na.append(a)\na", "['[...]']"),
        ("x = 1", "(nothing was printed, and the last line is no expression with a value)"),
        ("", "(nothing was printed, and the last line is no expression with a value)"),
        ("'\\ud800'", "\ufffd"),
    ],
)  # fmt: skip
async def test_results(code, shows):
    got = await run(code)
    assert (got.text, got.is_error) == (shows, False)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = 1\n1 / 0", 'line 2, in <module>\n    1 / 0'),
        ("def f():\n    return 1 / 0\nf()", "line 2, in f"),
        ("x = (", "SyntaxError"),
        ("a\x00b", "SyntaxError"),
        ("'\ud800'", "SyntaxError: source code is not valid UTF-8"),
        ("raise SystemExit", "SystemExit"),
        ("class E(Exception): pass", "not yet support class inheritance"),
        ("no_such_name", "NameError: name 'no_such_name' is not defined"),
        ("x" * 100_001, "the code has 100,001 characters"),
    ],
)  # fmt: skip
async def test_errors_have_their_line(code, says):
    got = await run(code)
    assert got.is_error
    assert says in got.text


async def test_what_was_printed_before_an_error_is_told():
    got = await run("print('so far')\n1 / 0")
    assert got.text.startswith("PythonError: Traceback")
    assert got.text.endswith("ZeroDivisionError: division by zero\nPrinted before the error:\nso far")


FORBIDDEN = {
    "open('/etc/passwd').read()": "PermissionError",
    "open('/tmp/x', 'w')": "PermissionError",
    "import pathlib\npathlib.Path('/etc/passwd').read_text()": "PermissionError",
    "import pathlib\nlist(pathlib.Path('/').iterdir())": "PermissionError",
    "import os\nos.listdir('/')": "PermissionError",
    "import os\nos.path.exists('/etc/passwd')": "PermissionError",
    "import os\nos.chdir('/etc')": "PermissionError",
    "import os\nos.environ": "is not supported in this environment",
    "import os\nos.getenv('DAGWRIGHT_TEST_SECRET')": "is not supported in this environment",
    "import os\nos.system('id')": "has no attribute 'system'",
    "import os\nos.open('/etc/passwd', 0)": "has no attribute 'open'",
    "from os import popen": "cannot import name 'popen'",
    "import socket": "No module named 'socket'",
    "import subprocess": "No module named 'subprocess'",
    "import urllib.request": "No module named 'urllib'",
    "import ctypes": "No module named 'ctypes'",
    "import importlib": "No module named 'importlib'",
    "import builtins": "No module named 'builtins'",
    "import threading": "No module named 'threading'",
    "import pickle": "No module named 'pickle'",
    "import registry": "No module named 'registry'",
    "import sys\nsys.modules": "has no attribute 'modules'",
    "import sys\nsys._getframe()": "has no attribute '_getframe'",
    "import sys\nsys.exit(3)": "has no attribute 'exit'",
    "__import__('os').system('id')": "NameError",
    "globals()": "NameError",
    "input()": "NameError",
    "breakpoint()": "NameError",
    "().__class__.__bases__[0].__subclasses__()": "has no attribute '__class__'",
    "getattr((), '__cl' + 'ass__')": "has no attribute '__class__'",
    "object.__subclasses__()": "has no attribute '__subclasses__'",
    "(lambda: 0).__globals__": "has no attribute '__globals__'",
    "(lambda: 0).__code__": "has no attribute '__code__'",
    "print.__self__": "has no attribute '__self__'",
    "'{0.__class__.__mro__}'.format(1)": "has no attribute '__class__'",
    "eval('__import__(\"os\")')": "NameError",
    "eval('().__class__')": "has no attribute '__class__'",
    "exec('import socket')": "No module named 'socket'",
    "exec('open(\"/etc/passwd\")')": "PermissionError",
    "import time\ntime.sleep(100)": "sleep limit exceeded",
    "import asyncio\nawait asyncio.sleep(100)": "sleep limit exceeded",
}


@pytest.mark.parametrize("code", FORBIDDEN)
async def test_nothing_gets_through_and_it_is_told_why(code, monkeypatch):
    monkeypatch.setenv("DAGWRIGHT_TEST_SECRET", SECRET)
    got = await run(code)
    assert got.is_error
    assert FORBIDDEN[code] in got.text
    assert "root:" not in got.text
    assert SECRET not in got.text
    if "Permission" in FORBIDDEN[code] or "No module" in FORBIDDEN[code]:
        assert "The sandbox has no files, no network and no other modules than: asyncio," in got.text


async def test_a_refusal_that_is_caught_again_and_again_ends():
    got = await run("while True:\n    try:\n        open('/x')\n    except BaseException:\n        pass")
    assert "suspension limit 100 exceeded" in got.text


EXHAUSTING = {
    "while True: pass": "TimeoutError",
    "def f():\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass\nf()":
        "TimeoutError",
    "exec('while True: pass')": "TimeoutError",
    "sum(range(10 ** 12))": "TimeoutError",
    "max(range(10 ** 12))": "TimeoutError",
    "import math\nmath.comb(10 ** 6, 5 * 10 ** 5)": "TimeoutError",
    "int('1' * 4000) ** 2000": "TimeoutError",
    "9 ** 9 ** 9": "MemoryError",
    "'a' * 10 ** 10": "MemoryError",
    "bytes(10 ** 10)": "MemoryError",
    "f'{1:1000000000}'": "MemoryError",
    "'%1000000000d' % 1": "MemoryError",
    "'x'.ljust(10 ** 10)": "MemoryError",
    "[i for i in range(10 ** 9)]": "MemoryError",
    "[[0] * 10 ** 4 for _ in range(10 ** 4)]": "MemoryError",
    "list(range(10 ** 8))": "MemoryError",
    "l = []\nwhile True: l.append('x' * 1000)": "MemoryError",
    "d = {}\nfor i in range(10 ** 8): d[i] = i": "MemoryError",
    "import math\nmath.factorial(10 ** 9)": "MemoryError",
    "import itertools\nlist(itertools.product(range(100), repeat=6))": "MemoryError",
    "a = [1] * 10\nfor _ in range(9): a = [a] * 10\nprint(a)": "MemoryError|TimeoutError",
    "while True:\n    try:\n        x = 'a' * 10 ** 10\n    except BaseException: pass": "MemoryError",
    "def f(n): return f(n + 1)\nf(0)": "RecursionError: maximum recursion depth exceeded",
    "eval('(' * 5000 + '1' + ')' * 5000)": "too deeply nested",
    "eval('-' * 100000 + '1')": "too deeply nested",
    "(" * 5000 + "1" + ")" * 5000: "too deeply nested",
    "sorted(range(10 ** 6), key=lambda x: 1 / 0)": "ZeroDivisionError",
}  # fmt: skip


@pytest.mark.parametrize("code", EXHAUSTING)
def test_time_memory_and_depth_have_limits(code, monkeypatch):
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(PythonError) as caught:
        run_python.run_python(code, seconds=0.3 if EXHAUSTING[code] == "TimeoutError" else 1.0)
    assert re.search(EXHAUSTING[code], str(caught.value))
    assert time.monotonic() - started < 15  # 1 s and the grace of 1 s, five times and more
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes, of this process
    assert len(str(caught.value)) < 6_000


@pytest.mark.parametrize("code", [r"re.match(r'(a+)+$', 'a' * 40 + 'b')", r"re.match(r'(a|a)*b', 'a' * 100000)"])
async def test_regular_expressions_do_not_blow_up(code):
    got = await run(f"import re\n{code} is None")
    assert got.text == "True"


async def test_a_flood_is_cut():
    got = await run("for _ in range(100000): print('x' * 100)\n'end'")
    assert not got.is_error
    assert got.text.endswith("more characters were printed]\nValue of the last expression: end")
    assert len(got.text) < OUTPUT_LIMIT + 200


def test_an_endless_flood_ends_and_keeps_its_start():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(PythonError, match="TimeoutError") as caught:
        run_python.run_python("n = 0\nwhile True:\n    n += 1\n    print(n, 'x' * 10000)", seconds=1.0)
    assert "Printed before the error:\n1 xxx" in str(caught.value)
    assert len(str(caught.value)) < OUTPUT_LIMIT + 1_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


@pytest.mark.parametrize(
    "code",
    [
        "a = [1] * 10\nfor _ in range(9): a = [a] * 10\na",  # a thousand million numbers as text
        "a = (1,) * 10\nfor _ in range(9): a = (a,) * 10\na",
        "a = {1: 1}\nfor _ in range(40): a = {1: a, 2: a}\na",
        "s = 'x' * 10000000\n[s] * 100000",
        "class A: pass\na = A()\nfor _ in range(40):\n    b = A()\n    b.x = a\n    b.y = a\n    a = b\na",
        "x = []\nfor _ in range(100000): x = [x]\nx",
        "'x' * 30000000",
        "b'x' * 30000000",
    ],
)
async def test_a_small_value_that_is_endless_as_text_is_cut(code):
    got = await run(code)
    assert not got.is_error
    assert len(got.text) <= OUTPUT_LIMIT + 10


async def test_each_call_is_a_fresh_sandbox_and_leaves_no_process():
    before = workers()
    assert not (await run("leftover = 1")).is_error
    assert "NameError" in (await run("leftover")).text
    results = await asyncio.gather(*(run(f"x = {number}\nx * x") for number in range(6)))
    assert [result.text for result in results] == ["0", "1", "4", "9", "16", "25"]
    assert workers() <= before


async def test_a_call_nobody_waits_for_ends_by_itself():
    ended = threading.Event()

    def once(code: str) -> str:
        try:
            return run_python.run_python(code, seconds=0.5)
        finally:
            ended.set()

    tool = run_python_tool()
    object.__setattr__(tool, "run", once)
    task = asyncio.create_task(run_tool(tool, {"code": "while True: pass"}))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, 20)


def test_a_missing_worker_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("MONTY_BIN", str(tmp_path / "nowhere"))
    with pytest.raises(PythonError, match="the sandbox can't be started"):
        run_python.run_python("1")


def test_a_worker_that_dies_is_told(monkeypatch, tmp_path):
    (tmp_path / "monty").write_text("#!/bin/sh\nexit 3\n")
    os.chmod(tmp_path / "monty", 0o755)
    monkeypatch.setenv("MONTY_BIN", str(tmp_path / "monty"))
    with pytest.raises(PythonError, match="the sandbox died"):
        run_python.run_python("1")


def test_its_declarations():
    tool = run_python_tool()
    assert (tool.name, tool.read_only, tool.idempotent, tool.pure) == ("run_python", True, True, False)
    assert (tool.network, tool.filesystem, tool.requires_approval) == (False, False, False)
    assert "no files, no network" in tool.description
    assert tool.parameters["properties"]["code"]["description"]


async def test_the_modules_that_are_promised_are_there():
    assert (await run("\n".join(f"import {name}" for name in MODULES.split()) + "\n'all'")).text == "all"


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=20,
)


@settings(deadline=None)
@given(VALUES)
def test_what_fits_is_shown_as_python_writes_it(value):
    from registry.text import clean

    assert Shown(10_000).text([value]) == clean(repr([value]))


@settings(deadline=None)
@given(VALUES, st.integers(1, 60))
def test_what_does_not_fit_is_cut_to_its_start(value, room):
    from registry.text import clean

    text = Shown(room).text([value])
    whole = clean(repr([value]))
    assert text == whole or text.endswith("… [cut]")
    assert len(text) <= room + len("… [cut]")
