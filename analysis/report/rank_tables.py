"""Tables for a trace analysis or for the cells of a run: DataParallel's phases, waits, each rank's
step, contention.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.text_table import CELL, Field, TextTable, table_of
from dpscope.analysis.text.units import NA, Unit, text
from dpscope.analysis.traces.ranks.contention import Contentions
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.reading.table import Table, joined
from dpscope.analysis.traces.steps.data_parallel import phase_means
from dpscope.profiling.records.finding import counted

_KEYS = ("rank", "device", "replica")
_PHASES = {  # column -> heading and meaning
    "host_to_device_us": (
        "to dev.",
        "Copying the batch to the device before DataParallel is called",
    ),
    "scatter_us": ("scatter", "Distributing the batch over the devices"),
    "replicate_us": ("replicate", "Sending parameters and buffers to every device"),
    "parallel_apply_us": ("apply", "The forward pass of the replicas"),
    "gather_us": ("gather", "Collecting the outputs on the first device"),
    "loss_backward_us": ("loss+bwd", "The loss, and the backward pass without its reduction"),
    "gradient_reduce_us": ("reduce", "Adding up the gradients on the first device"),
    "optimizer_us": ("optim.", "The optimizer's step"),
    "other_us": ("other", "Work launched outside of all phases"),
}
_OF_REPLICAS = "replicas work in parallel, so their times do not add up to those in the row 'all'"
_OF_DEVICES = (
    "device time launched in each phase, communication included; NA: nothing was launched there"
)
_REPLICA = "Replica of dp-host; all: the time in which at least one of them was in the phase"


def without_cell(table: TextTable) -> TextTable:
    """A table of one cell, which need not be named in every row."""
    if table.headings[0] != CELL.heading:
        return table
    rows = tuple(row[1:] for row in table.rows)
    return replace(table, headings=table.headings[1:], rows=rows, meanings=table.meanings[1:])


def phase_table(by_cell: Mapping[str, Table]) -> TextTable:
    """Mean time per step of each phase from rows of `dp_phase_table`; a row per device, or per
    replica of dp-host.
    """
    means = {cell: _over_repeats(phases) for cell, phases in by_cell.items() if len(phases)}
    names = dict.fromkeys(
        name for table in means.values() for name in table.names if name not in _KEYS
    )
    rows = [
        {"cell": cell, **one}
        for cell, table in means.items()
        for one in table.records((*_KEYS, *names))
    ]
    on_host = all(row["device"] is None for row in rows)
    place, meaning = (
        ("replica", _REPLICA) if on_host else ("device", "Device of the DataParallel process")
    )

    def placed(row: Mapping[str, object]) -> str:
        return "all" if on_host and row[place] is None else text(row[place])

    times = [
        Field(heading, name, "time", what) for name in names for heading, what in [_PHASES[name]]
    ]
    return table_of(
        f"{'dp-host' if on_host else 'DataParallel'}'s phases (means per step)",
        [CELL, Field(place, placed, meaning=meaning), *times],
        rows,
        [_OF_REPLICAS if on_host else _OF_DEVICES],
    )


def cells_phases(run: RunData) -> TextTable:
    """DataParallel's phases of a run's cells."""
    return phase_table(
        {data.name: data.tables.dp_phases for data in run.measured if data.communication_known}
    )


def _over_repeats(phases: Table) -> Table:
    repeats = [phase_means(phases.take(rows)) for rows in phases.group("repeat").rows()]
    names = list(dict.fromkeys(name for repeat in repeats for name in repeat.names))
    together = joined(
        [
            repeat.assign(
                **{name: np.full(len(repeat), np.nan) for name in names if name not in repeat}
            ).select(names)
            for repeat in repeats
        ]
    )
    places = together.group(*_KEYS, in_order=True)
    times = {name: places.means(together[name]) for name in names if name not in _KEYS}
    return together.take(places.first).select(_KEYS).assign(**times)


_MOST_PAIRS = 10  # rows; the JSON output has all
_MOST_RANKS = 64  # rows per cell; the JSON output has all
_WAITS = (
    CELL,
    Field("late rank", "late_rank", meaning="The rank that came last to a collective"),
    Field("waiting rank", "waiting_rank", meaning="A rank that waited for it"),
    Field(
        "collectives",
        "collectives",
        meaning="Collectives in which it waited, over all whole traced steps",
    ),
    Field(
        "exposed wait",
        "exposed_wait_us",
        "time",
        "Mean per traced step of the waiting rank; adds up to its wait by rank",
    ),
    Field("share", "exposed_share", "share", "Share of all exposed waiting in this cell"),
    Field(
        "all waiting",
        "wait_per_step_us",
        "time",
        "All waiting per step, also behind compute; waits at once count once",
    ),
)
_EXPOSED = "Exposed communication in which"
_RANKS = (
    CELL,
    Field("rank", "rank", meaning="Rank of the process"),
    Field("device", "device", meaning="Its device"),
    Field(
        "traced step",
        "step_us",
        "time",
        "Mean of the whole traced steps: the sum of the following columns",
    ),
    Field("compute", "compute_us", "time", "At least one kernel or operator computes"),
    Field(
        "wait",
        "exposed_wait_us",
        "time",
        f"{_EXPOSED} collectives wait for a late rank and none transfers",
    ),
    Field(
        "transfer",
        "exposed_transfer_us",
        "time",
        f"{_EXPOSED} at least one matched collective transfers",
    ),
    Field(
        "other",
        "exposed_other_us",
        "time",
        "Exposed communication without a separate wait and transfer",
    ),
    Field("idle", "idle_us", "time", "Neither compute nor communication"),
)


def wait_table(waits: Mapping[str, Table], means: str = "") -> TextTable:
    """The rows of `with_exposed_waits` by cell; `means` states over what they are means."""
    rows, left = _first_records(waits, _MOST_PAIRS)
    notes = [f"and {left} more pairs with shorter waits"] if left else []
    longest_us = max(
        (float(row["exposed_wait_us"]) for row in rows), default=None
    )  # with a unit for it, short waits are short
    return table_of(f"Which ranks wait for which{means}", _WAITS, rows, notes, times=[longest_us])


def cells_waits(run: RunData) -> TextTable:
    """Who waits for whom in a run's cells."""
    known = [data for data in run.measured if data.communication_known]
    return wait_table({data.name: data.mean_waits for data in known}, " (means over repeats)")


