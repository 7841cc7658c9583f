"""Who made whom wait, and where each rank's step goes, as tables: of one trace analysis, or of the cells of a run."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import Unit, choose_unit, show, text
from dpscope.analysis.traces.reading.table import Table, as_table
from dpscope.profiling.records.finding import counted

if TYPE_CHECKING:
    from dpscope.analysis.runs.cell_data import CellData

_SHARE = Unit("%", 0.01, 1)
_SHOWN = 10  # rows; the JSON has them all
_TITLE = "Who made whom wait"
_MOST_RANKS = 64  # rows of one cell; the JSON has them all
RANK_PARTS = {
    "step_us": "traced step", "compute_us": "compute", "exposed_wait_us": "wait", "exposed_transfer_us": "transfer",
    "exposed_other_us": "other", "idle_us": "idle",
}  # fmt: skip


def trace_waits(waits: Table) -> TextTable:
    """The rows of `waits_by_pair`, the longest wait first."""
    unit = choose_unit("time", waits["wait_per_step_us"].tolist())
    rows = [_row(record, unit) for record in waits.records()[:_SHOWN]]
    return TextTable(_TITLE, _headings(unit), tuple(rows), _left_out(len(waits) - len(rows)))


def run_waits(cells: Sequence["CellData"]) -> TextTable | None:
    """The same of the whole steps of several cells: means over repeats. None where nobody waited."""
    means = {data.cell.name: as_table(data.mean_waits) for data in cells}
    means = {cell: table for cell, table in means.items() if len(table)}
    if not means:
        return None
    unit = choose_unit("time", [value for table in means.values() for value in table["wait_per_step_us"].tolist()])
    rows = [(cell, *_row(record, unit)) for cell, table in means.items() for record in table.records()[:_SHOWN]]
    left = sum(map(len, means.values())) - len(rows)
    return TextTable(f"{_TITLE} (means over repeats)", ("cell", *_headings(unit)), tuple(rows), _left_out(left))


def rank_table(cells: Sequence["CellData"]) -> TextTable | None:
    """Means of whole traced steps by rank and device, of cells with several; the parts of a row add up to its step."""
    rows: list[tuple[str, ...]] = []
    tables = {data.cell.name: _rank_means(as_table(data.whole_windows)) for data in cells}
    tables = {cell: means for cell, means in tables.items() if len(means) > 1}
    if not tables:
        return None
    unit = choose_unit("time", [value for means in tables.values() for value in means["step_us"].tolist()])
    for cell, means in tables.items():
        for record in means.records():
            place = (text(record[name]) for name in ("rank", "device"))
            rows.append((cell, *place, *(show(record[name], unit) for name in RANK_PARTS)))
    left = sum(max(0, len(means) - _MOST_RANKS) for means in tables.values())
    headings = ("cell", "rank", "device", *(f"{heading} [{unit.label}]" for heading in RANK_PARTS.values()))
    notes = (f"and {counted(left, 'rank')} more: analyze --format json has all",) if left else ()
    kept = [row for cell in tables for row in [row for row in rows if row[0] == cell][:_MOST_RANKS]]
    return TextTable(
        "Where each rank's step goes: traced step = compute + wait + transfer + other + idle",
        headings,
        tuple(kept),
        notes,
    )


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
