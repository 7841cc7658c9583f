"""Tables of step times: CSV with the columns `ranks` and `step_ms`, read as epochs of one step with a batch per device.

`batch_per_rank` is the samples per device and step, `strategy` where `single` is a run without DistributedDataParallel, and
`nodes` or the devices of each node (`ranks_per_node`, `gpus_per_node`) the placement. Every other column is a setting: rows with
other settings are another study. A column in which no value occurs at two device counts holds results and is not used.
"""

from collections.abc import Sequence
from pathlib import Path

from dpscope.analysis.epoch_times.epoch_time import EpochTime
from dpscope.analysis.text.csv_rows import CsvRow
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.strategies import traits_of
from dpscope.profiling.records.typed_text import nearest
from dpscope.profiling.store.errors import DpscopeError

STEP_COLUMNS = ("ranks", "step_ms")
_PER_NODE = ("ranks_per_node", "gpus_per_node")
KNOWN_COLUMNS = (*STEP_COLUMNS, "batch_per_rank", "strategy", "nodes", *_PER_NODE, "sync_ms", "busbw_gb_per_s")
ANY_BATCH = 1  # stands for the one batch per device of a table without that column
_MISSPELT = 0.85  # likeness of a column to a known one from which it is taken for that
_MOST_PER_NODE = 32
_LONGEST_MS = 1e9


def step_times(path: Path, headings: Sequence[str], rows: Sequence[CsvRow]) -> list[EpochTime]:
    """The rows of a table of step times; raises DpscopeError with the row and column of what cannot be read."""
    others = [name for name in headings if name not in KNOWN_COLUMNS]
    for name in others:
        if likely := nearest(name, set(KNOWN_COLUMNS) - set(headings), cutoff=_MISSPELT):
            raise DpscopeError(
                f"{path}: column {name} is no measure; did you mean {likely[0]}? If it is a setting, rename it"
            )
    settings = [name for name in others if not _holds_results(name, rows)]
    return [_step_time(row, settings) for row in rows]


def _holds_results(name: str, rows: Sequence[CsvRow]) -> bool:
    values = {row.cells[name] for row in rows}
    at_counts = {(row.cells[name], row.cells["ranks"]) for row in rows}
    return 1 < len(values) == len(at_counts)


def _step_time(row: CsvRow, settings: Sequence[str]) -> EpochTime:
    ranks = row.required_whole("ranks")
    step_ms = row.decimal("step_ms", lambda ms: 1e-6 <= ms <= _LONGEST_MS, "milliseconds above 0")
    strategy = (row.text("strategy") or ("single" if ranks == 1 else "ddp")).lower()
    if traits_of(strategy).baseline and ranks > 1:
        raise row.error("ranks", "for strategy single; single is one device, name the strategy of the others")
    return EpochTime(
        study=", ".join(row.cells[name] or "-" for name in settings) or None,
        run=None,
        hardware=None,
        model=None,
        parameters=None,
        dataset=None,
        samples_per_epoch=None,
        strategy=strategy,
        batch_size=row.required_whole("batch_per_rank") if "batch_per_rank" in row.cells else ANY_BATCH,
        batch_size_is="per_device",
        devices=ranks,
        epoch_seconds=row.required("step_ms", step_ms) / 1e3,
        resolution_s=None,
        provenance=None,
        steps_per_epoch=1,
        nodes=_nodes(row, ranks),
    )


def _nodes(row: CsvRow, ranks: int) -> int | None:
    nodes = row.whole("nodes")
    if nodes is not None and nodes > ranks:
        raise row.error("nodes", f"cannot hold {counted(ranks, 'rank')}: each node has at least one")
    for column in _PER_NODE if nodes is None else ():
        if (each := row.whole(column)) is not None:
            if each > _MOST_PER_NODE:
                raise row.error(column, "devices are too many for a node; give a column nodes")
            return -(-ranks // each)
    return nodes
