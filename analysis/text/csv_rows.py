"""CSV files written by hand or saved from a spreadsheet. Each error names file, row, column and fix
in one line.

Cells are separated by commas, semicolons (numbers may then have a decimal comma) or tabs. Lines
that begin with # are skipped.
"""

import csv
import math
import re
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.typed_text import nearest
from dpscope.profiling.store.errors import DpscopeError, unreadable

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_MISSING = frozenset({"", "nan", "na", "n/a", "null", "none", "-"})
_SEPARATORS = ",;\t"
_LARGEST_WHOLE = 2**53

_Cell = TypeVar("_Cell")


class CsvRow:
    """A row of a file: its cells by heading, and errors that name them."""

    def __init__(
        self, path: Path, line: int, cells: Mapping[str, str], separator: str = ","
    ) -> None:
        self._path, self.line, self.cells, self._separator = path, line, cells, separator

    def text(self, column: str) -> str | None:
        cell = self.cells.get(column, "")
        return None if cell.lower() in _MISSING else cell

    def required_text(self, column: str) -> str:
        return self.required(column, self.text(column))

    def whole(self, column: str) -> int | None:
        """A whole number, at least 1."""
        number = self._number(column, "a whole number of at least 1")
        if number is None:
            return None
        if not (number.is_integer() and 1 <= number <= _LARGEST_WHOLE):
            raise self.error(column, "is not a whole number from 1 to 2^53")
        return int(number)

    def required_whole(self, column: str) -> int:
        return self.required(column, self.whole(column))

    def decimal(self, column: str, accept: Callable[[float], bool], wanted: str) -> float | None:
        number = self._number(column, wanted)
        if number is not None and not accept(number):
            raise self.error(column, f"is not {wanted}")
        return number

    def error(self, column: str, problem: str) -> DpscopeError:
        value = self.cells.get(column, "")
        shown = value if len(value) <= 40 else value[:37] + "..."
        return DpscopeError(f"{self._path}, row {self.line}, column {column}: {shown!r} {problem}")

    def last_digit(self, column: str) -> float | None:
        """One unit of the last digit that a number's cell prints; None for an empty one."""
        text = self._with_point(column)
        if text is None:
            return None
        parts = Decimal(text).as_tuple()
        return 10.0 ** int(parts.exponent)

    def _with_point(self, column: str) -> str | None:
        text = self.text(column)
        if text is None or self._separator != ";":
            return text
        return text.replace(",", ".")

    def _number(self, column: str, wanted: str) -> float | None:
        text = self._with_point(column)
        if text is None:
            return None
        if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
            raise self.error(
                column, f"is not a number; write {wanted}, or leave the cell empty if it is unknown"
            )
        return float(text)

    def required(self, column: str, value: _Cell | None) -> _Cell:
        if value is None:
            raise self.error(column, "is empty; every row needs it")
        return value


def read_rows(
    path: Path,
    required: tuple[str, ...],
    known: Collection[str] = (),
    alternative: tuple[str, ...] = (),
) -> tuple[list[str], list[CsvRow]]:
    """The headings and the rows below them, with stripped cells. Headings in `known` are matched in
    any case.

    A table that has more columns of `alternative` needs these in place of `required`. Raises
    DpscopeError unless the file is a table with the required columns and at least one row.
    """
    separator, cells = _read_cells(path)
    if not cells:
        raise DpscopeError(
            f"{path} is empty; its first row must name the columns {', '.join(required)}"
        )
    (_, headings), *rows = cells
    headings = [name.lower() if name.lower() in known else name for name in headings]
    present = set(headings)
    wanted = max(alternative, required, key=lambda names: len(present.intersection(names)))
    _check_headings(path, headings, wanted)
    if not rows:
        raise DpscopeError(f"{path} has headings but no rows; add one row per measurement")
    for number, row in rows:
        while len(row) > len(headings) and not row[-1]:
            row.pop()
        if len(row) != len(headings):
            raise DpscopeError(
                f"{path}, row {number}: {counted(len(row), 'cell')} under {counted(len(headings), 'heading')}; "
                "leave unknown cells empty and quote cells that hold a comma"
            )
    return headings, [
        CsvRow(path, number, dict(zip(headings, row, strict=True)), separator)
        for number, row in rows
    ]


def _read_cells(path: Path) -> tuple[str, list[tuple[int, list[str]]]]:
    """The separator, and the stripped cells of each row that has any, with its line number."""
    lines = [
        "\n" if line.startswith("#") else line
        for line in _read_text(path).splitlines(keepends=True)
    ]
    separator = max(_SEPARATORS, key=next((line for line in lines if line.strip()), "").count)
    reader = csv.reader(lines, delimiter=separator, strict=True)
    cells = []
    try:
        for row in reader:
            stripped = [cell.strip() for cell in row]
            if any(stripped):
                cells.append((reader.line_num, stripped))
    except csv.Error as error:
        raise DpscopeError(
            f"{path}, row {reader.line_num}: not comma-separated values ({error}); check its quotes"
        ) from error
    return separator, cells


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        advice = "name a CSV file"
        if path.is_dir():
            advice += "; a run folder is for dpscope analyze"
        raise DpscopeError(f"{unreadable(path, error)}; {advice}") from error
    except UnicodeDecodeError as error:
        raise DpscopeError(
            f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8 CSV"
        ) from error


def _check_headings(path: Path, headings: list[str], required: tuple[str, ...]) -> None:
    missing = [name for name in required if name not in headings]
    if missing:
        found = ", ".join(headings)
        shown = found if len(found) <= 120 else found[:117] + "..."
        meant = {
            name: near[0]
            for name in missing
            if (near := nearest(name, set(headings) - set(required)))
        }
        advice = (
            f"name {'it' if len(missing) == 1 else 'them'} in the first row, separated by commas"
        )
        if meant:
            hints = " and ".join(f"{heading!r} to {name}" for name, heading in meant.items())
            advice = f"rename {hints} in the first row, with values in its unit"
        raise DpscopeError(
            f"{path}, row 1: no column {', '.join(missing)} (found: {shown}); {advice}"
        )
    repeated = sorted({name for name in headings if name and headings.count(name) > 1})
    if repeated:
        raise DpscopeError(
            f"{path}, row 1: column {', '.join(repeated)} appears twice; keep one of them"
        )
