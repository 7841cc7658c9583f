"""A cell's traced step for the page: lanes of bars for each rank, as plain data for JSON.

Times are microseconds after the earliest rank's start, rounded to a tenth. Names come from traces and are untrusted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.runs.traced_job import JobStrategy
from dpscope.analysis.text.units import show_bytes, show_time
from dpscope.analysis.traces.ranks.clock_alignment import RankClock, align_clocks
from dpscope.analysis.traces.ranks.timeline import DeviceTimeline, Mark, Spans, StepTimeline, coarser
from dpscope.analysis.traces.ranks.unknown_groups import RankOrigin
from dpscope.analysis.traces.reading.table import as_table
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.strategies import traits_of

MOST_RANKS = 8
MOST_SPANS = 40_000  # of all cells together, so that the page stays small
MOST_DRAWN_NAMES = 3_000
MOST_DRAWN_COLLECTIVES = 300  # per rank, the longest
MOST_ROWS = 4  # in which overlapping bars of one lane are stacked
_PARTIAL = "the start of this step was not recorded: it is drawn from its first event"
_INCOMPLETE = "the trace does not show all data that the strategy must have moved, so events may be missing here"
_SHORTEST_SHARE = 1e-5  # of the step: shorter bars would be invisible


@dataclass(frozen=True)
class Bar:
    """`kind` selects the colour; `label` is drawn if there is room, `detail` is shown on hover or focus.

    The first `wait_us` are waiting; None is unknown.
    """

    start_us: float
    duration_us: float
    kind: str
    label: str
    detail: str
    wait_us: float | None = None


@dataclass(frozen=True)
class Lane:
    """A row of the drawing: `fills` are unnamed unions of spans by kind, `bars` are named."""

    group: str
    label: str
    fills: tuple[tuple[str, Spans], ...]
    bars: tuple[Bar, ...] = ()


@dataclass(frozen=True)
class TimelineView:
    """One step of one cell; `notes` describe what is drawn and how clocks were aligned."""

    cell: str
    length_us: float
    lanes: tuple[Lane, ...]
    notes: tuple[str, ...]


def timeline_views(run: RunData) -> tuple[TimelineView, ...]:
    """A view for each cell with a timeline, in as much detail as the page has room for."""
    drawn = [len(one.devices) for data in run.measured for _, one in data.timelines[:MOST_RANKS]]
    devices = max(1, sum(drawn))
    views = (timeline_view(data, MOST_SPANS // (3 * devices), MOST_DRAWN_NAMES // devices) for data in run.measured)
    return tuple(view for view in views if view is not None)


def timeline_view(
    data: CellData, most_spans: int = MOST_SPANS, most_named: int = MOST_DRAWN_NAMES
) -> TimelineView | None:
    """The step of the cell's first traced repeat; None if no rank's trace has a whole step.

    Per device at most `most_spans` spans of a kind are kept (with the largest gaps between them), and the `most_named` longest
    compute events.
    """
    ranks = [one for _, one in data.timelines if one.rank is not None]
    if not ranks:
        return None
    repeat, step = data.timelines[0][0], ranks[0].step
    ranks = [
        replace(one, devices=tuple(coarser(device, most_spans, most_named) for device in one.devices))
        for one in ranks
        if one.step == step
    ]
    collectives = _of_step(data, repeat, step)
    origins = [RankOrigin(_rank(one), one.zero_ns, one.host) for one in ranks]
    clocks = align_clocks(_of_ranks(data, repeat, ranks), origins)
    places = {clock.rank: clock.place_us for clock in clocks}
    zero_us = min(one.start_us + places[_rank(one)] for one in ranks)
    end_us = max(one.end_us + places[_rank(one)] for one in ranks)
    drawn = ranks[:MOST_RANKS]
    lanes = [
        lane
        for one in drawn
        for lane in _rank_lanes(one, places[_rank(one)] - zero_us, collectives, data.cell.strategy)
    ]
    shortest = _SHORTEST_SHARE * (end_us - zero_us)
    return TimelineView(
        cell=data.cell.name,
        length_us=end_us - zero_us,
        lanes=tuple(_without_dust(lane, shortest) for lane in lanes),
        notes=(
            *_notes(repeat, step, ranks, clocks, data.cell.processes, untraced=not data.samples.empty),
            *((_PARTIAL,) if _is_partial(data, repeat, step) else ()),
            *(() if data.communication_known else (_INCOMPLETE,)),
        ),
    )


def _is_partial(data: CellData, repeat: int, step: int | None) -> bool:
    """Whether no rank's window of this step is whole."""
    steps = data.steps[data.steps["repeat"] == repeat]
    drawn = steps[steps["step"] == step] if step is not None else steps
    return len(drawn) > 0 and bool(drawn["partial_window"].fillna(True).astype(bool).all())


