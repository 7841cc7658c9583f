"""The ledger of a cell: where its traced step goes, what tracing and sharing the machine add, each part with its interval."""

import math
from dataclasses import replace

from dpscope.analysis.cells.row import RowBuilder, minus
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.spreads import RunSpreads
from dpscope.analysis.stats.samples import FEWEST_SAMPLES, Interval
from dpscope.analysis.traces.ranks.contention import Contentions, contentions, with_contention
from dpscope.analysis.traces.ranks.ledger import STEP_PARTS, Ledger
from dpscope.analysis.traces.reading.table import as_table

LEDGER = ("traced_step", *STEP_PARTS, "tracer", "slowdown")
CHANGES = ("idle", "tracer")
"""Of t_N(b) - t_1(b): what slowdown and exposed communication leave, as changes of these parts."""
LOST = "the trace does not show what the strategy must have moved (trace_incomplete)"
_NO_INTERVAL = f"fewer than {FEWEST_SAMPLES} traced or timed steps, or one repeat alone: no interval"
_FEW_KERNELS = "too few places of kernels, or too few free kernels: no interval"
_NO_HIDDEN = "the trace shows no communication that could be hidden"
_NO_SINGLE = "needs communication and a traced single-device cell at this batch per device"


def put_ledger(row: RowBuilder, data: CellData, single: CellData | None, spreads: RunSpreads) -> None:
    """The ledger's columns, and t_N(b) - t_1(b) = slowdown + exposed + change of idle + change of tracer.

    `single` is the cell of one device at the same batch, None if none was measured.
    """
    ledger = spreads.ledger(data)
    alone = spreads.ledger(single) if single is not None and data.cell.devices > 1 else None
    changes = {part: _change(ledger, alone, part) for part in ("compute", *CHANGES)}
    if ledger is not None:
        slowdown, bounds = changes["compute"]
        intervals = {**ledger.intervals} | ({"slowdown": bounds} if bounds is not None else {})
        ledger = replace(ledger, slowdown_us=slowdown, intervals=intervals)
    row.ledger = ledger = _put_contention(row, ledger, data, single)
    for name in (*LEDGER, "exposed"):
        value = getattr(ledger, f"{name}_us") if ledger is not None else None
        reason = _reason(name, data) if ledger is not None else "no whole traced step"
        if name != "exposed":
            row.put(reason, **{f"{name}_us": value})
        _put_bounds(row, f"{name}_us", value, reason, ledger.intervals.get(name) if ledger is not None else None)
    for part in CHANGES:
        known = ledger is not None and ledger.exposed_us is not None
        change, bounds = changes[part] if known else (None, None)
        row.put(_NO_SINGLE, **{f"added_{part}_us": change})
        _put_bounds(row, f"added_{part}_us", change, _NO_SINGLE, bounds)


def _put_contention(row: RowBuilder, ledger: Ledger | None, data: CellData, single: CellData | None) -> Ledger | None:
    """The columns of contention, and the rest of the slowdown; returns the ledger with them."""
    unknown = _NO_HIDDEN
    if ledger is not None and ledger.hidden_us is not None:
        row.contentions = cell_contentions(data, single)
        ledger, unknown = with_contention(ledger, row.contentions), row.contentions.reason
    bounds = {
        "contention_us": ledger.intervals.get("contention") if ledger is not None else None,
        "contention_ratio": ledger.contention_ratio_interval if ledger is not None else None,
    }
    for column, interval in bounds.items():
        value = getattr(ledger, column) if ledger is not None else None
        row.put(unknown, **{column: value})
        row.put_interval(unknown if value is None else _FEW_KERNELS, column, interval)
    slowdown_us, contention_us = (ledger.slowdown_us, ledger.contention_us) if ledger is not None else (None, None)
    reason = unknown if slowdown_us is not None else _reason("slowdown", data)
    other_us = minus(slowdown_us, contention_us)
    ends = [ledger.intervals.get(part) for part in ("slowdown", "contention")] if ledger is not None else [None, None]
    row.put(reason, other_slowdown_us=other_us)
    _put_bounds(row, "other_slowdown_us", other_us, reason, _around(other_us, *ends))
    return ledger


def _around(value: float | None, *parts: Interval | None) -> Interval | None:
    """The interval of a sum or difference of parts, whose half widths add up as squares do; None if one is unknown."""
    if value is None or None in parts:
        return None
    half = math.hypot(*(one.half_width for one in parts if one is not None))
    return Interval(value - half, value + half)


def cell_contentions(data: CellData, single: CellData | None) -> Contentions:
    """Against the kernels of one device at the same batch where these were traced, else against the cell's own free kernels."""
    own = as_table(data.kernels)
    alone = as_table(single.kernels) if single is not None and data.cell.devices > 1 else None
    against_single = contentions(own, alone)
    return against_single if against_single.every is not None else contentions(own)


def _put_bounds(row: RowBuilder, column: str, value: float | None, reason: str, bounds: Interval | None) -> None:
    row.put_interval(reason if value is None else _NO_INTERVAL, column, bounds)


def _change(more: Ledger | None, less: Ledger | None, part: str) -> tuple[float | None, Interval | None]:
    """One part of N devices minus that of one; half widths add up as squares do."""
    if more is None or less is None:
        return None, None
    change = minus(getattr(more, f"{part}_us"), getattr(less, f"{part}_us"))
    return change, _around(change, *(one.intervals.get(part) for one in (more, less)))


def _reason(name: str, data: CellData) -> str:
    alone = data.cell.devices == 1
    if name == "slowdown":
        return "one device: nothing to compare" if alone else "no traced single-device cell at this batch per device"
    if name == "tracer":
        return "no untraced step was timed"
    if not name.startswith("exposed"):
        return "the trace does not show it"
    if alone:
        return "one device: nothing to communicate"
    if not data.communication_known:
        return LOST
    if data.cell.traits.one_process:
        return "copies within one process: no collective to match"
    return "needs matched collectives of every rank"
