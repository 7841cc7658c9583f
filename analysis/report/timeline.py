"""A cell's traced step for the page: lanes of bars for each rank, as plain data for JSON.

Times are microseconds after the earliest rank's start, rounded to a tenth. Names come from traces
and are untrusted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.units import show_bytes, show_time
from dpscope.analysis.traces.ranks.clock_alignment import RankClock, rank_clocks
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.matching import RankOrigin
from dpscope.analysis.traces.ranks.timeline import (
    DeviceTimeline,
    Mark,
    Spans,
    StepTimeline,
    coarser,
)
from dpscope.analysis.traces.reading.table import UNKNOWN, Table
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.strategies import traits_of
from dpscope.profiling.store.shown_text import cleaned, one_line

MOST_RANKS = 8
MOST_SPANS = 40_000  # of all cells together, so that the page stays small
MOST_DRAWN_NAMES = 3_000
MOST_DRAWN_COLLECTIVES = 300  # per rank, the longest
MOST_ROWS = 4  # in which overlapping bars of one lane are stacked
COLLECTIVES = ("collective", "unsplit")  # kinds of bars: with a known wait or transfer, or not
_SHORTEST_SHARE = 1e-5  # of the step: shorter bars would be invisible


class Bar(NamedTuple):
    """`kind` selects the colour; `label` is drawn if there is room, `detail` is shown on hover or
    focus.

    The first `wait_us` are waiting; None where the wait is not known.
    """

    start_us: float
    duration_us: float
    kind: str
    label: str
    detail: str
    wait_us: float | None = None


class Lane(NamedTuple):
    """A row of the drawing: `fills` are unnamed unions of spans by kind, (start, end) or on the
    page (start, duration).
    """

    group: str
    label: str
    fills: tuple[tuple[str, Spans], ...]
    bars: tuple[Bar, ...] = ()


@dataclass(frozen=True)
class TimelineView:
    """One step of one cell, as the page draws it; `notes` describe what is drawn and how clocks
    were aligned.
    """

    cell: str
    length_us: float
    lanes: tuple[Lane, ...]
    notes: tuple[str, ...]


def timeline_views(run: RunData) -> tuple[TimelineView, ...]:
    """A view for each cell with a timeline, in as much detail as the page has room for."""
    devices = max(
        1, sum(len(one.devices) for data in run.measured for _, one in data.timelines[:MOST_RANKS])
    )
    views = (
        timeline_view(data, MOST_SPANS // (3 * devices), MOST_DRAWN_NAMES // devices)
        for data in run.measured
    )
    return tuple(view for view in views if view is not None)


def timeline_view(
    data: Job, most_spans: int = MOST_SPANS, most_named: int = MOST_DRAWN_NAMES
) -> TimelineView | None:
    """The step of the cell's first traced repeat; None if no rank's trace has a whole step.

    Per device at most `most_spans` spans of a kind are kept (with the largest gaps between them),
    and the `most_named` longest compute events.
    """
    known = [(repeat, one.rank, one) for repeat, one in data.timelines if one.rank is not None]
    if not known:
        return None
    repeat, step = known[0][0], known[0][2].step
    ranks = {
        rank: msgspec.structs.replace(
            one, devices=tuple(coarser(device, most_spans, most_named) for device in one.devices)
        )
        for traced, rank, one in known
        if (traced, one.step) == (repeat, step)
    }
    every = data.tables.collectives
    collectives = every.take((every["repeat"] == repeat) & np.isin(every["rank"], list(ranks)))
    clocks = rank_clocks(
        collectives, [RankOrigin(rank, one.zero_ns, one.host) for rank, one in ranks.items()]
    )
    collectives = collectives.take(collectives["step"] == (UNKNOWN if step is None else step))
    places = {clock.rank: clock.place_us for clock in clocks}
    zero_us = min(one.start_us + places[rank] for rank, one in ranks.items())
    length_us = max(one.end_us + places[rank] for rank, one in ranks.items()) - zero_us
    copies_on_host = traits_of(data.strategy).host_copies
    return TimelineView(
        cell=data.name,
        length_us=length_us,
        lanes=tuple(
            _placed(lane, places[rank] - zero_us, _SHORTEST_SHARE * length_us)
            for rank, one in list(ranks.items())[:MOST_RANKS]
            for lane in _rank_lanes(one, collectives, copies_on_host)
        ),
        notes=(
            _length_note(data, repeat, step, length_us),
            *_notes(data, repeat, step, list(ranks.values()), clocks),
        ),
    )


def _placed(lane: Lane, shift_us: float, shortest_us: float) -> Lane:
    """A lane as the page draws it, on the view's clock, without bars that would be invisible unless
    they are collectives.
    """
    fills = (
        (kind, tuple((round(start + shift_us, 1), round(end - start, 1)) for start, end in spans))
        for kind, spans in lane.fills
    )
    bars = (
        bar._replace(
            start_us=round(bar.start_us + shift_us, 1),
            duration_us=round(bar.duration_us, 1),
            wait_us=None if bar.wait_us is None else round(bar.wait_us, 1),
        )
        for bar in lane.bars
        if bar.duration_us >= shortest_us or bar.kind in COLLECTIVES
    )
    return lane._replace(fills=tuple(fills), bars=tuple(bars))


_KINDS = {
    "compute": "compute",
    "hidden": "communication hidden behind compute",
    "exposed": "exposed communication",
    "collective": "collective: transfer",
    "wait": "collective: waiting for a later rank",
    "unsplit": "collective: waiting and transfer, not separated",
    "copy": "copies",
}


def legend_of(views: Iterable[TimelineView]) -> dict[str, str]:
    """Each kind that is drawn, and its name: those of _KINDS, then the phases."""
    drawn: set[str] = set()
    for lane in (lane for view in views for lane in view.lanes):
        drawn |= {kind for kind, spans in lane.fills if spans}
        drawn |= {bar.kind for bar in lane.bars}
        if any(bar.wait_us for bar in lane.bars):
            drawn.add("wait")
    drawn.discard("named")  # of what is filled as compute
    legend = {kind: name for kind, name in _KINDS.items() if kind in drawn}
    for phase in sorted(drawn - legend.keys()):
        legend[phase] = phase.replace("_", " ")
    return legend


def _length_note(data: Job, repeat: int, step: int | None, length_us: float) -> str:
    """Which step is drawn, and why it is not as long as the mean step of the tables."""
    which = "the only traced step" if step is None else f"traced step {step}"
    length = show_time(length_us)
    # traces that dpscope did not make have no repeats
    of_repeat = f" of repeat {repeat}" if len(data.tables.samples) else ""
    drawn = f"{which}{of_repeat}: {length} from the first rank's start to the last's end"
    if data.traced_ledger is None:
        return drawn
    mean = show_time(data.traced_ledger.traced_step_us)
    windows = counted(len(data.critical_windows), "window")
    return (
        f"{drawn}; the tables' traced step, {mean}, is the mean of {windows}, one per rank and "
        "step, each from that rank's own start to its own end"
    )


def _notes(
    data: Job,
    repeat: int,
    step: int | None,
    ranks: Sequence[StepTimeline],
    clocks: Sequence[RankClock],
) -> Iterator[str]:
    yield (
        "tracing slows a step: see traced/untraced among the checks"
        if len(data.tables.samples)
        else "tracing slows a step, by how much is not known"
    )
    if (count := max(data.processes, len(ranks))) > MOST_RANKS:
        yield f"{min(len(ranks), MOST_RANKS)} of {counted(count, 'rank')} are drawn"
    if len(ranks) > 1:
        yield _clock_note(clocks)
    closed_us = max(device.closed_gap_us for rank in ranks for device in rank.devices)
    if closed_us > 0:
        yield f"gaps up to {show_time(closed_us)} are drawn as filled; the tables count them"
    steps = data.tables.steps
    drawn = (steps["repeat"] == repeat) & ((steps["step"] == step) | (step is None))
    partial = steps.truths("partial_window", missing=True)
    if drawn.any() and partial[drawn].all():
        if not data.on_device:
            yield "the tracer was stopped in this step, which may have made it longer"
        elif data.has_whole_step:  # else it is a limit of all that is shown
            yield "the start of this step on the device is unknown: it is drawn from its first event"
    if not data.communication_known:
        yield "the trace does not show all data that the strategy must have moved, so events may be missing here"


def _clock_note(clocks: Sequence[RankClock]) -> str:
    compared = [clock for clock in clocks[1:] if clock.worst_us is not None]
    if not compared:
        return "clocks of the ranks are as recorded: no collective synchronises them"
    worst = max(other_clock.worst_us or 0.0 for other_clock in compared)
    apart = f"at most {show_time(worst)} apart"
    if moved := sum(bool(clock.moved_us) for clock in compared):
        return f"{counted(moved, 'clock')} aligned on the ends of shared collectives; these ends are {apart}"
    return f"clocks as recorded; the ends of shared collectives are {apart}"


def _rank_lanes(one: StepTimeline, collectives: Table, copies_on_host: bool) -> Iterator[Lane]:
    """The lanes of a rank, on its own clock; communication, and below it collectives and copies in
    as few rows as possible.
    """
    rank, on_host = f"rank {one.rank}", all(device.device is None for device in one.devices)
    if one.ranges:
        ranges = tuple(_bar(mark, mark.name) for mark in one.ranges)
        yield Lane(rank, "phases" if on_host else "host: launches", (), ranges)
    for device in one.devices:
        group = rank if len(one.devices) == 1 else f"{rank}, device {device.device}"
        named = tuple(_bar(mark, "named") for mark in device.named)
        yield Lane(group, "compute", (("compute", device.compute),), named)
        if device.communication:
            fills = (("hidden", device.communication), ("exposed", device.exposed))
            yield Lane(group, "host copies of DP" if copies_on_host else "communication", fills)
            if not copies_on_host:
                yield from _stacked(
                    group, "collectives", _communication(device, collectives, one.rank)
                )
        # a lane per replica of dp-host; for a device as many lanes as its phases need
        for replica in sorted(
            {replica for replica, _ in device.dp_phases},
            key=lambda number: -1 if number is None else number,
        ):
            bars = [
                _bar(mark, mark.name)
                for of_replica, mark in device.dp_phases
                if of_replica == replica
            ]
            yield from _stacked(
                group, "DP phases" if replica is None else f"DP phases, replica {replica}", bars
            )
        if device.host_copies:
            yield Lane(
                group, "host copies", (), tuple(_bar(mark, "copy") for mark in device.host_copies)
            )


_OF_COLLECTIVES = (
    "kind",
    "bytes",
    "busbw_gb_per_s",
    "lower_bound_gb_per_s",
    "wait_us",
    "transfer_us",
    "start_us",
    "duration_us",
)


def _communication(device: DeviceTimeline, collectives: Table, rank: int | None) -> Iterator[Bar]:
    for mark in device.copies:
        size, duration = (
            "size unknown" if mark.bytes is None else show_bytes(mark.bytes),
            mark.end_us - mark.start_us,
        )
        rate = f", {mark.bytes / duration / 1e3:.3g} GB/s" if mark.bytes and duration > 0 else ""
        yield Bar(
            mark.start_us, duration, "collective", f"copy {size}", f"{mark.name}; {size}{rate}"
        )
    of_rank = collectives.take(
        (collectives["rank"] == rank)
        & ((collectives["device"] == device.device) | (device.device is None))
    )
    longest = of_rank.take(
        np.argsort(-of_rank["duration_us"], kind="stable")[:MOST_DRAWN_COLLECTIVES]
    )
    in_time = longest.take(np.argsort(longest["start_us"], kind="stable"))
    yield from map(_collective_bar, in_time.records(_OF_COLLECTIVES))


def _collective_bar(row: Mapping[str, Any]) -> Bar:
    kind, size, rate, bound, wait, transfer, start, duration = (
        row[name] for name in _OF_COLLECTIVES
    )
    kind = kind or "collective"
    label = [show_bytes(size)] if size is not None else []
    label += [f"{rate:.3g} GB/s"] if rate is not None else []
    detail = [
        kind,
        "size unknown" if size is None else show_bytes(size),
        f"takes {show_time(duration)}",
    ]
    if rate is not None:
        detail.append(f"bus bandwidth {rate:.3g} GB/s over its transfer of {show_time(transfer)}")
    elif bound is not None:
        detail.append(f"at least {bound:.3g} GB/s (waiting included)")
    if wait is not None:
        detail.append(
            "does not wait"
            if wait == 0
            else f"the first {show_time(wait)} are waiting for a later rank"
        )
    colour = "unsplit" if wait is None else "collective"
    name = f"{kind} {', '.join(label)}".strip()
    return Bar(start, duration, colour, name, "; ".join(detail), wait)


def _bar(mark: Mark, kind: str) -> Bar:
    duration = mark.end_us - mark.start_us
    size = f"; {show_bytes(mark.bytes)}" if mark.bytes is not None else ""
    return Bar(
        mark.start_us, duration, kind, mark.name, f"{mark.name}; {show_time(duration)}{size}"
    )


def _stacked(group: str, label: str, bars: Iterable[Bar]) -> Iterator[Lane]:
    """The bars in lanes without overlaps, except for the last one if MOST_ROWS are not enough; the
    first has the label.
    """
    rows: list[list[Bar]] = []
    ends: list[float] = []
    for bar in sorted(bars, key=lambda drawn: drawn.start_us):
        free = next((index for index, end in enumerate(ends) if end <= bar.start_us), None)
        if free is None and len(rows) < MOST_ROWS:
            rows.append([])
            ends.append(0.0)
        row = len(rows) - 1 if free is None else free
        rows[row].append(bar)
        ends[row] = max(ends[row], bar.start_us + bar.duration_us)
    for index, lane in enumerate(rows):
        yield Lane(group, label if index == 0 else "", (), tuple(lane))


def as_plain(view: TimelineView) -> dict[str, object]:
    """The view as the page's script reads and shows it."""
    lanes = [
        lane._replace(
            group=cleaned(lane.group),
            label=cleaned(lane.label),
            bars=tuple(
                bar._replace(label=one_line(bar.label), detail=one_line(bar.detail))
                for bar in lane.bars
            ),
        )._asdict()
        for lane in view.lanes
    ]
    return {"cell": cleaned(view.cell), "length": round(view.length_us, 1), "lanes": lanes}