def _rank(one: StepTimeline) -> int:
    assert one.rank is not None
    return one.rank


def _of_ranks(data: CellData, repeat: int, ranks: Sequence[StepTimeline]) -> pd.DataFrame:
    table = data.collectives
    if table.empty:
        return table
    return table[(table["repeat"] == repeat) & table["rank"].isin([one.rank for one in ranks])]


def _of_step(data: CellData, repeat: int, step: int | None) -> pd.DataFrame:
    table = data.collectives
    if table.empty:
        return table
    in_step = table["step"].isna() if step is None else table["step"].eq(step).fillna(False)
    return table[(table["repeat"] == repeat) & in_step]


def _notes(
    repeat: int, step: int | None, ranks: Sequence[StepTimeline], clocks: Sequence[RankClock], of: int, untraced: bool
) -> Iterator[str]:
    which = "the only one" if step is None else f"number {step}"
    yield f"one traced step ({which}, repeat {repeat}); tracing slows a step" + (
        ", see tracer cost among the checks" if untraced else ", by how much is not known"
    )
    if max(of, len(ranks)) > MOST_RANKS:
        yield f"{min(len(ranks), MOST_RANKS)} of {counted(max(of, len(ranks)), 'rank')} are drawn"
    if len(ranks) > 1:
        yield _clock_note(clocks)
    closed_us = max(device.closed_gap_us for one in ranks for device in one.devices)
    if closed_us > 0:
        yield f"gaps up to {show_time(closed_us)} are drawn as filled; the tables count them"


def _clock_note(clocks: Sequence[RankClock]) -> str:
    compared = [clock for clock in clocks[1:] if clock.worst_us is not None]
    if not compared:
        return "clocks of the ranks are as recorded: no collective synchronises them"
    worst, typical = max(one.worst_us or 0.0 for one in compared), max(one.residual_us or 0.0 for one in compared)
    moved = [clock for clock in compared if clock.moved_us]
    how = f"{counted(len(moved), 'clock')} aligned on the ends of shared collectives" if moved else "clocks as recorded"
    apart = f"{show_time(typical)} apart (median of the worst rank), at most {show_time(worst)}"
    return f"{how}; these ends are {apart}" if moved else f"{how}; the ends of shared collectives are {apart}"


def _rank_lanes(one: StepTimeline, shift_us: float, collectives: pd.DataFrame, strategy: JobStrategy) -> Iterator[Lane]:
    on_host = all(device.device is None for device in one.devices)
    rank = f"rank {one.rank}"
    ranges = tuple(_bar(mark, shift_us, mark.name) for mark in one.ranges)
    if ranges:
        yield Lane(rank, "phases" if on_host else "host: launches", (), ranges)
    for device in one.devices:
        group = rank if len(one.devices) == 1 else f"{rank}, device {device.device}"
        named = tuple(_bar(mark, shift_us, "named") for mark in device.named)
        yield Lane(group, "compute", (("compute", _moved(device.compute, shift_us)),), named)
        yield from _communication(group, device, shift_us, collectives, one, strategy)
        yield from _phase_lanes(group, device, shift_us)
        if device.host_copies:
            copies = tuple(_bar(mark, shift_us, "copy") for mark in device.host_copies)
            yield Lane(group, "host copies", (), copies)


def _communication(
    group: str,
    device: DeviceTimeline,
    shift_us: float,
    collectives: pd.DataFrame,
    one: StepTimeline,
    strategy: JobStrategy,
) -> Iterator[Lane]:
    """Hidden and exposed communication, and below it collectives and copies in as few rows as possible."""
    if not device.communication:
        return
    fills = (("hidden", _moved(device.communication, shift_us)), ("exposed", _moved(device.exposed, shift_us)))
    if traits_of(strategy).host_copies:
        yield Lane(group, "host copies of DP", fills)
        return
    bars = [_copy_bar(mark, shift_us) for mark in device.copies]
    if len(collectives):
        of_rank = collectives[collectives["rank"] == one.rank]
        if device.device is not None:
            of_rank = of_rank[of_rank["device"] == device.device]
        longest = of_rank.nlargest(MOST_DRAWN_COLLECTIVES, "duration_us").sort_values("start_us")
        bars += [_collective_bar(row, shift_us) for row in as_table(longest).records(_OF_COLLECTIVES)]
    yield Lane(group, "communication", fills)
    for index, row in enumerate(_stacked(bars)):
        yield Lane(group, "collectives" if index == 0 else "", (), tuple(row))


