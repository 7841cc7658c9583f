"""Reading tables of epoch times, and of values that people derived from them.

Both are CSV files with a heading row, UTF-8, comma separated. An empty cell is unknown; an empty
`epoch_seconds` means that the run ended out of memory. Everything a user can get wrong raises DpscopeError
with one line that names the file, the row (its line in the file), the column, the value and the fix.
"""

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from dpscope.profiling.store.errors import DpscopeError

REQUIRED_COLUMNS = ("strategy", "batch_size", "devices", "epoch_seconds")
OPTIONAL_COLUMNS = (
    "study", "run", "hardware", "model", "parameters", "dataset", "samples_per_epoch", "batch_size_is",
    "resolution_s", "provenance", "steps_per_epoch",
)  # fmt: skip
CLAIM_COLUMNS = ("quantity", "method", "printed_value", "unit")
OPTIONAL_CLAIM_COLUMNS = ("study", "run", "strategy", "batch_size", "devices")

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_MISSING = frozenset({"", "nan", "na", "null", "none"})
_LARGEST_WHOLE = 2**53
_SECONDS_RANGE = (1e-9, 1e9)

_WHOLE_COLUMNS = ("parameters", "samples_per_epoch", "batch_size", "devices", "steps_per_epoch")
_DECIMAL_COLUMNS = ("epoch_seconds", "resolution_s")

_Cell = TypeVar("_Cell")


class EpochTime(NamedTuple):
    """One row of a table of epoch times; None is unknown."""

    study: str | None
    run: str | None
    hardware: str | None
    model: str | None
    parameters: int | None
    dataset: str | None
    samples_per_epoch: int | None
    strategy: str
    batch_size: int
    batch_size_is: str | None  # global or per_device
    devices: int
    epoch_seconds: float | None  # None: out of memory
    resolution_s: float | None  # None: all digits are there
    provenance: str | None
    steps_per_epoch: int | None


class Claim(NamedTuple):
    """One value somebody derived, as printed, and the method that gives its digits; None is unknown."""

    study: str | None
    run: str | None
    strategy: str | None
    quantity: str
    method: str
    batch_size: int | None
    devices: int | None
    printed_value: str
    unit: str

    @property
    def value(self) -> float:
        """The printed number, in `unit`."""
        return float(self.printed_value)


def read_epoch_times(path: Path) -> pd.DataFrame:
    """Read and check a table of epoch times.

    Returns a row per measurement with the fields of EpochTime as columns, whichever of them the file had;
    `attrs["absent_columns"]` and `attrs["unknown_columns"]` name what it lacked and what was not understood.
    Raises DpscopeError for anything that cannot be read as such a table.
    """
    headings, lines = _read_cells(path, REQUIRED_COLUMNS)
    rows: list[EpochTime] = []
    seen: dict[tuple[object, ...], int] = {}
    for line, cells in lines:
        row = _epoch_time(_Row(path, line, cells))
        key = (row.study, row.run, row.strategy, row.batch_size, row.devices)
        if key in seen:
            raise DpscopeError(
                f"{path}, row {line}: strategy {row.strategy}, batch_size {row.batch_size}, devices {row.devices} "
                f"again, as in row {seen[key]}; name repetitions, other models and other machines apart "
                "in column run or study"
            )
        seen[key] = line
        rows.append(row)
    frame = _frame(rows, EpochTime._fields)
    known = {*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS}
    frame.attrs["absent_columns"] = [name for name in OPTIONAL_COLUMNS if name not in headings]
    frame.attrs["unknown_columns"] = [name for name in headings if name not in known]
    return frame


def read_claims(path: Path) -> pd.DataFrame:
    """Read and check a table of derived values: the fields of Claim as columns, `printed_value` as it stands.

    Raises DpscopeError for anything that cannot be read as such a table.
    """
    _, lines = _read_cells(path, CLAIM_COLUMNS)
    claims = [_claim(_Row(path, line, cells)) for line, cells in lines]
    return _frame(claims, Claim._fields)


def epoch_times(frame: pd.DataFrame) -> list[EpochTime]:
    """The rows of a frame that `read_epoch_times` made."""
    return [EpochTime(*values) for values in _cells_of(frame, EpochTime._fields)]


def claim_rows(frame: pd.DataFrame) -> list[Claim]:
    """The rows of a frame that `read_claims` made."""
    return [Claim(*values) for values in _cells_of(frame, Claim._fields)]


def _frame(rows: Sequence[tuple[object, ...]], fields: tuple[str, ...]) -> pd.DataFrame:
    """A typed frame: strings, nullable whole numbers and floats, with missing cells missing."""
    frame = pd.DataFrame(rows, columns=list(fields), dtype=object)
    kinds = dict.fromkeys(fields, "string")
    kinds |= {name: "Int64" for name in _WHOLE_COLUMNS if name in fields}
    kinds |= {name: "Float64" for name in _DECIMAL_COLUMNS if name in fields}
    return frame.astype(kinds)


