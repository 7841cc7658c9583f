"""A step's lanes: places on one clock, labels, rows, and how much of them a page holds."""

from dataclasses import replace

import msgspec
import pytest

from dpscope.analysis.report.timeline import Bar, Lane, TimelineView, legend_of, timeline_view
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.timeline import DeviceTimeline, Mark, StepTimeline
from dpscope.profiling.records.run import Cell
from tests.helpers.known import known
from tests.helpers.run_cells import cell_data, traced_table, windows, with_tables

DDP = Cell(strategy="ddp", devices=2, batch_size=8)


def device(**changes: object) -> DeviceTimeline:
    base = DeviceTimeline(
        device=0,
        compute=((100.0, 180.0),),
        communication=((150.0, 200.0),),
        exposed=((180.0, 200.0),),
        closed_gap_us=0.0,
        named=(Mark(100.0, 180.0, "gemm"),),
    )
    return msgspec.structs.replace(base, **changes)


def timeline(rank: int, zero_ns: int, *devices: DeviceTimeline) -> StepTimeline:
    return StepTimeline(
        rank=rank,
        zero_ns=zero_ns,
        host=f"node{rank}",
        step=3,
        start_us=100.0,
        end_us=200.0,
        devices=devices,
    )


def reduced(rank: int, start: float, duration: float, wait: float) -> dict[str, object]:
    return {
        "repeat": 0, "rank": rank, "device": 0, "step": 3, "kind": "all_reduce", "group_size": 2, "bytes": 26_500_000,
        "start_us": start, "duration_us": duration, "transfer_us": duration - wait, "wait_us": wait, "match": 0,
        "busbw_gb_per_s": 1.19, "lower_bound_gb_per_s": 1.0,
    }  # fmt: skip


def two_ranks(ahead_us: float = 40.0, **changes: object) -> Job:
    """Rank 1's clock is ahead of rank 0's by so much: the same end reads 200 there, 240 here."""
    began, ended = 170.0 + ahead_us, 200.0 + ahead_us
    collectives = traced_table(
        "collectives", [reduced(0, 150.0, 50.0, 20.0), reduced(1, began, 30.0, 0.0)]
    )
    later = device(
        compute=((100.0 + ahead_us, began),),
        communication=((began, ended),),
        exposed=((began, ended),),
    )
    ranks = (
        timeline(0, 0, device(**changes)),
        msgspec.structs.replace(timeline(1, 0, later), start_us=100.0 + ahead_us, end_us=ended),
    )
    data = cell_data(DDP, [[1.0] * 5], windows(DDP, 5, step_us=100.0), collectives)
    return replace(data, timelines=tuple((0, one) for one in ranks))


@pytest.mark.parametrize("ahead_us", [40.0, -40.0])
def test_clocks_are_set_by_the_collectives_ends(ahead_us: float) -> None:
    view = known(timeline_view(two_ranks(ahead_us)))
    # both steps lie over one another once rank 1 is moved by 40 us
    assert view.length_us == pytest.approx(100.0)
    computing = {lane.group: lane.fills[0][1] for lane in view.lanes if lane.label == "compute"}
    assert computing == {"rank 0": ((0.0, 80.0),), "rank 1": ((0.0, 70.0),)}
    assert any(
        note.startswith("1 clock aligned on the ends of shared collectives") for note in view.notes
    )


def test_a_copy_between_devices_has_its_bytes_and_rate() -> None:
    """1 MB in 20 us are 50 GB/s."""
    copy = Mark(100.0, 120.0, "Memcpy PtoP", 1_000_000)
    view = known(timeline_view(two_ranks(copies=(copy,))))
    (bar,) = (bar for lane in view.lanes for bar in lane.bars if bar.label.startswith("copy"))
    assert (bar.label, bar.detail) == ("copy 1.00 MB", "Memcpy PtoP; 1.00 MB, 50 GB/s")


def test_a_collective_has_its_bytes_rate_and_wait() -> None:
    view = known(timeline_view(two_ranks()))
    bars = [bar for lane in view.lanes for bar in lane.bars if bar.kind == "collective"]
    assert [bar.label for bar in bars] == ["all_reduce 26.5 MB, 1.19 GB/s"] * 2
    assert [bar.wait_us for bar in bars] == [20.0, 0.0]
    assert "does not wait" in bars[1].detail
    fills = {(lane.group, kind): spans for lane in view.lanes for kind, spans in lane.fills}
    # start and duration; exposed is drawn over its end
    assert fills["rank 0", "hidden"] == ((50.0, 50.0),)
    assert fills["rank 0", "exposed"] == ((80.0, 20.0),)


def test_an_unknown_wait_is_missing_and_never_zero() -> None:
    """As of a job of which only some ranks' traces are here."""
    data = two_ranks()
    unmatched = data.tables.collectives.assign(wait_us=None, transfer_us=None, match=None)
    view = known(timeline_view(with_tables(data, collectives=unmatched)))
    bars = [bar for lane in view.lanes for bar in lane.bars if bar.duration_us and bar.detail]
    assert [bar.wait_us for bar in bars if bar.kind == "unsplit"] == [None, None]
    legend = legend_of([view])
    assert legend["unsplit"] == "collective: waiting and transfer, not separated"
    assert "collective" not in legend


def test_the_legend_lists_what_is_drawn_and_nothing_else() -> None:
    """No communication is hidden, one collective waits, and a phase has its own name."""
    fills = (("compute", ((0.0, 9.0),)), ("hidden", ()))
    waiting = Bar(0.0, 5.0, "collective", "all_reduce", "", wait_us=2.0)
    bars = (waiting, Bar(0.0, 9.0, "host_to_device", "copies", ""), Bar(0.0, 1.0, "named", "", ""))
    view = TimelineView("ddp-d2-b8", 9.0, (Lane("rank 0", "all", fills, bars),), ())
    assert list(legend_of([view]).items()) == [
        ("compute", "compute"),
        ("collective", "collective: transfer"),
        ("wait", "collective: waiting for a later rank"),
        ("host_to_device", "host to device"),
    ]