_OF_COLLECTIVES = (
    "kind", "bytes", "busbw_gb_per_s", "lower_bound_gb_per_s", "wait_us", "transfer_us", "start_us", "duration_us",
)  # fmt: skip


def _collective_bar(row: Mapping[str, Any], shift_us: float) -> Bar:
    kind, size, rate, bound, wait, transfer, start, duration = (row[name] for name in _OF_COLLECTIVES)
    kind = kind or "collective"
    label = [show_bytes(size)] if size is not None else []
    label += [f"{rate:.3g} GB/s"] if rate is not None else []
    detail = [kind, "size unknown" if size is None else show_bytes(size), f"takes {show_time(duration)}"]
    if rate is not None:
        detail.append(f"bus bandwidth {rate:.3g} GB/s over its transfer of {show_time(transfer)}")
    elif bound is not None:
        detail.append(f"at least {bound:.3g} GB/s (waiting included)")
    if wait is not None:
        detail.append("does not wait" if wait == 0 else f"the first {show_time(wait)} are waiting for a later rank")
    return Bar(start + shift_us, duration, "collective", f"{kind} {', '.join(label)}".strip(), "; ".join(detail), wait)


def _copy_bar(mark: Mark, shift_us: float) -> Bar:
    size = "size unknown" if mark.bytes is None else show_bytes(mark.bytes)
    duration = mark.end_us - mark.start_us
    rate = f", {mark.bytes / duration / 1e3:.3g} GB/s" if mark.bytes and duration > 0 else ""
    return Bar(mark.start_us + shift_us, duration, "collective", f"copy {size}", f"{mark.name}; {size}{rate}")


def _phase_lanes(group: str, device: DeviceTimeline, shift_us: float) -> Iterator[Lane]:
    """A lane per replica of dp-host; for a device as many lanes as its phases need."""
    for replica in sorted({replica for replica, _ in device.dp_phases}, key=lambda one: -1 if one is None else one):
        bars = [_bar(mark, shift_us, mark.name) for of_replica, mark in device.dp_phases if of_replica == replica]
        label = "DP phases" if replica is None else f"DP phases, replica {replica}"
        for index, row in enumerate(_stacked(bars)):
            yield Lane(group, label if index == 0 else "", (), tuple(row))


def _stacked(bars: Iterable[Bar]) -> list[list[Bar]]:
    """The bars in rows without overlaps, except for the last row if MOST_ROWS are not enough."""
    rows: list[list[Bar]] = []
    ends: list[float] = []
    for bar in sorted(bars, key=lambda one: one.start_us):
        free = next((index for index, end in enumerate(ends) if end <= bar.start_us), None)
        if free is None and len(rows) < MOST_ROWS:
            rows.append([])
            ends.append(0.0)
            free = len(rows) - 1
        row = len(rows) - 1 if free is None else free
        rows[row].append(bar)
        ends[row] = max(ends[row], bar.start_us + bar.duration_us)
    return rows


def _bar(mark: Mark, shift_us: float, kind: str) -> Bar:
    duration = mark.end_us - mark.start_us
    size = f"; {show_bytes(mark.bytes)}" if mark.bytes is not None else ""
    return Bar(mark.start_us + shift_us, duration, kind, mark.name, f"{mark.name}; {show_time(duration)}{size}")


def _moved(spans: Spans, shift_us: float) -> Spans:
    return tuple((start + shift_us, end + shift_us) for start, end in spans)


def _without_dust(lane: Lane, shortest_us: float) -> Lane:
    kept = tuple(bar for bar in lane.bars if bar.duration_us >= shortest_us or bar.kind == "collective")
    return Lane(lane.group, lane.label, lane.fills, kept)


def as_plain(view: TimelineView) -> dict[str, object]:
    """The view as the page's script reads it, with spans as [start, duration]."""
    return {
        "cell": view.cell,
        "length": round(view.length_us, 1),
        "lanes": [
            {
                "group": lane.group,
                "label": lane.label,
                "fills": [
                    [kind, [[round(start, 1), round(end - start, 1)] for start, end in spans]]
                    for kind, spans in lane.fills
                ],
                "bars": [
                    [
                        round(bar.start_us, 1),
                        round(bar.duration_us, 1),
                        bar.kind,
                        bar.label,
                        bar.detail,
                        round(bar.wait_us or 0.0, 1),
                    ]
                    for bar in lane.bars
                ],
            }
            for lane in view.lanes
        ],
    }
