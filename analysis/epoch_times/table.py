"""Tables of epoch times, or of step times: CSV with a heading row.

An empty cell is unknown; an empty `epoch_seconds` means that the run ended out of memory. A mistake in the file raises
DpscopeError with one line that names file, row (line in the file), column, value and fix.
"""

from pathlib import Path
from typing import NamedTuple

from dpscope.analysis.epoch_times.epoch_time import EpochTime
from dpscope.analysis.epoch_times.step_table import KNOWN_COLUMNS, STEP_COLUMNS, step_times
from dpscope.analysis.text.csv_rows import CsvRow, read_rows
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.strategies import traits_of
from dpscope.profiling.records.typed_text import choose_from
from dpscope.profiling.store.errors import DpscopeError

REQUIRED_COLUMNS = ("strategy", "batch_size", "devices", "epoch_seconds")
_SECONDS_RANGE = (1e-9, 1e9)
OPTIONAL_COLUMNS = tuple(name for name in EpochTime._fields if name not in REQUIRED_COLUMNS)


class EpochTable(NamedTuple):
    """The rows of a table, the columns that it lacks, and its unknown columns."""

    rows: tuple[EpochTime, ...]
    absent_columns: tuple[str, ...] = ()
    unknown_columns: tuple[str, ...] = ()
    of_steps: bool = False  # each epoch is one step

    def of_study(self, name: str | None) -> "EpochTable":
        """The table with only this study's rows."""
        return self._replace(rows=tuple(row for row in self.rows if row.study == name))


def read_epoch_times(path: Path) -> EpochTable:
    """Read and check a table of epoch times or of step times; raises DpscopeError for a file that is not such a table."""
    headings, lines = read_rows(path, REQUIRED_COLUMNS, KNOWN_COLUMNS, STEP_COLUMNS)
    if "step_ms" in headings:
        steps = tuple(step_times(path, headings, lines))
        return EpochTable(steps, () if "batch_per_rank" in headings else ("batch_size",), of_steps=True)
    rows: list[EpochTime] = []
    first_lines: dict[tuple[object, ...], int] = {}
    for line in lines:
        row = _epoch_time(line)
        if (first := first_lines.setdefault(row.setting, line.line)) != line.line:
            raise DpscopeError(
                f"{path}, row {line.line}: strategy {row.strategy}, batch_size {row.batch_size}, devices {row.devices} "
                f"again, as in row {first}; distinguish placements in column nodes, and repetitions, models and machines in "
                "column run or study"
            )
        rows.append(row)
    absent = tuple(name for name in OPTIONAL_COLUMNS if name not in headings)
    return EpochTable(tuple(rows), absent, tuple(name for name in headings if name not in EpochTime._fields))


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
    nodes = row.whole("nodes")
    if nodes is not None and nodes > devices:
        raise row.error("nodes", f"for {counted(devices, 'device')}; a node has at least one of them")
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
        nodes=nodes,
    )
