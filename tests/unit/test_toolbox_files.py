"""Workspace files: reading, listing, writing, and every way out that must be closed."""

import os
import socket
import stat
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.tool_run import run_tool
from registry.toolbox import default_tools, workspace, workspace_tools
from registry.toolbox.workspace import Workspace, WorkspaceError, parts_of
from registry.tools import ToolRegistry

links = pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links here")


@pytest.fixture(params=["relative calls", "paths"])
def root(request, tmp_path, monkeypatch):
    """A workspace with a secret beside it, with and without the platform's relative calls."""
    if request.param == "paths":
        monkeypatch.setattr(workspace, "_DIR_FD", False)
    elif not workspace._DIR_FD:
        pytest.skip("no relative calls here")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "outside").mkdir()
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.txt").write_text("one\ntwo\nthree\n")
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "sub" / "deep" / "b.txt").write_text("b")
    return root


async def call(root, name, **arguments):
    tool = ToolRegistry(workspace_tools(root)).get(name)
    return await run_tool(tool, tool.check(arguments))


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


async def test_read_list_write(root):
    assert (await call(root, "read_file", path="a.txt")).text == "one\ntwo\nthree\n"
    assert (await call(root, "read_file", path="./sub//deep/b.txt")).text == "b"
    assert (await call(root, "read_file", path="a.txt", first_line=2, max_lines=1)).text == "two\n\n[lines 2 to 2 of 3]"
    assert (await call(root, "list_files")).text == "a.txt (14 bytes)\nsub/"
    assert (await call(root, "list_files", folder="sub")).text == "sub/deep/"
    listed = (await call(root, "list_files", recursive=True)).text
    assert listed == "a.txt (14 bytes)\nsub/\nsub/deep/\nsub/deep/b.txt (1 bytes)"
    assert (await call(root, "write_file", path="new/c.txt", content="é")).text == "Wrote new/c.txt (2 bytes)"
    assert (root / "new" / "c.txt").read_text(encoding="utf-8") == "é"
    assert (await call(root, "write_file", path="a.txt", content="")).text == "Replaced a.txt (0 bytes)"
    assert (await call(root, "read_file", path="a.txt")).text == "(the file is empty)"
    assert (await call(root, "write_file", path="half.txt", content="a\ud800b")).is_error is False
    assert not [name for name in os.listdir(root) if name.endswith(".tmp")]


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "sub/../../secret.txt",
        "sub/../a.txt",
        "..",
        "/etc/passwd",
        "//etc/passwd",
        "~/x",
        "C:\\x",
        "c:x",
        "\\\\host\\share",
        "..\\secret.txt",
        "a.txt\x00.png",
        "\x00",
        "sub/\x00/../../secret.txt",
        ".. /secret.txt",
        "sub/... /../x",
        "sub/.. ./x",
        "../",
        "./..",
        "sub//..//..//secret.txt",
        "//server/share/x",
        "\\\\?\\C:\\x",
        "\\\\.\\pipe\\x",
        "C:/x",
        "c:",
        "sub\\..\\..\\secret.txt",
        "~root/x",
        "/proc/self/environ",
        "/dev/stdin",
        "\ud800/../secret.txt",
        "a\r\nb",
        "\x85/../../secret.txt",
        "a\nb",
        "\x7f",
        "half\ud800",
        "x" * 2_000,
    ],
)
@pytest.mark.parametrize("name", ["read_file", "write_file", "list_files"])
async def test_no_way_out_by_the_path(root, path, name):
    arguments = {"folder": path} if name == "list_files" else {"path": path}
    got = await call(root, name, **arguments, **({"content": "x"} if name == "write_file" else {}))
    assert got.is_error
    assert got.text.startswith("WorkspaceError: ")
    assert (root.parent / "secret.txt").read_text() == "secret"
    assert sorted(os.listdir(root)) == ["a.txt", "sub"]


@links
async def test_no_way_out_by_links(root):
    os.symlink(root.parent / "secret.txt", root / "file_link")
    os.symlink(root.parent / "outside", root / "folder_link")
    os.symlink(root.parent, root / "sub" / "up")
    os.symlink("a.txt", root / "inner_link")
    os.symlink(root.parent / "outside" / "not_there", root / "dangling")
    attempts = [
        ("read_file", {"path": "file_link"}),
        ("read_file", {"path": "inner_link"}),
        ("read_file", {"path": "sub/up/secret.txt"}),
        ("write_file", {"path": "file_link", "content": "x"}),
        ("write_file", {"path": "dangling", "content": "x"}),
        ("write_file", {"path": "folder_link/x", "content": "x"}),
        ("write_file", {"path": "folder_link/new/x", "content": "x"}),
        ("list_files", {"folder": "folder_link"}),
        ("list_files", {"folder": "sub/up"}),
    ]
    for name, arguments in attempts:
        got = await call(root, name, **arguments)
        assert got.is_error, (name, arguments)
        assert "link" in got.text
    assert os.listdir(root.parent / "outside") == []
    assert (root.parent / "secret.txt").read_text() == "secret"
    listed = (await call(root, "list_files", recursive=True)).text
    assert "sub/up (link, not followed)" in listed
    assert "secret" not in listed


