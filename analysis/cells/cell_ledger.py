"""The ledger of a cell: where its traced step goes, what tracing and sharing the machine add, each part with its interval."""

import math
from dataclasses import replace

from dpscope.analysis.cells.columns import INTERVAL
from dpscope.analysis.cells.row import RowBuilder, minus
from dpscope.analysis.runs.cell_data import CellData, RunSpreads
from dpscope.analysis.stats.samples import FEWEST_SAMPLES, Interval
from dpscope.analysis.traces.ranks.contention import Contentions, contentions, with_contention
from dpscope.analysis.traces.ranks.ledger import STEP_PARTS, Ledger

LEDGER = ("traced_step", *STEP_PARTS, "tracer", "slowdown")
_CHANGES = ("idle", "tracer")
"""Of t_N(b) - t_1(b): what slowdown and exposed communication leave, as changes of these parts."""
_VALUES = (
    *(f"{name}_us" for name in LEDGER), "contention_us", "contention_ratio", "other_slowdown_us",
    *(f"added_{part}_us" for part in _CHANGES),
)  # fmt: skip
LOST = "the trace does not show what the strategy must have moved (trace_incomplete)"
NOT_MATCHED = "needs matched collectives of every rank"
ONE_PROCESS = "one process drives all devices: there are no ranks to match"
_ZERO = "0 in every traced step: no interval"
_NO_INTERVAL = f"fewer than {FEWEST_SAMPLES} traced or timed steps, or too few repeats: no interval"


def put_ledger(row: RowBuilder, data: CellData, single: CellData | None, spreads: RunSpreads) -> None:
    """The ledger's columns, and t_N(b) - t_1(b) = slowdown + exposed + change of idle + change of tracer.

    `single` is the cell of one device at the same batch, None if none was measured.
    """
    ledger = spreads.ledger(data)
    if ledger is None:
        bounds = (end for column in (*_VALUES, "exposed_us") for end in INTERVAL.of(column))
        row.clear((*_VALUES, *bounds), "no whole traced step")
        return
    alone = spreads.ledger(single) if single is not None and data.cell.devices > 1 else None
    changes = {part: _change(ledger, alone, part) for part in ("compute", *_CHANGES)}
    slowdown_us, around = changes["compute"]
    intervals = {**ledger.intervals} | ({"slowdown": around} if around is not None else {})
    ledger = replace(ledger, slowdown_us=slowdown_us, intervals=intervals)
    not_hidden = "the trace shows no communication that could be hidden"
    if ledger.hidden_us is not None:
        row.contentions = cell_contentions(data, single)
        ledger, not_hidden = with_contention(ledger, row.contentions), row.contentions.reason
    row.ledger, intervals = ledger, {**ledger.intervals}
    few_kernels = "too few places of kernels, or too few free kernels: no interval"
    _put(row, "contention_us", ledger.contention_us, not_hidden, intervals.get("contention"), few_kernels)
    _put(row, "contention_ratio", ledger.contention_ratio, not_hidden, ledger.contention_ratio_interval, few_kernels)
    other_us = minus(slowdown_us, ledger.contention_us)
    why = not_hidden if slowdown_us is not None else _reason("slowdown", data)
    around = _around(
        other_us, *((getattr(ledger, f"{part}_us"), intervals.get(part)) for part in ("slowdown", "contention"))
    )
    _put(row, "other_slowdown_us", other_us, why, around)
    for name in LEDGER:
        value = getattr(ledger, f"{name}_us")
        zero = value == 0.0 and name in STEP_PARTS
        _put(row, f"{name}_us", value, _reason(name, data), intervals.get(name), _ZERO if zero else _NO_INTERVAL)
    exposed_us = ledger.exposed_us
    no_ends = _reason("exposed", data) if exposed_us is None else _NO_INTERVAL if exposed_us else _ZERO
    row.put_interval(no_ends, "exposed_us", intervals.get("exposed"))
    for part in _CHANGES:
        change, around = changes[part] if ledger.exposed_us is not None else (None, None)
        why = "needs communication and a traced single-device cell at this batch per device"
        _put(row, f"added_{part}_us", change, why, around)


def _put(
    row: RowBuilder,
    column: str,
    value: float | None,
    why: str,
    bounds: Interval | None,
    no_interval: str = _NO_INTERVAL,
) -> None:
    row.put(why, **{column: value})
    row.put_interval(why if value is None else no_interval, column, bounds)


def _around(value: float | None, *parts: tuple[float | None, Interval | None]) -> Interval | None:
    """The interval of a sum or difference of parts, whose half widths add up as squares do; None if one is unknown."""
    known = [bounds.half_width(part) for part, bounds in parts if part is not None and bounds is not None]
    if value is None or len(known) < len(parts):
        return None
    half = math.hypot(*known)
    return Interval(value - half, value + half)


def cell_contentions(data: CellData, single: CellData | None) -> Contentions:
    """Against the kernels of one device at the same batch where these were traced, else against the cell's own free kernels."""
    alone = single.tables.kernels if single is not None and data.cell.devices > 1 else None
    against_single = contentions(data.tables.kernels, alone)
    return against_single if against_single.every is not None else contentions(data.tables.kernels)


def _change(more: Ledger | None, less: Ledger | None, part: str) -> tuple[float | None, Interval | None]:
    """One part of N devices minus that of one; half widths add up as squares do."""
    if more is None or less is None:
        return None, None
    sides = [(getattr(one, f"{part}_us"), one.intervals.get(part)) for one in (more, less)]
    change = minus(*(value for value, _ in sides))
    return change, _around(change, *sides)


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
        return ONE_PROCESS
    return NOT_MATCHED
