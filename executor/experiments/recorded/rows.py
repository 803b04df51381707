"""Rows of CSV and JSONL files, one by one; each mistake is told with file, row and column."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from executor.experiments.tasks import json_of
from registry.errors import ConfigError
from registry.toml_file import Table, nearest, shown

MAX_ROWS = 1_000_000
MAX_BYTES = 1 << 30
"""Of all files of a table together: what is read of them is kept in memory."""
MAX_LINE = 16 * 1024 * 1024
"""Characters of a line of JSON."""
GLOB = "*?["
TRUE, FALSE = ("true", "yes"), ("false", "no")


@dataclass(frozen=True, slots=True)
class Row:
    """A row: `values` by column, `stem` of its file's name (empty without a file), its `number` in the file from 1, and
    its `place` for messages."""

    values: Mapping[str, Any]
    stem: str
    number: int
    place: str

    def wrong(self, column: str, right: str) -> NoReturn:
        """Raises the error for the value of a column; `right` says what it must be."""
        raise ConfigError(f"{self.place}, column {column!r}: {shown(self.values.get(column))}: {right}")

    def get(self, column: str) -> Any:
        """A column's value. Raises ConfigError where the row has none such."""
        if column not in self.values:
            raise ConfigError(f"{self.place}: no column {column!r}: {nearest(column, map(str, self.values))}")
        return self.values[column]

    def text(self, column: str) -> str:
        """A column's value as a text; a number of JSON is written out, null is the empty text."""
        value = self.get(column)
        if value is None:
            return ""
        if isinstance(value, str):
            return value
        if isinstance(value, bool | int | float):
            return json.dumps(value)
        return self.wrong(column, "must be a text")

    def number_in(self, column: str, low: float, high: float, right: str, *, truth: bool = False) -> float | None:
        """A column's number from `low` to `high`; nothing is None. With `truth`, true and false (yes and no) are 1 and
        0."""
        value = self.get(column)
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        try:
            number = _number(value, truth)
        except (ValueError, OverflowError):
            self.wrong(column, right)
        if not low <= number <= high:  # not a number is neither
            self.wrong(column, right)
        return number


def rows_of(table: Table, base: Path | None) -> Iterator[Row]:
    """The rows of the files that `file` of a table names (a glob may name several, in the order of their names), or
    those that stand in the table itself as `rows`. Raises ConfigError."""
    if "rows" in table.values:
        if "file" in table.values:
            table.wrong("rows", "stands beside `file`: give one of them")
        yield from _limited(_inline(table), f"{table.path}: [{table.name}] rows")
        return
    text = table.text("file", needed='a CSV or JSONL file, such as "{data}/*.csv"')
    assert text is not None
    if base is None:
        table.wrong("file", "there are no files here: give `rows`")
    files = _files(table, base, text)
    if sum(path.stat().st_size for path in files) > MAX_BYTES:
        table.wrong("file", f"its files have more than {MAX_BYTES >> 20:,} MiB together")
    for path in files:
        yield from _limited(_read(path), str(path))


def _files(table: Table, base: Path, text: str) -> list[Path]:
    from glob import glob

    path = base / Path(text).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        table.wrong("file", f"{path} is a folder: name its files, such as {text}/*.csv")
    # The folder of the experiment may have a name with brackets: only what the table says is a pattern.
    found = sorted(glob(text, root_dir=base, recursive=True)) if any(mark in text for mark in GLOB) else []
    files = [base / name for name in found if (base / name).is_file()]
    if not files:
        table.wrong("file", f"there is no such file: {path}")
    return files


def _read(path: Path) -> Iterator[Row]:
    readers = {".csv": _csv, ".jsonl": _jsonl, ".ndjson": _jsonl}
    if path.suffix.lower() not in readers:
        raise ConfigError(f"{path}: must be a .csv or .jsonl file")
    try:
        yield from readers[path.suffix.lower()](path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _csv(path: Path) -> Iterator[Row]:
    import csv

    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        number = 0
        try:
            header = next(reader, [])
            if twice := next((name for name in header if header.count(name) > 1), None):
                raise ConfigError(f"{path}: two columns are named {twice!r}")
            for cells in reader:
                if not cells:
                    continue
                number += 1
                place = f"{path}: row {number}"
                if len(cells) != len(header):
                    raise ConfigError(
                        f"{place} (up to line {reader.line_num}) has {len(cells)} columns; the first line names "
                        f"{len(header)}"
                    )
                yield Row(dict(zip(header, cells, strict=True)), path.stem, number, place)
        except csv.Error as error:
            raise ConfigError(f"{path}: row {number + 1} (up to line {reader.line_num}): {error}") from None


def _jsonl(path: Path) -> Iterator[Row]:
    number = 0
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        while line := file.readline(MAX_LINE + 1):
            if not line.strip():
                continue
            number += 1
            place = f"{path}: row {number}"
            if len(line) > MAX_LINE:
                raise ConfigError(f"{place}: longer than {MAX_LINE:,} characters")
            yield _row(json_of(line, place), path.stem, number, place)


def _inline(table: Table) -> Iterator[Row]:
    rows = table.values["rows"]
    if not isinstance(rows, list):
        table.wrong("rows", "must be a list of objects")
    for number, value in enumerate(rows, 1):
        yield _row(value, "", number, f"{table.path}: [{table.name}] row {number}")


def _row(value: Any, stem: str, number: int, place: str) -> Row:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{place}: must be an object with a value by column, not {shown(value)}")
    return Row(value, stem, number, place)


def _limited(rows: Iterator[Row], where: str) -> Iterator[Row]:
    """The rows of a file, at most MAX_ROWS: one that never ends does not fill the memory."""
    empty = True
    for row in rows:
        if row.number > MAX_ROWS:
            raise ConfigError(f"{where}: has more than {MAX_ROWS:,} rows")
        empty = False
        yield row
    if empty:
        raise ConfigError(f"{where}: there are no rows in it")


def _number(value: Any, truth: bool) -> float:
    if isinstance(value, str):
        text = value.strip().lower()
        if truth and text in (*TRUE, *FALSE):
            return float(text in TRUE)
        if "_" in text:  # Python reads 1_000, no file means it
            raise ValueError(text)
        return float(text)
    if isinstance(value, int | float) and (truth or not isinstance(value, bool)):
        return float(value)
    raise ValueError("no number")
