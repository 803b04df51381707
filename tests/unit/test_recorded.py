"""Tasks and recorded answers out of CSV and JSONL files: what is read, what belongs together, and what is told."""

import json
from decimal import Decimal

import pytest

from executor.experiments.recorded import rows as recorded_rows
from executor.experiments.recorded.tables import read_recorded, read_tasks
from executor.experiments.types import RecordedAnswer, Task
from registry.errors import ConfigError
from registry.toml_file import Table

CSV = """\
prompt,model/a,model/b,a_response
"How many, and
why?",True,0.5,"Two, because"
Who?,false,,
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "math.csv").write_text(CSV, encoding="utf-8-sig")
    (tmp_path / "law.csv").write_text("prompt,model/a,model/b,a_response\nWho?,yes,1,Ann\n")
    return tmp_path


def table(name="experiment.tasks", **values):
    return Table("x.toml", name, values)


def tasks(folder, **values):
    return read_tasks(table(**({"file": "*.csv", "input": "prompt"} | values)), base=folder)


def recorded(folder, tasks, **values):
    return read_recorded("a", table("recorded.a", **values), base=folder, tasks=tasks)


def test_tasks_come_out_of_all_files_of_a_pattern_in_the_order_of_their_names(folder):
    assert tasks(folder, kind="{file}", target="model/b") == (
        Task("law-1", "Who?", "1", {"kind": "law"}),
        Task("math-1", "How many, and\nwhy?", "0.5", {"kind": "math"}),
        Task("math-2", "Who?", "", {"kind": "math"}),
    )
    by_column = tasks(folder, file="law.csv", id="a_response", kind="model/a", metadata=["model/b"])
    assert by_column == (Task("Ann", "Who?", None, {"model/b": "1", "kind": "yes"}),)


def test_a_folder_with_a_pattern_in_its_name_is_found(tmp_path):
    odd = tmp_path / "a[1]*"
    odd.mkdir()
    (odd / "t.csv").write_text("prompt\nWho?\n")
    assert [task.id for task in tasks(odd)] == ["t-1"]
    assert [task.id for task in tasks(odd, file=str(odd / "t.csv"))] == ["t-1"]


def test_answers_belong_to_the_tasks_of_their_rows(folder):
    model = recorded(
        folder, tasks(folder), file="*.csv", input="prompt", score="model/a", answer="a_response", cost=0.1
    )
    assert model.answers == {
        "law-1": RecordedAnswer("Ann", 1.0, Decimal("0.1")),
        "math-1": RecordedAnswer("Two, because", 1.0, Decimal("0.1")),
        "math-2": RecordedAnswer("", 0.0, Decimal("0.1")),
    }


def test_a_limit_that_leaves_out_a_task_of_the_same_text_takes_no_answer_of_another_row(folder):
    kept = [task for task in tasks(folder) if task.id != "law-1"]
    model = recorded(folder, kept, file="*.csv", input="prompt", score="model/a")
    assert model.answers["math-2"].score == 0.0


def test_answers_of_another_file_are_found_by_text_or_by_id(folder):
    rows = [{"q": "Who?", "n": "t1", "s": 0.25, "c": "0.10", "t": 1.5, "sure": 0.9, "more": None}, {"q": "?", "n": "-"}]
    (folder / "b.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    task = Task("t1", "Who?")
    columns = {"score": "s", "cost_column": "c", "latency_column": "t", "confidence": "sure"}
    expected = RecordedAnswer("", 0.25, Decimal("0.10"), 1.5, 0.9)
    for key in ({"input": "q"}, {"id": "n"}):
        model = recorded(folder, [task], file="b.jsonl", roles=["fast"], model="vendor/a", **key, **columns)
        assert model.answers == {"t1": expected}
        assert (model.name, model.roles, model.model) == ("a", ("fast",), "vendor/a")
    assert recorded(folder, [task], rows=rows[:1], input="q", **columns).answers == {"t1": expected}


def test_a_price_is_that_of_the_tokens_that_texts_are_estimated_to_have(folder):
    rows = [{"q": "x" * 40, "a": "y" * 80}]
    price = {"input": 1.5, "output": 4}
    model = recorded(folder, [Task("t", "x" * 40)], rows=rows, input="q", answer="a", price=price)
    assert model.answers["t"].cost == (10 * Decimal("1.5") + 20 * 4) / 1_000_000


BAD_FILES = {
    "many": "prompt,s\na,1,2\n",
    "twice": "prompt,prompt\na,b\n",
    "quotes": 'prompt,s\n"a"b,1\n',
    "none": "prompt,s\n",
    "blank": "prompt,s\n ,1\n",
    "score": "prompt,s\na,1\nb,maybe\n",
    "high": "prompt,s\na,1.5\n",
    "nan": "prompt,s\na,nan\n",
    "other": "prompt,s\na,1\na,0\n",
}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("many", r"many.csv: row 1 \(up to line 2\) has 3 columns; the first line names 2"),
        ("twice", "two columns are named 'prompt'"),
        ("quotes", "quotes.csv: row 1"),
        ("none", "none.csv: there are no rows"),
        ("blank", "blank.csv: row 1, column 'prompt': ' ': a task needs a text"),
        ("score", "score.csv: row 2, column 's': 'maybe': a verdict is true, false, or a number from 0 to 1"),
        ("high", "row 1, column 's': '1.5'"),
        ("nan", "row 1, column 's': 'nan'"),
    ],
)
def test_a_mistake_is_told_with_file_row_and_column(tmp_path, name, told):
    (tmp_path / f"{name}.csv").write_text(BAD_FILES[name])
    with pytest.raises(ConfigError, match=told):
        recorded(tmp_path, tasks(tmp_path, file=f"{name}.csv"), file=f"{name}.csv", input="prompt", score="s")


def test_two_answers_to_one_task_are_a_mistake_unless_they_are_the_same(tmp_path):
    (tmp_path / "other.csv").write_text(BAD_FILES["other"])
    with pytest.raises(ConfigError, match=r"other.csv: row 2: another answer to the task 't' stands in .*row 1"):
        recorded(tmp_path, [Task("t", "a")], file="other.csv", input="prompt", score="s")
    (tmp_path / "other.csv").write_text("prompt,s\na,1\na,1\n")
    assert recorded(tmp_path, [Task("t", "a")], file="other.csv", input="prompt", score="s").answers["t"].score == 1


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"file": "law.csv", "input": "promt", "score": "model/a"}, "no column 'promt': did you mean 'prompt'"),
        ({"file": "law.csv", "input": "prompt", "score": "model/c"}, "no column 'model/c'"),
        ({"file": "none.csv", "input": "prompt", "score": "model/a"}, "there is no such file: .*none.csv"),
        ({"file": ".", "input": "prompt", "score": "model/a"}, "is a folder: name its files"),
        ({"file": "law.csv", "score": "model/a"}, "needs `id` or `input`"),
        ({"file": "law.csv", "input": "prompt"}, "needs `answer` or `score`"),
        ({"file": "law.csv", "input": "prompt", "score": "model/a", "cost": -1}, "must be a number of USD"),
        ({"file": "law.csv", "input": "prompt", "score": "model/a", "cost": 1e300}, "must be a number of USD"),
        ({"file": "law.csv", "input": "prompt", "score": "model/a", "cost": 1, "cost_column": "x"}, "stands beside"),
        ({"file": "law.csv", "input": "prompt", "score": "model/a", "price": {"input": 1, "output": 1}}, "needs `ans"),
        ({"file": "law.csv", "input": "prompt", "score": "model/a", "cost_column": "a_response"}, "a cost is a number"),
        ({"file": "law.csv", "input": "prompt", "score": "model/a", "colour": 1}, "unknown key 'colour'"),
        ({"file": "law.csv", "input": "a_response", "score": "model/a"}, "to the task 'math-2': no row belongs to any"),
        ({"rows": [3], "input": "prompt", "score": "s"}, "row 1: must be an object"),
        ({"rows": [], "input": "prompt", "score": "s"}, "there are no rows"),
        ({"rows": [], "file": "law.csv", "input": "prompt", "score": "s"}, "stands beside `file`"),
    ],
)
def test_a_wrong_table_is_told(folder, values, told):
    with pytest.raises(ConfigError, match=told):
        recorded(folder, [Task("math-2", "Who?")], **values)


def test_the_first_task_without_an_answer_is_named(folder):
    asked = [Task("t1", "Who?"), Task("t2", "When?"), Task("t3", "Where?")]
    with pytest.raises(ConfigError, match=r"no answer of 'a' to the task 't2' \(and to 1 more\)$"):
        recorded(folder, asked, file="law.csv", input="prompt", score="model/a")


def test_ids_that_are_not_different_are_told(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.csv").write_text("prompt\nWho?\n")
    with pytest.raises(ConfigError, match=r"b/x.csv: row 1: the task 'x-1' is that of .*a/x.csv: row 1, too: files of"):
        tasks(tmp_path, file="*/x.csv")
    (tmp_path / "ids.csv").write_text("prompt,n\nWho?,1\nWhy?,1\nWhen?,\n")
    with pytest.raises(ConfigError, match=r"the task '1' is that of .*row 1, too: ids must differ"):
        tasks(tmp_path, file="ids.csv", id="n")
    (tmp_path / "ids.csv").write_text("prompt,n\nWho?,\n")
    with pytest.raises(ConfigError, match="a task needs an id"):
        tasks(tmp_path, file="ids.csv", id="n")


def test_without_files_only_rows_are_read():
    inline = table(rows=[{"q": "Who?", "id": 7}], input="q", id="id")
    assert read_tasks(inline, base=None) == (Task("7", "Who?"),)
    with pytest.raises(ConfigError, match="there are no files here: give `rows`"):
        read_tasks(table(file="/etc/x.csv", input="q"), base=None)


def test_what_has_no_end_is_not_read_to_it(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded_rows, "MAX_ROWS", 3)
    monkeypatch.setattr(recorded_rows, "MAX_LINE", 50)
    (tmp_path / "x.csv").write_text("prompt\n" + "Who?\n" * 4)
    with pytest.raises(ConfigError, match="has more than 3 rows"):
        tasks(tmp_path, file="x.csv")
    (tmp_path / "x.jsonl").write_text('{"prompt": "' + "x" * 60)
    with pytest.raises(ConfigError, match="row 1: longer than 50 characters"):
        tasks(tmp_path, file="x.jsonl")
    (tmp_path / "x.jsonl").write_text("\n{]\n")
    with pytest.raises(ConfigError, match="row 1: not JSON"):
        tasks(tmp_path, file="x.jsonl")
    (tmp_path / "x.jsonl").write_text('{"prompt": "Who?", "t": NaN}\n')
    with pytest.raises(ConfigError, match="row 1: not JSON: NaN is no number"):
        tasks(tmp_path, file="x.jsonl", target="t")
    (tmp_path / "open.csv").write_text('prompt\n"' + "x" * 200_000)
    with pytest.raises(ConfigError, match="row 1"):
        tasks(tmp_path, file="open.csv")
    monkeypatch.setattr(recorded_rows, "MAX_BYTES", 1_000)
    with pytest.raises(ConfigError, match="its files have more than 0 MiB together"):
        tasks(tmp_path, file="*.csv")
    (tmp_path / "x.txt").write_text("")
    with pytest.raises(ConfigError, match=r"must be a \.csv or \.jsonl file"):
        tasks(tmp_path, file="x.txt")
    (tmp_path / "x.csv").write_bytes(b"prompt\n\xff\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        tasks(tmp_path, file="x.csv")
