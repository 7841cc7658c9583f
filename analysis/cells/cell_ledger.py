"""The ledger of a cell: where its traced step goes, what tracing and sharing the machine add, each
part with its interval.
"""

import math
from dataclasses import replace
from functools import partial

from dpscope.analysis.cells.identity import lost, measured, single_at_same_batch
from dpscope.analysis.cells.view import Bounds, CellView, if_known, once
from dpscope.analysis.stats.missing import Missing, known
from dpscope.analysis.stats.samples import Interval
from dpscope.analysis.traces.ranks.contention import (
    Contentions,
    contentions,
    of_enough_hidden,
    with_contention,
)
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.ledger import STEP_PARTS, Ledger

NO_TRACED_STEP = "no whole traced step"
NOT_SHOWN = "the trace does not show it"
NO_INTERVAL = "too few traced repeats, or repeats too far apart: no interval"
NOT_MATCHED = "needs matched collectives of every rank"
ONE_PROCESS = "one process drives all devices: there are no ranks to match"
_ZERO = "0 in every traced step: no interval"
_NO_TRACED_SINGLE = "no traced single-device cell at this batch per device"


def no_traced_step(cell: CellView) -> str:
    """Why nothing is known of a cell's traced step."""
    return cell.data.why_not_traced or NO_TRACED_STEP


@once
def traced_ledger(cell: CellView) -> Ledger:
    """Without the parts that need other cells."""
    measured(cell)
    return known(cell.spreads.ledger(cell.data), no_traced_step(cell))


@once
def ledger(cell: CellView) -> Ledger:
    """With slowdown and contention, as far as they are known."""
    own = traced_ledger(cell)
    slowdown_us = if_known(partial(change_us, part="compute"), cell)
    if slowdown_us is not None:
        intervals = dict(own.intervals)
        bounds = _interval_of_change(cell, slowdown_us, "compute")
        if bounds is not None:
            intervals["slowdown"] = bounds
        own = replace(own, slowdown_us=slowdown_us, intervals=intervals)
    shown = if_known(contentions_shown, cell)
    return own if shown is None else with_contention(own, shown)


@once
def contentions_shown(cell: CellView) -> Contentions:
    """What slows the compute of a cell whose trace shows hidden communication."""
    known(traced_ledger(cell).hidden_us, "the trace shows no communication that could be hidden")
    single = if_known(single_at_same_batch, cell)
    return cell_contentions(cell.data, single.data if single is not None else None)


def cell_contentions(data: Job, single: Job | None) -> Contentions:
    """Against the kernels of one device at the same batch where these were traced, else against the
    cell's own free kernels.
    """
    alone = single.tables.kernels if single is not None and data.devices > 1 else None
    against_single = contentions(data.tables.kernels, alone)
    if against_single.every is None:
        return data.contentions
    return of_enough_hidden(against_single, data.traced_ledger)


@once
def single_ledger(cell: CellView) -> Ledger:
    """Of one device at the same batch."""
    if cell.devices == 1:
        raise Missing("one device: nothing to compare")
    single = known(if_known(single_at_same_batch, cell), _NO_TRACED_SINGLE)
    return known(if_known(traced_ledger, single), _NO_TRACED_SINGLE)


def _part_us(own: Ledger, part: str) -> float | None:
    return own.tracer_us if part == "tracer" else own.parts_us.get(part)


def change_us(cell: CellView, part: str) -> float:
    """A part of the step on N devices minus that on one device at the same batch."""
    several_us = known(_part_us(traced_ledger(cell), part), NOT_SHOWN)
    return several_us - known(_part_us(single_ledger(cell), part), NOT_SHOWN)


def _interval_of_change(cell: CellView, change: float, part: str) -> Interval | None:
    """Half the widths of the intervals of both sides add up as squares do."""
    halves = []
    for side in (traced_ledger(cell), single_ledger(cell)):
        time_us, bounds = _part_us(side, part), side.intervals.get(part)
        if time_us is None or bounds is None:
            return None
        halves.append(bounds.half_width(time_us))
    half = math.hypot(*halves)
    return Interval(change - half, change + half)


def interval_of_change(part: str) -> Bounds:
    """The interval of what `change_us` gives."""
    return lambda cell, change: known(_interval_of_change(cell, change, part), NO_INTERVAL)


def exposed(cell: CellView, part_us: float | None) -> float:
    """A part of the exposed communication, or why it is not known."""
    if cell.devices == 1:
        raise Missing("one device: nothing to communicate")
    if not cell.data.communication_known:
        raise Missing(lost(cell.data))
    return known(part_us, ONE_PROCESS if cell.traits.one_process else NOT_MATCHED)


def interval_of(part: str) -> Bounds:
    """The interval of a part, by its name in the ledger."""

    def ends(cell: CellView, value: float) -> tuple[float, float]:
        always_zero = value == 0.0 and part in (*STEP_PARTS, "exposed")
        return known(ledger(cell).intervals.get(part), _ZERO if always_zero else NO_INTERVAL)

    return ends
