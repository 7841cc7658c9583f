"""Tables for a trace analysis or for the cells of a run: DataParallel's phases, waits, each rank's step, contention."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA, Unit, choose_unit, show, text
from dpscope.analysis.traces.data_parallel.phases import phase_means
from dpscope.analysis.traces.ranks.contention import Contentions
from dpscope.analysis.traces.reading.table import Table, as_table, joined
from dpscope.profiling.records.finding import counted

if TYPE_CHECKING:
    import pandas as pd

    from dpscope.analysis.runs.cell_data import CellData


_KEYS = ("rank", "device", "replica")
_LABELS = {
    "host_to_device": "to dev.", "parallel_apply": "apply", "loss_backward": "loss+bwd", "gradient_reduce": "reduce",
    "optimizer": "optim.",
}  # fmt: skip
_OF_REPLICAS = "replicas work in parallel, so their times do not add up to those in the row 'all'"
_OF_DEVICES = "device time launched in each phase, communication included; NA: nothing was launched there"


def trace_phases(phases: Table) -> TextTable:
    """Mean time per step of each phase from rows of `dp_phase_table`; a row per device, or per replica of dp-host."""
    return _shown({None: phase_means(phases)})


def run_phases(by_cell: "Mapping[str, pd.DataFrame]") -> TextTable | None:
    """The same for several cells, whose rows also have a `repeat`: means over repeats. None without any rows."""
    means: dict[str | None, Table] = {
        cell: _over_repeats(as_table(frame)) for cell, frame in by_cell.items() if len(frame)
    }
    return _shown(means) if means else None


def _over_repeats(phases: Table) -> Table:
    repeats = [phase_means(phases.take(rows)) for rows in phases.group("repeat").rows()]
    names = dict.fromkeys(name for one in repeats for name in one.names)
    together = joined(
        [one.assign(**{name: None for name in names if name not in one}).select(names) for one in repeats]
    )
    places = together.group(*_KEYS, in_order=True)
    times = {name: places.means(together[name]) for name in names if name not in _KEYS}
    return together.take(places.first).select(_KEYS).assign(**times)


def _shown(means: Mapping[str | None, Table]) -> TextTable:
    names = dict.fromkeys(name for table in means.values() for name in table.names if name not in _KEYS)
    known = [table[name] for table in means.values() for name in names if name in table]
    unit = choose_unit("time", np.concatenate(known).tolist() if known else [])
    on_host = not any(table.known("device").any() for table in means.values())
    rows = []
    for cell, table in means.items():
        for record in table.records():
            place = record["replica"] if on_host else record["device"]
            label = "all" if on_host and place is None else text(place)
            key = (label,) if cell is None else (cell, label)
            rows.append((*key, *(show(record.get(name), unit) for name in names)))
    place_heading = "replica" if on_host else "device"
    phases = [name.removesuffix("_us") for name in names]
    return TextTable(
        f"{'dp-host' if on_host else 'DataParallel'}'s phases (means per step)",
        (
            *((place_heading,) if None in means else ("cell", place_heading)),
            *(f"{_LABELS.get(name, name)} [{unit.label}]" for name in phases),
        ),
        tuple(rows),
        (_OF_REPLICAS if on_host else _OF_DEVICES,),
    )


_SHARE = Unit("%", 0.01, 1)
_MOST_PAIRS = 10  # rows; the JSON output has all
_TITLE = "Which ranks wait for which"
_MOST_RANKS = 64  # rows per cell; the JSON output has all
RANK_PARTS = {
    "step_us": "traced step", "compute_us": "compute", "exposed_wait_us": "wait", "exposed_transfer_us": "transfer",
    "exposed_other_us": "other", "idle_us": "idle",
}  # fmt: skip


def trace_waits(waits: Table) -> TextTable:
    """The rows of `waits_by_pair`, the longest wait first."""
    unit = choose_unit("time", waits["wait_per_step_us"].tolist())
    rows = [_row(record, unit) for record in waits.records()[:_MOST_PAIRS]]
    return TextTable(_TITLE, _headings(unit), tuple(rows), _left_out(len(waits) - len(rows)))


def run_waits(cells: Sequence["CellData"]) -> TextTable | None:
    """The same for the whole steps of several cells: means over repeats. None if no rank waited."""
    means = {data.cell.name: as_table(data.mean_waits) for data in cells}
    means = {cell: table for cell, table in means.items() if len(table)}
    if not means:
        return None
    unit = choose_unit("time", [value for table in means.values() for value in table["wait_per_step_us"].tolist()])
    rows = [(cell, *_row(record, unit)) for cell, table in means.items() for record in table.records()[:_MOST_PAIRS]]
    left = sum(map(len, means.values())) - len(rows)
    return TextTable(f"{_TITLE} (means over repeats)", ("cell", *_headings(unit)), tuple(rows), _left_out(left))


def rank_table(cells: Sequence["CellData"]) -> TextTable | None:
    """Means of whole traced steps by rank and device, for cells with several; the parts of a row add up to its step."""
    tables = {data.cell.name: _rank_means(as_table(data.whole_windows)) for data in cells}
    tables = {cell: means for cell, means in tables.items() if len(means) > 1}
    if not tables:
        return None
    unit = choose_unit("time", [value for means in tables.values() for value in means["step_us"].tolist()])
    rows = tuple(
        (cell, text(record["rank"]), text(record["device"]), *(show(record[name], unit) for name in RANK_PARTS))
        for cell, means in tables.items()
        for record in means.records()[:_MOST_RANKS]
    )
    left = sum(max(0, len(means) - _MOST_RANKS) for means in tables.values())
    headings = ("cell", "rank", "device", *(f"{heading} [{unit.label}]" for heading in RANK_PARTS.values()))
    notes = (f"and {counted(left, 'rank')} more: analyze --format json shows all",) if left else ()
    title = "Where each rank's step goes: traced step = compute + wait + transfer + other + idle"
    return TextTable(title, headings, rows, notes)


def _rank_means(windows: Table) -> Table:
    if not len(windows):
        return windows
    ranks = windows.group("rank", "device", in_order=True)
    means = {name: ranks.means(windows[name]) for name in RANK_PARTS}
    return windows.take(ranks.first).select(("rank", "device")).assign(**means)


def _row(record: Mapping[str, object], unit: Unit) -> tuple[str, ...]:
    return (
        *(text(record[name]) for name in ("late_rank", "waiting_rank", "collectives")),
        show(record["wait_per_step_us"], unit),
        show(record["share"], _SHARE),
    )


def _headings(unit: Unit) -> tuple[str, ...]:
    return ("late rank", "waiting rank", "collectives", f"wait per step [{unit.label}]", "share [%]")


def _left_out(count: int) -> tuple[str, ...]:
    return (f"and {count} more pairs with shorter waits",) if count > 0 else ()


_MOST_OPERATORS = 5


def contention_table(cells: Mapping[str, tuple[Contentions, float | None]]) -> TextTable | None:
    """Per cell all operators, then those that cost most: ratio with interval, cost per step, net gain of hiding.

    `cells` maps names to contention and hidden communication in microseconds per step.
    """
    found = [
        (cell, each, hidden_us * each.overlapped_us / one.every.overlapped_us)
        for cell, (one, hidden_us) in cells.items()
        if one.every is not None and hidden_us is not None
        for each in (one.every, *one.by_operator[:_MOST_OPERATORS])
    ]
    if not found:
        return None
    unit = choose_unit("time", [overlapped_us for _, _, overlapped_us in found])
    rows = tuple(
        (
            cell,
            one.operator or "all operators",
            f"{one.ratio:.2f}",
            f"{one.ratio_interval.low:.2f} to {one.ratio_interval.high:.2f}" if one.ratio_interval is not None else NA,
            show(overlapped_us, unit),
            show(one.cost_us(overlapped_us), unit),
            show(overlapped_us - one.cost_us(overlapped_us), unit),
            f"{one.compared:.0%}",
        )
        for cell, one, overlapped_us in found
    )
    return TextTable(
        "Contention: what hidden communication costs the compute next to it, per traced step",
        (
            "cell", "operator", "ratio", "95% interval", f"hidden [{unit.label}]", f"cost [{unit.label}]",
            f"net gain [{unit.label}]", "compared",
        ),
        rows,
        (
            "ratio: compute next to communication over the same compute on one device, or over the cell's kernels without "
            f"communication; the {_MOST_OPERATORS} operators of each cell with the largest cost",
        ),
    )  # fmt: skip
