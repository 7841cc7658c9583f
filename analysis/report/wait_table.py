"""Who made whom wait, and where each rank's step goes, as tables: of one trace analysis, or of the cells of a run."""

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import Unit, choose_unit, plain, show, text
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


def trace_waits(waits: pd.DataFrame) -> TextTable:
    """The rows of `waits_caused`, the longest wait first."""
    unit = choose_unit("time", [float(value) for value in waits["wait_per_step_us"]])
    rows = [_row(record, unit) for record in waits.head(_SHOWN).to_dict("records")]
    return TextTable(_TITLE, _headings(unit), tuple(rows), _left_out(len(waits) - len(rows)))


def run_waits(cells: Sequence["CellData"]) -> TextTable | None:
    """The same of the whole steps of several cells: means over repeats. None where nobody waited."""
    means = {data.cell.name: data.mean_waits for data in cells}
    means = {cell: table for cell, table in means.items() if len(table)}
    if not means:
        return None
    unit = choose_unit("time", [float(value) for table in means.values() for value in table["wait_per_step_us"]])
    rows = [
        (cell, *_row(record, unit)) for cell, table in means.items() for record in table.head(_SHOWN).to_dict("records")
    ]
    left = sum(map(len, means.values())) - len(rows)
    return TextTable(f"{_TITLE} (means over repeats)", ("cell", *_headings(unit)), tuple(rows), _left_out(left))


def rank_table(cells: Sequence["CellData"]) -> TextTable | None:
    """Means of whole traced steps by rank and device, of cells with several; the parts of a row add up to its step."""
    rows: list[tuple[str, ...]] = []
    tables = {data.cell.name: _rank_means(data.whole_windows) for data in cells}
    tables = {cell: means for cell, means in tables.items() if len(means) > 1}
    if not tables:
        return None
    unit = choose_unit("time", [float(value) for means in tables.values() for value in means["step_us"].dropna()])
    for cell, means in tables.items():
        for key, record in zip(means.index, means.to_dict("records"), strict=True):
            rows.append((cell, *map(text, key), *(show(plain(record[name]), unit) for name in RANK_PARTS)))
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


def _rank_means(windows: pd.DataFrame) -> pd.DataFrame:
    if windows.empty:
        return windows
    values = windows[["rank", "device", *RANK_PARTS]].astype(dict.fromkeys(RANK_PARTS, "Float64"))
    return values.groupby(["rank", "device"], dropna=False).mean()


def _row(record: Mapping[Hashable, object], unit: Unit) -> tuple[str, ...]:
    return (
        *(text(record[name]) for name in ("late_rank", "waiting_rank", "collectives")),
        show(plain(record["wait_per_step_us"]), unit),
        show(plain(record["share"]), _SHARE),
    )


def _headings(unit: Unit) -> tuple[str, ...]:
    return ("late rank", "waiting rank", "collectives", f"wait per step [{unit.label}]", "share [%]")


def _left_out(count: int) -> tuple[str, ...]:
    return (f"and {count} more pairs with shorter waits",) if count > 0 else ()