def _first_records(tables: Mapping[str, Table], most: int) -> tuple[list[dict[str, Any]], int]:
    """The first records of each cell's table with the cell's name, and how many more there are."""
    rows = [
        {"cell": cell, **one} for cell, table in tables.items() for one in table.records()[:most]
    ]
    return rows, sum(map(len, tables.values())) - len(rows)


def rank_table(cells: Sequence[Job]) -> TextTable:
    """Means of whole traced steps by rank and device, for cells with several; the parts of a row
    add up to its step.
    """
    means = {}
    for data in cells:
        if not data.communication_known:
            continue
        windows = data.whole_windows
        if len(windows) and len(ranks := windows.group("rank", "device", in_order=True)) > 1:
            columns = {
                str(field.get): ranks.means(windows[str(field.get)])
                for field in _RANKS
                if field.unit == "time"
            }
            means[data.name] = (
                windows.take(ranks.first).select(("rank", "device")).assign(**columns)
            )
    rows, left = _first_records(means, _MOST_RANKS)
    notes = [f"and {counted(left, 'rank')} more: analyze --format json shows all"] if left else []
    times = [value for table in means.values() for value in table["step_us"].tolist()]
    title = "Where each rank's step goes: traced step = compute + wait + transfer + other + idle"
    return table_of(title, _RANKS, rows, notes, times=times)


_MOST_OPERATORS = 5
_RATIO = "Compute next to communication over the same compute on one device, or without communication in this cell"
_OPERATOR = "The operator that launched the kernels; on a CPU an operator that calls no other"
_COMPARED = (
    "Share of the overlapped compute time for which comparable kernels ran without communication"
)
_CONTENTION = (
    CELL,
    Field("operator", "operator", meaning=_OPERATOR),
    Field("ratio", "ratio", Unit("", 1.0, 2), _RATIO),
    Field("95% interval", "interval", meaning="Of the ratio; NA with too few steps"),
    Field("hidden", "hidden_us", "time", "Communication behind this compute"),
    Field(
        "cost",
        "cost_us",
        "time",
        "What that communication costs the compute: hidden x (1 - 1/ratio)",
    ),
    Field("net gain", "gain_us", "time", "Hidden communication minus its cost"),
    Field("compared", "compared", meaning=_COMPARED),
)


def cells_contention(comparison: Comparison) -> TextTable:
    """What hidden communication costs in the cells of a comparison."""
    return contention_table(
        [
            (row.cell, row.contentions, row.ledger.hidden_us)
            for row in comparison.rows.values()
            if row.contentions is not None and row.ledger is not None
        ]
    )


def contention_table(cells: Iterable[tuple[str, Contentions, float | None]]) -> TextTable:
    """Per cell all operators, then those that cost most: ratio with interval, cost per step, net
    gain of hiding.

    `cells` are names with the contention and the hidden communication in microseconds per step.
    """
    rows: list[dict[str, Any]] = []
    for cell, found, total_us in cells:
        if found.every is None or total_us is None:
            continue
        for measured in (found.every, *found.by_operator[:_MOST_OPERATORS]):
            within, hidden_us = (
                measured.ratio_interval,
                total_us * measured.overlapped_us / found.every.overlapped_us,
            )
            rows.append(
                {
                    "cell": cell,
                    "operator": measured.operator or "all operators",
                    "ratio": measured.ratio,
                    "interval": f"{within.low:.2f} to {within.high:.2f}"
                    if within is not None
                    else NA,
                    "hidden_us": hidden_us,
                    "cost_us": (cost_us := measured.cost_us(hidden_us)),
                    "gain_us": hidden_us - cost_us,
                    "compared": f"{measured.compared:.0%}",
                }
            )
    title = "Contention: what hidden communication costs the compute next to it, per traced step"
    note = (
        "ratio: compute next to communication over the same compute on one device, or over the cell's kernels without "
        f"communication; the {_MOST_OPERATORS} operators of each cell with the largest cost"
    )
    return table_of(title, _CONTENTION, rows, [note], times=[row["hidden_us"] for row in rows])
