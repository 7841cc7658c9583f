"""Reads tables of epoch times: CSV with a heading row.

An empty cell is unknown; an empty `epoch_seconds` means that the run ended out of memory. A mistake in the file raises
DpscopeError with one line that names file, row (line in the file), column, value and fix.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dpscope.analysis.text.csv_rows import CsvRow, read_rows
from dpscope.profiling.records.strategies import traits_of
from dpscope.profiling.records.typed_text import choose_from
from dpscope.profiling.store.errors import DpscopeError

REQUIRED_COLUMNS = ("strategy", "batch_size", "devices", "epoch_seconds")
_SECONDS_RANGE = (1e-9, 1e9)
_MAX_LISTED = 8


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
    resolution_s: float | None  # None: exact
    provenance: str | None
    steps_per_epoch: int | None

    @property
    def setting(self) -> tuple[str | None, str | None, str, int, int]:
        """What distinguishes the rows of a table, with which its estimates begin."""
        return (self.study, self.run, self.strategy, self.batch_size, self.devices)


OPTIONAL_COLUMNS = tuple(name for name in EpochTime._fields if name not in REQUIRED_COLUMNS)


class EpochTable(NamedTuple):
    """The rows of a table, the OPTIONAL_COLUMNS that it lacks, and its unknown columns."""

    rows: tuple[EpochTime, ...]
    absent_columns: tuple[str, ...] = ()
    unknown_columns: tuple[str, ...] = ()

    def of_study(self, name: str | None) -> "EpochTable":
        """The table with only this study's rows."""
        return self._replace(rows=tuple(row for row in self.rows if row.study == name))


def read_epoch_times(path: Path) -> EpochTable:
    """Read and check a table of epoch times; raises DpscopeError for a file that is not such a table."""
    headings, lines = read_rows(path, REQUIRED_COLUMNS)
    rows: list[EpochTime] = []
    first_lines: dict[tuple[object, ...], int] = {}
    for line in lines:
        row = _epoch_time(line)
        if (first := first_lines.setdefault(row.setting, line.line)) != line.line:
            raise DpscopeError(
                f"{path}, row {line.line}: strategy {row.strategy}, batch_size {row.batch_size}, devices {row.devices} "
                f"again, as in row {first}; distinguish repetitions, models and machines in column run or study"
            )
        rows.append(row)
    known = {*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS}
    return EpochTable(
        rows=tuple(rows),
        absent_columns=tuple(name for name in OPTIONAL_COLUMNS if name not in headings),
        unknown_columns=tuple(name for name in headings if name not in known),
    )


def _epoch_time(row: CsvRow) -> EpochTime:
    strategy = row.required_text("strategy").lower()
    devices = row.required_whole("devices")
    if traits_of(strategy).baseline and devices != 1:
        raise row.error("devices", "for strategy single; single is one device, name the strategy of the others")
    meaning = row.text("batch_size_is")
    if meaning not in (None, "global", "per_device"):
        advice = choose_from(meaning, ("global", "per_device"))
        raise row.error(
            "batch_size_is", f"is neither global nor per_device; {advice}, or leave it empty if it is unknown"
        )
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
            "epoch_seconds", lambda s: shortest <= s <= longest, "seconds between 1e-9 and 1e9 (empty: out of memory)"
        ),
        resolution_s=row.decimal("resolution_s", lambda s: 0 <= s <= longest, "seconds from 0 on (empty: exact)"),
        provenance=row.text("provenance"),
        steps_per_epoch=row.whole("steps_per_epoch"),
    )


def place(study: str | None, run: str | None) -> str:
    """A study and its run, in messages."""
    name = study or "table"
    return f"{name} ({run})" if run else name


def at(batch_size: int | None, devices: int | None) -> str:
    """A setting in messages: (batch_size, devices)."""
    return f"({'any' if batch_size is None else batch_size}, {'any' if devices is None else devices})"


def listed(parts: Sequence[str]) -> str:
    """The first parts, and the number of further ones."""
    rest = len(parts) - _MAX_LISTED
    return ", ".join(parts[:_MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")
