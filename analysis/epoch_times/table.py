"""Tables of epoch times, or of step times: CSV with a heading row.

An empty cell is unknown; an empty `epoch_seconds` means that the run ended out of memory. A mistake
in the file raises DpscopeError with one line that names file, row (line in the file), column, value
and fix.

A table of step times has the columns `ranks` and `step_ms`, and is read as epochs of one step with
a batch per device: `batch_per_rank` is the samples per device and step, `strategy` where `single`
is a run without DistributedDataParallel, and `nodes` or the devices of each node (`ranks_per_node`,
`gpus_per_node`) the placement. Every other column is a setting: rows with other settings are
another study. A column in which no value occurs at two device counts holds results and is not used.
"""

from collections.abc import Sequence
from pathlib import Path

from dpscope.analysis.epoch_times.epoch_time import UNSTATED, EpochTable, EpochTime
from dpscope.analysis.text.csv_rows import CsvRow, read_rows
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.strategies import traits_of
from dpscope.profiling.records.typed_text import choose_from
from dpscope.profiling.store.errors import DpscopeError

REQUIRED_COLUMNS = ("strategy", "batch_size", "devices", "epoch_seconds")
STEP_COLUMNS = ("ranks", "step_ms")
OPTIONAL_COLUMNS = tuple(name for name in EpochTime._fields if name not in REQUIRED_COLUMNS)
_PER_NODE = ("ranks_per_node", "gpus_per_node")
_NO_SETTINGS = (
    *STEP_COLUMNS,
    "batch_per_rank",
    "strategy",
    "nodes",
    *_PER_NODE,
    "sync_ms",
    "busbw_gb_per_s",
)
_LONGEST_S = 1e9


def read_epoch_times(path: str | Path) -> EpochTable:
    """Read and check a table of epoch times or of step times; raises DpscopeError for a file that
    is not such a table.
    """

    path = Path(path)
    headings, lines = read_rows(path, REQUIRED_COLUMNS, _NO_SETTINGS, STEP_COLUMNS)
    if "step_ms" in headings:
        others = [name for name in headings if name not in _NO_SETTINGS]
        settings = [name for name in others if not _holds_results(name, lines)]
        absent = () if "batch_per_rank" in headings else ("batch_size",)
        step_times = [_step_time(line, settings) for line in lines]
        rounding_s = _rounding(lines, "step_ms") / 1e3
        return EpochTable(
            rows=tuple(row._replace(resolution_s=rounding_s) for row in step_times),
            absent_columns=absent,
            of_steps=True,
            rounding_s=rounding_s,
        )
    rows = tuple(map(_epoch_time, lines))
    first_lines: dict[tuple[object, ...], int] = {}
    for line, row in zip(lines, rows, strict=True):
        if (first := first_lines.setdefault(row.setting, line.line)) != line.line:
            raise DpscopeError(
                f"{path}, row {line.line}: strategy {row.strategy}, batch_size {row.batch_size}, devices {row.devices} "
                f"again, as in row {first}; distinguish placements in column nodes, and repetitions, models and machines in "
                "column run or study"
            )
    return EpochTable(
        rows=rows,
        absent_columns=tuple(name for name in OPTIONAL_COLUMNS if name not in headings),
        unknown_columns=tuple(name for name in headings if name not in EpochTime._fields),
        rounding_s=_rounding(lines, "epoch_seconds"),
    )


def _rounding(lines: Sequence[CsvRow], column: str) -> float:
    """Half of the last digit of a column's numbers; rows may have dropped zeros at their end."""
    digits = (line.last_digit(column) for line in lines)
    return min((digit for digit in digits if digit is not None), default=0.0) / 2


def _epoch_time(row: CsvRow) -> EpochTime:
    devices = row.required_whole("devices")
    seconds = "seconds between 1e-9 and 1e9 (empty: out of memory)"
    return EpochTime(
        study=row.text("study"),
        run=row.text("run"),
        hardware=row.text("hardware"),
        model=row.text("model"),
        parameters=row.whole("parameters"),
        dataset=row.text("dataset"),
        samples_per_epoch=row.whole("samples_per_epoch"),
        strategy=_strategy(row, "devices", row.required_text("strategy")),
        batch_size=row.required_whole("batch_size"),
        batch_size_is=_batch_size_is(row),
        devices=devices,
        epoch_seconds=row.decimal("epoch_seconds", lambda s: 1e-9 <= s <= _LONGEST_S, seconds),
        resolution_s=row.decimal(
            "resolution_s", lambda s: 0 <= s <= _LONGEST_S, "seconds from 0 on (empty: exact)"
        ),
        provenance=row.text("provenance"),
        steps_per_epoch=row.whole("steps_per_epoch"),
        nodes=_nodes(row, devices),
    )


def _batch_size_is(row: CsvRow) -> str | None:
    meaning = row.text("batch_size_is")
    if meaning is None:
        return None
    meanings = ("global", "per_device")
    if meaning.lower() not in meanings:
        advice = choose_from(meaning, meanings)
        raise row.error(
            "batch_size_is",
            f"is neither global nor per_device; {advice}, or leave it empty if it is unknown",
        )
    return meaning.lower()


def _strategy(row: CsvRow, column: str, name: str) -> str:
    """The strategy, which must fit the devices of the column."""
    if traits_of(name.lower()).baseline and row.required_whole(column) > 1:
        raise row.error(
            column, "for strategy single; single is one device, name the strategy of the others"
        )
    return name.lower()


def _nodes(row: CsvRow, devices: int) -> int | None:
    nodes = row.whole("nodes")
    if nodes is not None and nodes > devices:
        raise row.error(
            "nodes", f"for {counted(devices, 'device')}; a node has at least one of them"
        )
    return nodes


def _holds_results(name: str, rows: Sequence[CsvRow]) -> bool:
    values = {row.cells[name] for row in rows}
    at_counts = {(row.cells[name], row.cells["ranks"]) for row in rows}
    return 1 < len(values) == len(at_counts)


def _step_time(row: CsvRow, settings: Sequence[str]) -> EpochTime:
    ranks = row.required_whole("ranks")
    batch_size = None
    if "batch_per_rank" in row.cells:
        batch_size = row.required_whole("batch_per_rank")
    step_ms = row.decimal(
        "step_ms", lambda ms: 1e-6 <= ms <= 1e3 * _LONGEST_S, "milliseconds above 0"
    )
    each = next((each for column in _PER_NODE if (each := row.whole(column))), None)
    nodes = _nodes(row, ranks)
    return EpochTime(
        study=", ".join(f"{name} {row.cells[name] or '-'}" for name in settings) or None,
        run=None,
        hardware=None,
        model=None,
        parameters=None,
        dataset=None,
        samples_per_epoch=None,
        strategy=_strategy(
            row, "ranks", row.text("strategy") or ("single" if ranks == 1 else UNSTATED)
        ),
        batch_size=batch_size,
        batch_size_is="per_device",
        devices=ranks,
        epoch_seconds=row.required("step_ms", step_ms) / 1e3,
        resolution_s=None,
        provenance=None,
        steps_per_epoch=1,
        nodes=-(-ranks // each) if nodes is None and each is not None else nodes,
    )
