"""The ledger of a cell: where its traced step goes, what tracing and sharing the machine add, each part with its interval."""

import math
from dataclasses import replace

from dpscope.analysis.cells.row import Row, minus
from dpscope.analysis.runs.repeats import PARTS, RunSpreads, parts_by_repeat
from dpscope.analysis.runs.run_data import CellData
from dpscope.analysis.stats.samples import FEWEST_SAMPLES, Interval, half_width, pooled_median
from dpscope.analysis.traces.ranks.contention import Contentions, contentions, with_contention
from dpscope.analysis.traces.ranks.ledger import STEP_PARTS, Ledger, ledger_of

LEDGER = ("traced_step", *STEP_PARTS, "tracer", "slowdown")
CHANGES = ("idle", "tracer")
"""Of t_N(b) - t_1(b): what slowdown and exposed communication leave, as changes of these parts."""
LOST = "the trace does not show what the strategy must have moved (trace_incomplete)"
_NO_INTERVAL = f"fewer than {FEWEST_SAMPLES} traced or timed steps, or one repeat alone: no interval"
_FEW_KERNELS = "too few places of kernels, or too few free kernels: no interval"
_NO_HIDDEN = "the trace shows no communication that could be hidden"
_NO_SINGLE = "needs communication and a traced single-device cell at this batch per device"


def cell_ledger(data: CellData, spreads: RunSpreads) -> Ledger | None:
    """Means over ranks and whole traced windows, each with its 95% interval over repeats around it.

    None without a traced step. `slowdown_us` is left to `put_ledger`, which knows the cell of one device.
    """
    windows = data.whole_windows()
    ledger = ledger_of(windows, data.exposed_parts) if len(windows) else None
    if ledger is None:
        return None
    if data.cell.devices == 1 or not data.communication_known:
        ledger = replace(
            ledger, exposed_wait_us=None, exposed_transfer_us=None, exposed_other_us=None, communication_us=None
        )
    if not data.communication_known:
        ledger = replace(ledger, idle_us=None)  # it would hold what the trace does not show
    step_us = pooled_median(data.step_samples())
    ledger = replace(ledger, tracer_us=minus(step_us, ledger.traced_step_us))
    values = {part: value for part in PARTS if (value := getattr(ledger, f"{part}_us")) is not None}
    halves = _half_widths(data, spreads)
    return replace(
        ledger,
        intervals={
            part: Interval(value - half, value + half)
            for part, value in values.items()
            if (half := halves[part]) is not None
        },
    )


def _half_widths(data: CellData, spreads: RunSpreads) -> dict[str, float | None]:
    """Half the 95% interval of each of PARTS, microseconds; None with too few steps, or if the spread is unknown.

    From what each repeat shows, as shares of the cell's untraced step.
    """
    step_us, parts = pooled_median(data.step_samples()), parts_by_repeat(data)
    traced = len(data.critical_windows().drop_duplicates(["repeat", "step"]))
    if step_us is None or min(sum(map(len, data.step_samples())), traced) < FEWEST_SAMPLES:
        return dict.fromkeys(PARTS)
    shares = {part: (parts[part].dropna() / step_us).to_numpy() for part in PARTS}
    halves = {part: half_width(shares[part], spreads.parts[part]) for part in PARTS}
    return {part: half * step_us if half is not None else None for part, half in halves.items()}


def put_ledger(row: Row, data: CellData, single: CellData | None, spreads: RunSpreads) -> None:
    """The ledger's columns, and t_N(b) - t_1(b) = slowdown + exposed + change of idle + change of tracer.

    `single` is the cell of one device at the same batch, None if none was measured.
    """
    ledger = cell_ledger(data, spreads)
    alone = cell_ledger(single, spreads) if single is not None and data.cell.devices > 1 else None
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


def _put_contention(row: Row, ledger: Ledger | None, data: CellData, single: CellData | None) -> Ledger | None:
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
    row.put(reason, other_slowdown_us=minus(slowdown_us, contention_us))
    return ledger


def cell_contentions(data: CellData, single: CellData | None) -> Contentions:
    """Against the kernels of one device at the same batch where these were traced, else against the cell's own free kernels."""
    alone = single.kernels if single is not None and data.cell.devices > 1 else None
    against_single = contentions(data.kernels, alone)
    return against_single if against_single.every is not None else contentions(data.kernels)


def _put_bounds(row: Row, column: str, value: float | None, reason: str, bounds: Interval | None) -> None:
    row.put_interval(reason if value is None else _NO_INTERVAL, column, bounds)


def _change(more: Ledger | None, less: Ledger | None, part: str) -> tuple[float | None, Interval | None]:
    """One part of N devices minus that of one; half widths add up as squares do."""
    if more is None or less is None:
        return None, None
    change = minus(getattr(more, f"{part}_us"), getattr(less, f"{part}_us"))
    bounds = [one.intervals.get(part) for one in (more, less)]
    if change is None or bounds[0] is None or bounds[1] is None:
        return change, None
    half = math.hypot(bounds[0].half_width, bounds[1].half_width)
    return change, Interval(change - half, change + half)


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