@links
def test_a_folder_swapped_for_a_link_between_check_and_use(root, monkeypatch):
    """The check sees a folder, the open meets a link: with relative calls the open itself refuses."""
    if not workspace._DIR_FD:
        pytest.skip("needs relative calls")
    (root / "race").mkdir()
    check = workspace._kind

    def swap(status):
        kind = check(status)
        if kind == "folder" and (root / "race").is_dir() and not (root / "race").is_symlink():
            (root / "race").rmdir()
            os.symlink(root.parent, root / "race")
        return kind

    monkeypatch.setattr(workspace, "_kind", swap)
    with pytest.raises(WorkspaceError, match="not followed"):
        Workspace(root).read("race/secret.txt")
    for attempt in (
        lambda: Workspace(root).write("race/secret.txt", b"x"),
        lambda: Workspace(root).write("race/new/secret.txt", b"x"),
        lambda: Workspace(root).entries("race"),
    ):
        (root / "race").unlink()
        (root / "race").mkdir()
        with pytest.raises(WorkspaceError, match="not followed"):
            attempt()
    assert sorted(os.listdir(root.parent)) == ["outside", "root", "secret.txt"]
    assert (root.parent / "secret.txt").read_text() == "secret"


@links
async def test_links_swapped_in_all_the_time_are_no_way_out(root):
    """A thread swaps a folder for a link that leads out, while it is read and listed."""
    if not workspace._DIR_FD:
        pytest.skip("needs relative calls")
    (root / "folder").mkdir()
    (root / "link").symlink_to(root.parent / "outside")
    (root.parent / "outside" / "x.txt").write_text("secret")
    (root / "folder" / "x.txt").write_text("mine")
    stop = threading.Event()

    def swap():
        while not stop.is_set():
            for first, second in (("folder", "aside"), ("link", "folder"), ("folder", "link"), ("aside", "folder")):
                os.rename(root / first, root / second)

    swapper = threading.Thread(target=swap)
    swapper.start()
    space, seen = Workspace(root), set()
    try:
        for _ in range(1_000):
            for attempt in (
                lambda: space.read("folder/x.txt").data,
                lambda: tuple((entry.path, entry.size) for entry in space.entries("folder")[0]),
            ):
                try:
                    seen.add(attempt())
                except WorkspaceError as error:
                    seen.add(str(error).partition(" ")[0])
    finally:
        stop.set()
        swapper.join()
    assert b"mine" in seen
    assert b"secret" not in seen
    assert (("folder/x.txt", 4),) in seen
    assert (("folder/x.txt", 6),) not in seen


@links
async def test_a_file_swapped_for_a_link_between_check_and_use(root, monkeypatch):
    if not workspace._DIR_FD:
        pytest.skip("needs relative calls")
    check = workspace._kind

    def swap(status):
        kind = check(status)
        if kind == "file" and not (root / "a.txt").is_symlink():
            (root / "a.txt").unlink()
            os.symlink(root.parent / "secret.txt", root / "a.txt")
        return kind

    monkeypatch.setattr(workspace, "_kind", swap)
    with pytest.raises(WorkspaceError, match="not followed"):
        Workspace(root).read("a.txt")
    monkeypatch.setattr(workspace, "_kind", check)
    (root / "a.txt").unlink()
    (root / "a.txt").write_text("old")
    monkeypatch.setattr(workspace, "_kind", swap)
    Workspace(root).write("a.txt", b"new")  # takes the link's place, and leaves what it leads to alone
    assert (root.parent / "secret.txt").read_text() == "secret"
    assert not (root / "a.txt").is_symlink()


@pytest.mark.parametrize(
    "name", ["．．", "..\u2215..\u2215secret.txt", "\u2025", "․․", "\u202etxt.a", "a\u0301", "．．／secret.txt"]
)
async def test_look_alikes_are_names_like_others(root, name):
    """What looks like dots or slashes leads nowhere else: a file of that name is made inside."""
    assert not (await call(root, "write_file", path=f"{name}/x", content="x")).is_error
    assert (await call(root, "read_file", path=f"{name}/x")).text == "x"
    assert name in os.listdir(root)
    assert sorted(os.listdir(root.parent)) == ["outside", "root", "secret.txt"]


@pytest.mark.parametrize(
    "path",
    ["nul", "NUL.txt", "con", "sub/aux.c", "com1", "LPT9.x", "com¹", "conin$", "a.txt:stream", "a.txt::$DATA", "sub./x",
     "sub /x", "a?", "a*", "a<b", 'a"b', "a|b"],
)  # fmt: skip
def test_names_that_windows_takes_for_something_else(path, monkeypatch):
    assert parts_of(path)  # elsewhere they are names like others
    monkeypatch.setattr(workspace, "_WINDOWS", True)
    with pytest.raises(WorkspaceError, match="Windows"):
        parts_of(path)
    for fine in ("console.txt", "nullable", "com", "com10", "a.b.c", ".hidden", "sub/auxiliary"):
        assert parts_of(fine)