def _cells_of(frame: pd.DataFrame, fields: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """The rows of a typed frame as plain values, None where a cell is missing."""
    for values in frame[list(fields)].itertuples(index=False, name=None):
        yield tuple(
            None if pd.isna(value) else value.item() if isinstance(value, np.generic) else value for value in values
        )


class _Row:
    """One line of a file: its cells by heading, and the errors that name them."""

    def __init__(self, path: Path, line: int, cells: Mapping[str, str]) -> None:
        self._path, self._line, self._cells = path, line, cells

    def text(self, column: str) -> str | None:
        cell = self._cells.get(column, "")
        return None if cell.lower() in _MISSING else cell

    def required_text(self, column: str) -> str:
        return self._required(column, self.text(column))

    def whole(self, column: str) -> int | None:
        """A whole number from 1 on."""
        number = self._number(column, "a whole number from 1 on")
        if number is None:
            return None
        if not (number.is_integer() and 1 <= number <= _LARGEST_WHOLE):
            raise self.error(column, "is not a whole number from 1 to 2^53")
        return int(number)

    def required_whole(self, column: str) -> int:
        return self._required(column, self.whole(column))

    def decimal(self, column: str, accept: Callable[[float], bool], wanted: str) -> float | None:
        number = self._number(column, wanted)
        if number is not None and not accept(number):
            raise self.error(column, f"is not {wanted}")
        return number

    def error(self, column: str, problem: str) -> DpscopeError:
        value = self._cells.get(column, "")
        shown = value if len(value) <= 40 else value[:37] + "..."
        return DpscopeError(f"{self._path}, row {self._line}, column {column}: {shown!r} {problem}")

    def _number(self, column: str, wanted: str) -> float | None:
        text = self.text(column)
        if text is None:
            return None
        if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
            raise self.error(column, f"is not a number; write {wanted}, or leave the cell empty if it is unknown")
        return float(text)

    def _required(self, column: str, value: _Cell | None) -> _Cell:
        if value is None:
            raise self.error(column, "is empty; every row needs it")
        return value


def _epoch_time(row: _Row) -> EpochTime:
    strategy = row.required_text("strategy").lower()
    devices = row.required_whole("devices")
    if strategy == "single" and devices != 1:
        raise row.error("devices", "for strategy single; single is one device, name the strategy of the others")
    meaning = row.text("batch_size_is")
    if meaning not in (None, "global", "per_device"):
        raise row.error("batch_size_is", "is neither global nor per_device; leave it empty if it is unknown")
    shortest, longest = _SECONDS_RANGE
    return EpochTime(
        study=row.text("study"),
        run=row.text("run"),
        hardware=row.text("hardware"),
        model=row.text("model"),
        parameters=row.whole("parameters"),
        dataset=row.text("dataset"),
        samples_per_epoch=row.whole("samples_per_epoch"),
        strategy=strategy,
        batch_size=row.required_whole("batch_size"),
        batch_size_is=meaning,
        devices=devices,
        epoch_seconds=row.decimal(
            "epoch_seconds",
            lambda s: shortest <= s <= longest,
            "seconds between 1e-9 and 1e9 (empty: out of memory)",
        ),
        resolution_s=row.decimal(
            "resolution_s", lambda s: 0 <= s <= longest, "seconds from 0 on (empty: all digits are there)"
        ),
        provenance=row.text("provenance"),
        steps_per_epoch=row.whole("steps_per_epoch"),
    )


def _claim(row: _Row) -> Claim:
    printed = row.required_text("printed_value")
    row.decimal("printed_value", lambda value: True, "the number as it was printed")
    strategy = row.text("strategy")
    return Claim(
        study=row.text("study"),
        run=row.text("run"),
        strategy=strategy.lower() if strategy else None,
        quantity=row.required_text("quantity"),
        method=row.required_text("method"),
        batch_size=row.whole("batch_size"),
        devices=row.whole("devices"),
        printed_value=printed,
        unit=row.required_text("unit"),
    )


def _read_cells(path: Path, required: tuple[str, ...]) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Headings, and per row its line number and its cells, stripped."""
    reader = csv.reader(io.StringIO(_read_text(path), newline=""), strict=True)
    lines: list[tuple[int, list[str]]] = []
    try:
        lines.extend(
            (reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(map(str.strip, cells))
        )
    except csv.Error as error:
        raise DpscopeError(
            f"{path}, row {reader.line_num}: not comma-separated values ({error}); check its quotes"
        ) from error
    if not lines:
        raise DpscopeError(f"{path} is empty; its first row must name the columns {', '.join(required)}")
    headings = lines[0][1]
    _check_headings(path, headings, required)
    if len(lines) == 1:
        raise DpscopeError(f"{path} has headings but no rows; add a row per measurement")
    for line, cells in lines[1:]:
        if len(cells) != len(headings):
            raise DpscopeError(
                f"{path}, row {line}: {len(cells)} cells under {len(headings)} headings; "
                "leave unknown cells empty and quote cells that hold a comma"
            )
    return headings, [(line, dict(zip(headings, cells, strict=True))) for line, cells in lines[1:]]


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DpscopeError(f"cannot read {path}: {error.strerror}; name a CSV file") from error
    except UnicodeDecodeError as error:
        raise DpscopeError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8 CSV") from error


def _check_headings(path: Path, headings: list[str], required: tuple[str, ...]) -> None:
    missing = [name for name in required if name not in headings]
    if missing:
        found = ", ".join(headings)
        shown = found if len(found) <= 120 else found[:117] + "..."
        raise DpscopeError(
            f"{path}, row 1: no column {', '.join(missing)} (found: {shown!r}); "
            f"name the columns {', '.join(required)}, separated by commas"
        )
    repeated = sorted({name for name in headings if name and headings.count(name) > 1})
    if repeated:
        raise DpscopeError(f"{path}, row 1: column {', '.join(repeated)} appears twice; keep one of them")