@pytest.mark.skipif(not hasattr(os, "mknod"), reason="no devices here")
async def test_devices_and_sockets_are_not_opened(root):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "socket"))
        names = ["socket"]
        try:
            os.mknod(root / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
            names.append("zero")
        except PermissionError:  # only the superuser may make devices
            pass
        for name in names:
            assert "not a regular file" in (await call(root, "read_file", path=name)).text
            assert "not a regular file" in (await call(root, "write_file", path=name, content="x")).text
            assert f"{name} (other, not followed)" in (await call(root, "list_files")).text


@links
async def test_the_root_itself_may_be_a_link(root):
    os.symlink(root, root.parent / "alias")
    assert (await call(root.parent / "alias", "read_file", path="a.txt")).text.startswith("one")


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("read_file", {"path": "nope.txt"}, "'nope.txt' does not exist"),
        ("read_file", {"path": "nope/x.txt"}, "does not exist"),
        ("read_file", {"path": "sub"}, "is a folder"),
        ("read_file", {"path": "a.txt/x"}, "not a folder"),
        ("read_file", {"path": ""}, "names no file"),
        ("read_file", {"path": "sub/"}, "names no file"),
        ("read_file", {"path": "y" * 300}, "name too long"),
        ("read_file", {"path": "a.txt", "first_line": 9}, "only 3 lines"),
        ("write_file", {"path": "sub", "content": "x"}, "is a folder"),
        ("write_file", {"path": "a.txt/x", "content": "x"}, "not a folder"),
        ("write_file", {"path": "big", "content": "x" * 5_000_001}, "too many"),
        ("list_files", {"folder": "a.txt"}, "not a folder"),
        ("list_files", {"folder": "nope"}, "does not exist"),
    ],
)
async def test_errors_are_clear_and_name_no_folder_of_the_machine(root, name, arguments, says):
    before = open_descriptors()
    got = await call(root, name, **arguments)
    assert got.is_error
    assert says.lower() in got.text.lower()
    assert str(root) not in got.text
    assert open_descriptors() == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
async def test_a_pipe_does_not_hang(root):
    os.mkfifo(root / "pipe")
    assert "not a regular file" in (await call(root, "read_file", path="pipe")).text
    assert "not a regular file" in (await call(root, "write_file", path="pipe", content="x")).text
    assert "pipe (other, not followed)" in (await call(root, "list_files")).text


async def test_big_and_binary_files(root, monkeypatch):
    (root / "big.txt").write_bytes(b"x" * 2_000_010)
    (root / "image").write_bytes(b"\x89PNG\x00\x00")
    (root / "latin").write_bytes(b"caf\xe9")
    assert "only the first 2,000,000 of 2,000,010 bytes" in (await call(root, "read_file", path="big.txt")).text
    assert "binary" in (await call(root, "read_file", path="image")).text
    assert (await call(root, "read_file", path="latin")).text == "caf\ufffd"


async def test_long_listings_are_cut(root):
    for number in range(1_005):
        (root / f"f{number:04}").touch()
    entries, cut = Workspace(root).entries()
    assert len(entries) == 1_000
    assert cut
    text = (await call(root, "list_files")).text
    assert text.endswith("[more than 1,000 entries or very deep folders: the rest is left out]")


async def test_names_cannot_forge_lines(root):
    (root / "x\nfake.txt (1 bytes)").touch()
    assert "\nfake" not in (await call(root, "list_files")).text


def test_a_failed_write_leaves_the_old_file_and_no_trace(root, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WorkspaceError, match="No space left"):
        Workspace(root).write("a.txt", b"new")
    assert (root / "a.txt").read_text() == "one\ntwo\nthree\n"
    assert sorted(os.listdir(root)) == ["a.txt", "sub"]


def test_replacing_keeps_the_mode_and_breaks_hard_links(root):
    (root / "run.sh").write_text("old")
    os.chmod(root / "run.sh", 0o750)
    os.link(root / "run.sh", root.parent / "outside" / "linked")
    Workspace(root).write("run.sh", b"new")
    assert stat.S_IMODE((root / "run.sh").stat().st_mode) == 0o750
    assert (root.parent / "outside" / "linked").read_text() == "old"


@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from(["..", ".", "", "a", "/", "\\", "~", "C:", "\x00", "…"]), max_size=6).map("/".join))
def test_no_accepted_path_leads_up(path):
    try:
        parts = parts_of(path)
    except WorkspaceError:
        return
    assert not {"..", ".", ""} & set(parts)
    assert not os.path.isabs("/".join(parts))


def test_default_tools(tmp_path):
    assert default_tools().names() == ("calculate", "current_time", "run_python", "web_fetch")
    tools = default_tools(tmp_path / "made" / "here")
    assert tools.names()[4:] == ("read_file", "list_files", "write_file")
    assert (tmp_path / "made" / "here").is_dir()
    assert tools.similar_descriptions() == ()
    assert [each.name for each in tools if not each.read_only] == ["write_file"]
    assert {each.name for each in tools if each.network} == {"web_fetch"}
    assert {each.name for each in tools if each.filesystem} == {"read_file", "list_files", "write_file"}
