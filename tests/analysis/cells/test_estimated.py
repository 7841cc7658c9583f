"""Estimates, predictions and bandwidths of a cell made by hand: every expectation is worked out in
the comments.
"""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dpscope.analysis.cells.bandwidth import wire_bytes
from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.cells.predicted import predictions
from dpscope.analysis.cells.row import CellRow, row_of
from dpscope.analysis.cells.view import CellView
from dpscope.analysis.costs.costs import Costs
from dpscope.analysis.costs.formulas import dp_transfer_us, ring_all_reduce_us
from dpscope.analysis.findings.shortcuts import shortcuts_fact
from dpscope.analysis.report.calibration import calibration_tables
from dpscope.analysis.report.comparison_tables import ESTIMATES
from dpscope.analysis.report.formulas import formula_table
from dpscope.analysis.runs.spreads import RunSpreads, run_spreads
from dpscope.analysis.traces.ranks.job import NO_TABLES, Job
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.table import joined
from dpscope.profiling.machine.interconnect import interconnect
from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.records.calibration import CalibrationPoint
from dpscope.profiling.records.run import AttachedProcess, Cell, CellOptions
from tests.generated_traces.generator import dp_trace, write_trace
from tests.helpers.known import known
from tests.helpers.nvml_records import ReplayedNvml
from tests.helpers.paths import DATA
from tests.helpers.run_cells import (
    all_reduces,
    calibration,
    cell_data,
    fitted,
    in_cell,
    run_of,
    timed,
    timed_cell,
    traced_table,
    windows,
    with_ranks,
    with_tables,
)

STEPS = 6
REPEATS = 2


def single(batch_size: int, step_us: float) -> Job:
    """One device: traced steps 10 us longer than untraced, 50 us of them idle."""
    cell = Cell(strategy="single", devices=1, batch_size=batch_size)
    traced = windows(
        cell, STEPS, REPEATS, step_us=step_us + 10, compute_us=step_us - 40, idle_us=50.0
    )
    return cell_data(cell, [[step_us] * STEPS] * REPEATS, traced)


def ddp(step_us: float = 1500.0) -> Job:
    """Two ranks: 1,530 us traced = 1,000 compute + 450 exposed + 80 idle; 700 communication, 250 of
    it hidden.

    Buckets of 3 MB ready at 500 us and of 1 MB ready at 800 us take 400 and 200 us.
    """
    cell = Cell(strategy="ddp", devices=2, batch_size=8)
    traced = windows(
        cell, STEPS, REPEATS, step_us=1530.0, compute_us=1000.0, communication_us=700.0, hidden_us=250.0, exposed_us=450.0,
        idle_us=80.0, transfer_us=600.0, wait_us=100.0,
    )  # fmt: skip
    buckets = all_reduces(
        cell, STEPS, [(3_000_000, 500.0, 400.0), (1_000_000, 800.0, 200.0)], REPEATS
    )
    return cell_data(cell, [[step_us] * STEPS] * REPEATS, traced, buckets)


SINGLES = {8: single(8, 1000.0), 16: single(16, 1800.0)}
NO_SOURCES = Costs()
CALIBRATED = calibration({"all_reduce": (50.0, 10.0)})  # 50 us + S / 10 GB/s on two ranks
WITH_BROADCASTS = calibration({"all_reduce": (50.0, 10.0), "broadcast": (20.0, 10.0)})


def row(data: Job, sources: Costs = NO_SOURCES) -> CellRow:
    return row_next_to(data, SINGLES, sources)


def row_next_to(
    data: Job,
    singles: dict[int, Job],
    sources: Costs = NO_SOURCES,
    spreads: RunSpreads = RunSpreads(),  # noqa: B008
) -> CellRow:
    """The row of a cell that is compared with these of one device."""
    views = {batch: CellView(single, sources, spreads) for batch, single in singles.items()}
    return row_of(CellView(data, sources, spreads, views))


def check(found: CellRow, **expected: float | None) -> None:
    assert {name: found.number(name) for name in expected} == pytest.approx(expected)


def test_estimates_and_the_reasons_for_their_errors() -> None:
    found = row(ddp())
    # 1,500 - 1,000; 1,500 - 1,800 / 2; 1,500 - 1,800. An epoch has 10 steps.
    check(found, same_local_batch_us=500, ideal_split_us=600, same_total_us=-300)
    check(found, same_local_batch_epoch_us=5000, same_total_epoch_us=-3000, exposed_epoch_us=4500)
    # traced parts of one device at b = 8: 960 compute, 50 idle. 500 = 450 exposed + 40 compute + 30
    # idle - 20 tracer
    check(found, exposed_us=450, slowdown_us=40, added_idle_us=30, added_tracer_us=-20)
    # every step alike: the intervals are points
    check(
        found,
        slowdown_low_us=40,
        slowdown_high_us=40,
        same_local_batch_low_us=500,
        same_local_batch_high_us=500,
    )
    # t_1(b) = 1,000 against t_1(G)/N = 900 and t_1(G) = 1,800
    check(found, ideal_split_local_batch_us=100, same_total_local_batch_us=-800)
    for method, local in (("same_local_batch", 0), ("ideal_split", 100), ("same_total", -800)):
        check(found, **{f"{method}_error_exposed_us": local + 40 + 30 - 20})
        check(found, **{f"{method}_error_communication_us": local + 40 + 30 - 20 - 250})
    alone = row_next_to(ddp(), {8: SINGLES[8]})
    check(alone, same_local_batch_us=500, ideal_split_us=None, same_total_us=None)
    assert (
        alone.reasons["ideal_split_us"]
        == "no single-device cell with the same options at the global batch"
    )


def test_pocket_calculations() -> None:
    # 44,695,848 B on 4 ranks at 10 GB/s: 2 x 3/4 x 4.4695848 ms = 6704.3772 us; latency 2 x 3 x 5
    # us
    assert ring_all_reduce_us(44_695_848, 4, 10.0) == pytest.approx(6704.3772)
    assert ring_all_reduce_us(44_695_848, 4, 10.0, latency_us=5.0) == pytest.approx(6734.3772)
    # DataParallel: (2 x 40 MB + 1 MB) / 10 GB/s = 8.1 ms; by copies to three devices in turn 24.3
    # ms
    assert dp_transfer_us(40e6, 1e6, 4, 10.0, peer_copies=False) == pytest.approx(8100)
    assert dp_transfer_us(40e6, 1e6, 4, 10.0, peer_copies=True) == pytest.approx(24300)


def repeats_that_differ(
    cell: Cell, step_us: tuple[float, float], **columns: tuple[float, float]
) -> Job:
    """Two repeats, each with steps that are all alike; traced steps as long as untraced ones."""
    traced = [
        windows(
            cell,
            STEPS,
            1,
            step_us=step_us[repeat],
            **{name: pair[repeat] for name, pair in columns.items()},
        )
        for repeat in range(2)
    ]
    steps = joined([one.assign(repeat=repeat) for repeat, one in enumerate(traced)])
    return cell_data(cell, [[one] * STEPS for one in step_us], steps)


def bounds(row: CellRow, name: str) -> tuple[float | None, float | None]:
    return row.number(f"{name}_low_us"), row.number(f"{name}_high_us")


def test_a_ledgers_intervals_are_students() -> None:
    """Alone a cell of two repeats that lie d apart has ±12.706 d / 2, Student's t of 1 degree of
    freedom being 12.706.
    """
    several = repeats_that_differ(
        Cell(strategy="ddp", devices=2, batch_size=8), (1500.0, 1506.0),
        exposed_us=(440.0, 444.0), compute_us=(1000.0, 1000.0), idle_us=(60.0, 62.0),
    )  # fmt: skip
    single = repeats_that_differ(
        Cell(strategy="single", devices=1, batch_size=8), (1000.0, 1000.0),
        compute_us=(960.0, 957.0), idle_us=(40.0, 43.0),
    )  # fmt: skip
    alone = row_next_to(several, {8: single})
    assert bounds(alone, "exposed") == pytest.approx((442 - 12.706 * 2, 442 + 12.706 * 2), rel=1e-4)
    assert bounds(alone, "exposed_other") == bounds(alone, "exposed")
    assert bounds(alone, "slowdown") == pytest.approx(
        (41.5 - 12.706 * 1.5, 41.5 + 12.706 * 1.5), rel=1e-4
    )
    assert bounds(alone, "idle") == pytest.approx((61 - 12.706, 61 + 12.706), rel=1e-4)
    half = 12.706 * (1**2 + 1.5**2) ** 0.5  # both sides spread
    assert bounds(alone, "added_idle") == pytest.approx(
        (61 - 41.5 - half, 61 - 41.5 + half), abs=0.01
    )
    # 0 in every repeat of both
    assert bounds(alone, "added_tracer") == pytest.approx((0, 0), abs=1e-6)
    # Of both together compute has 2 degrees of freedom, t = 4.303, and the mean of the variances of
    # shares of the step, 0 and 3**2 / 2 / 1,000**2. DDP takes that mean, the single device keeps
    # its own, which is larger.
    together = row_next_to(several, {8: single}, spreads=run_spreads([several, single]))
    half = 4.303 * ((9 / 4 / 1000**2 * 1503**2 / 2) + 9 / 2 / 2) ** 0.5
    assert bounds(together, "slowdown") == pytest.approx((41.5 - half, 41.5 + half), rel=1e-4)
    # what one device exposes is 0 by definition: DDP's exposed has its own degree of freedom alone
    assert bounds(together, "exposed") == bounds(alone, "exposed")


def test_an_interval_of_a_part_stays_within_what_a_part_can_be() -> None:
    """Exposed wait of 2 and 4 us: 3 ± 12.706 us, cut at 0. Exposed other is 0 in every window: no
    interval.

    Another cell's exposed other of 20 and 60 us has 40 ± 12.706 x 20 us, cut at 0: a cell without
    that part is no sample of it.
    """
    several = repeats_that_differ(
        Cell(strategy="ddp", devices=2, batch_size=8), (1500.0, 1500.0), compute_us=(1400.0, 1400.0), idle_us=(97.0, 95.0),
        exposed_us=(3.0, 5.0), exposed_transfer_us=(1.0, 1.0), exposed_wait_us=(2.0, 4.0), exposed_other_us=(0.0, 0.0),
    )  # fmt: skip
    other = repeats_that_differ(
        Cell(strategy="ddp", devices=2, batch_size=4), (1000.0, 1000.0), compute_us=(900.0, 900.0), idle_us=(80.0, 40.0),
        exposed_us=(20.0, 60.0), exposed_other_us=(20.0, 60.0),
    )  # fmt: skip
    spreads = run_spreads([several, other])
    found, second = (row_next_to(data, {}, spreads=spreads) for data in (several, other))
    assert found.number("exposed_other_us") == 0.0
    assert bounds(found, "exposed_other") == (None, None)
    assert found.reasons["exposed_other_low_us"] == "0 in every traced step: no interval"
    assert bounds(second, "exposed_other") == pytest.approx((0.0, 40 + 12.706 * 20), rel=1e-4)
    alone = row_next_to(several, {})
    assert bounds(alone, "exposed_wait") == pytest.approx((0.0, 3 + 12.706), rel=1e-4)
    assert bounds(alone, "exposed_transfer") == pytest.approx((1.0, 1.0))
    # one device is idle for 60 ± 12.706 x 20 us, cut at 0; the change has the whole width of both:
    # 12.706 x hypot(1, 20)
    single = repeats_that_differ(
        Cell(strategy="single", devices=1, batch_size=8),
        (1000.0, 1000.0),
        compute_us=(900.0, 900.0),
        idle_us=(80.0, 40.0),
    )
    added = row_next_to(several, {8: single})
    half = 12.706 * (1**2 + 20**2) ** 0.5
    assert bounds(added, "added_idle") == pytest.approx((36 - half, 36 + half), rel=1e-4)


def test_the_rest_of_the_slowdown_has_an_interval_from_both_parts() -> None:
    """Kernels take 120 us next to communication and 100 us alone, each with some noise."""
    several = repeats_that_differ(
        Cell(strategy="ddp", devices=2, batch_size=8), (1500.0, 1506.0),
        exposed_us=(440.0, 444.0), compute_us=(1000.0, 1000.0), communication_us=(600.0, 600.0), idle_us=(60.0, 62.0),
    )  # fmt: skip
    kernels = (
        {"rank": 0, "device": 0, "operator": "aten::mm", "kernel_class": 1, "step": step, "place": int(overlapped),
         "overlapped": overlapped, "time_us": 120.0 + step % 3 if overlapped else 100.0, "overlap_us": 120.0 * overlapped,
         "pace": 1.0}
        for step in range(9) for overlapped in (True, False)
    )  # fmt: skip
    found = row(with_tables(several, kernels=traced_table("kernels", kernels)))
    slowdown, contention, other = (known(found.number(f"{name}_us")) for name in PARTS_OF_SLOWDOWN)
    assert other == pytest.approx(slowdown - contention)
    ends = [tuple(map(known, bounds(found, name))) for name in PARTS_OF_SLOWDOWN]
    halves = [(high - low) / 2 for low, high in ends]
    assert halves[1] > 0
    assert halves[2] == pytest.approx((halves[0] ** 2 + halves[1] ** 2) ** 0.5)
    assert sum(ends[2]) / 2 == pytest.approx(other)
    # no kernel: no contention, no rest
    assert bounds(row(several), "other_slowdown") == (None, None)


@pytest.mark.parametrize(
    ("devices", "missing", "reason"),
    [
        (
            2,
            "the script ended before that",
            "DDP's counters were not compared: the script ended before that",
        ),
        (2, None, "only DDP on several devices has a pass with its counters"),
        (
            1,
            "the script ended before that",
            "only DDP on several devices has a pass with its counters",
        ),
    ],
)
def test_the_reason_for_missing_counters_is_the_recorded_one(
    devices: int, missing: str | None, reason: str
) -> None:
    cell = Cell(strategy="ddp", devices=devices, batch_size=8)
    attached = AttachedProcess(cell, True, counters_missing=missing)
    found = row(with_ranks(timed_cell(cell, 1500.0), attached=attached))
    assert found.reasons["counter_buckets_equal"] == reason


PARTS_OF_SLOWDOWN = ("slowdown", "contention", "other_slowdown")


def test_one_repeat_alone_has_no_interval() -> None:
    cell = Cell(strategy="ddp", devices=2, batch_size=8)
    traced = windows(cell, STEPS, step_us=1530.0, compute_us=1000.0, exposed_us=450.0, idle_us=80.0)
    data = cell_data(cell, [[1500.0] * STEPS], traced)
    found = row(data)
    check(found, step_us=1500, step_low_us=None)
    assert (
        found.reasons["step_low_us"] == "fewer than 5 timed steps, or too few repeats: no interval"
    )
    ledger = ("traced_step", "compute", "exposed_other", "idle", "tracer", "slowdown")
    assert {bounds(found, name) for name in ledger} == {(None, None)}
    # a second repeat of another cell shows how far repeats lie apart
    assert (
        row_next_to(data, SINGLES, spreads=run_spreads([data, SINGLES[8]])).number("step_low_us")
        == 1500
    )


def test_predicted_from_a_calibration() -> None:
    found = row(ddp(), Costs(calibration=CALIBRATED))
    # 350 and 150 us a bucket: 500 against 600 measured
    assert found.text("prediction_source") == "calibration"
    check(found, predicted_transfer_us=500, predicted_transfer_error=-1 / 6)
    # 500-850, then 850-1,000; the last bucket is ready at 800: 200 us exposed, of 450 measured
    check(found, predicted_exposed_us=200, predicted_exposed_error=200 / 450 - 1)
    first, second = predictions(CellView(ddp(), Costs(calibration=CALIBRATED)))
    assert (first.size_bytes, first.per_step, first.measured_us, first.predicted_us) == (
        3e6,
        1,
        400,
        350,
    )
    assert (first.relative_error, second.relative_error) == pytest.approx((-0.125, -0.25))
    # A kernel that queued starts late: what counts is when its gradients were ready.
    # 500-850, 850-1,000, backward ends at 600: 400 us exposed
    data = ddp()
    table = data.tables.collectives
    queued = with_tables(
        data, collectives=table.assign(ready_us=np.minimum(table["start_us"], 600.0))
    )
    check(row(queued, Costs(calibration=CALIBRATED)), predicted_exposed_us=400)


def test_predicted_from_the_specification() -> None:
    found = row(ddp(), Costs(parse_link("20GB/s")))
    # ring on two ranks: S / B = 150 + 50 us; 500-650, 800-850: 50 us exposed
    assert found.text("prediction_source") == found.text("ring_source") == "specification"
    check(found, predicted_transfer_us=200, predicted_exposed_us=50, ring_us=200)
    other = row(ddp(), Costs(parse_link("20GB/s"), calibration=calibration({})))
    check(other, predicted_transfer_us=None, ring_us=200)  # the specification keeps its own column
    assert (
        other.reasons["predicted_transfer_us"] == "the calibration holds no all_reduce on 2 ranks"
    )


def with_buffer_broadcast(data: Job, size_bytes: int) -> Job:
    """Each rank and step also broadcasts buffers of this size at 100 us: no transfer, for it is
    rooted.
    """
    reduced = data.tables.collectives
    first = reduced.take(reduced["order"] == 0)
    rooted = first.assign(
        kind="broadcast", bytes=size_bytes, start_us=100.0, transfer_us=None, wait_us=None
    )
    return with_tables(data, collectives=joined([reduced, rooted]))


def test_transfers_are_predicted_where_the_broadcast_is_not_calibrated() -> None:
    data = with_buffer_broadcast(ddp(), 40_000)
    found = row(data, Costs(calibration=CALIBRATED))
    no_broadcast = "the calibration holds no broadcast on 2 ranks"
    check(
        found, predicted_transfer_us=500, predicted_transfer_error=-1 / 6, predicted_exposed_us=None
    )
    assert (
        found.reasons["predicted_exposed_us"]
        == found.reasons["predicted_exposed_error"]
        == no_broadcast
    )
    # 4 MB over all but 10 GB/s, the rate of a large message
    assert found.number("ring_us") == pytest.approx(400, rel=0.01)
    assert found.text("ring_source") == "calibration"
    rows = predictions(CellView(data, Costs(calibration=CALIBRATED)))
    assert [(one.kind, one.measured_us, one.predicted_us, one.reason) for one in rows] == [
        ("all_reduce", 400, 350, ""),
        ("all_reduce", 200, 150, ""),
        ("broadcast", None, None, no_broadcast),
    ]


def test_a_calibrated_broadcast_is_exposed_and_no_transfer() -> None:
    """20 us + 40 kB / 10 GB/s = 24 us before the forward pass, all of it exposed, besides the
    buckets' 200 us.
    """
    found = row(with_buffer_broadcast(ddp(), 40_000), Costs(calibration=WITH_BROADCASTS))
    check(found, predicted_transfer_us=500, predicted_exposed_us=224)
    # 160 B of buffers, 4 KiB the smallest size: the first line, 20 us + 160 B / 10 GB/s
    rows = predictions(
        CellView(with_buffer_broadcast(ddp(), 160), Costs(calibration=WITH_BROADCASTS))
    )
    assert [one.extrapolated is None for one in rows] == [True, True, False]
    assert rows[2].predicted_us == pytest.approx(20.016)
    assert "below the smallest size" in str(rows[2].extrapolated)


def test_dp_by_nccl_is_predicted_per_chunk() -> None:
    """Two micro-batches, each with one broadcast and one reduce of 4 MB: 2 x (20 + 400 + 30 + 400)
    us.
    """
    cell = Cell(strategy="dp", devices=2, batch_size=8, options=CellOptions(accumulate=2))
    traced = windows(
        cell, STEPS, step_us=3000.0, compute_us=1000.0, communication_us=2000.0, exposed_us=2000.0
    )
    kernels = traced_table(
        "collectives", [{"kind": "broadcast", "rank": 0, "device": 0, "step": 0}]
    )
    data = cell_data(cell, [[2900.0] * STEPS], traced, kernels)
    both = calibration({"broadcast": (20.0, 10.0), "reduce": (30.0, 10.0)})
    costs = Costs(calibration=both)
    check(row(data, costs), predicted_transfer_us=1700, predicted_exposed_us=1700)
    chunks = [
        (one.kind, one.size_bytes, one.per_step) for one in predictions(CellView(data, costs))
    ]
    assert chunks == [("broadcast", 4e6, 2), ("reduce", 4e6, 2)]
    lacking = row(data, Costs(calibration=calibration({"broadcast": (20.0, 10.0)})))
    assert lacking.reasons["predicted_transfer_us"] == "the calibration holds no reduce on 2 ranks"


def test_bandwidth_three_ways() -> None:
    found = row(ddp(), Costs(parse_link("20GB/s"), calibration=CALIBRATED))
    # 4 MB x 2(N-1)/N = 4 MB on the wire: over 500 and 700 us; the transfers lie at 500-900 and
    # 800-1,000, together 500 us
    check(found, wire_bytes_per_step=4e6, subtraction_gb_per_s=8, communication_gb_per_s=4e3 / 700)
    check(found, transfer_gb_per_s=4e3 / 500, calibrated_gb_per_s=8)  # calibrated: 4 MB in 500 us
    check(found, subtraction_of_link=0.4, transfer_of_calibration=500 / 500)
    negative = row(ddp(step_us=990.0), Costs(parse_link("20GB/s")))
    check(negative, same_local_batch_us=-10, subtraction_gb_per_s=None)
    assert "-10.0 µs, not a time" in negative.reasons["subtraction_gb_per_s"]
    assert negative.reasons["subtraction_of_link"] == negative.reasons["subtraction_gb_per_s"]
    assert negative.reasons["calibrated_gb_per_s"] == "no calibration was given"


def test_dp_by_copies_is_predicted_from_the_link() -> None:
    cell = Cell(strategy="dp", devices=3, batch_size=8)
    times = dict.fromkeys(("compute_us", "communication_us", "exposed_us", "idle_us"), 1000.0)
    traced = windows(cell, STEPS, step_us=3000.0, hidden_us=0.0, **times)
    data = cell_data(cell, [[2900.0] * STEPS], traced)
    found = row(data, Costs(parse_link("20GB/s")))
    # device 0 sends 4 MB to each of two others and receives as much: 16 MB / 20 GB/s
    check(found, predicted_transfer_us=800, predicted_transfer_error=-0.2, wire_bytes_per_step=16e6)
    check(found, communication_gb_per_s=16, compute_spread=0, first_device_excess_us=0)
    only_calibrated = row(data, Costs(calibration=CALIBRATED))
    assert "which no calibration measures" in only_calibrated.reasons["predicted_transfer_us"]
    slower = traced.assign(compute_us=np.where(traced["device"] == 0, 1200.0, 1000.0))
    check(
        row(cell_data(cell, [[2900.0] * STEPS], slower)),
        first_device_excess_us=200,
        compute_spread=200 / (3200 / 3),
    )


def test_bytes_of_dp_by_copies_are_those_copied(tmp_path: Path) -> None:
    """Device 0 sends 15,728,640 + 38,560 B of model and 5,120 B of gradients, device 1 15,728,640 +
    5,120 B back.
    """
    generated = dp_trace(2, "peer_copy")
    analysis = analyze_traces([write_trace(generated.trace, tmp_path / "0_0.pt.trace.json.gz")])
    cell = Cell(strategy="dp", devices=2, batch_size=8)
    read = analysis.tables
    data = with_tables(cell_data(cell, [[900.0] * STEPS], read.steps), copies=read.copies)
    found = row(data)
    assert found.number("bytes_per_step") == (15_772_320 + 15_733_760) / 2
    assert found.reasons["collectives_per_step"] == "moved by copies between devices: no collective"
    lost = row(with_tables(data, copies=NO_TABLES.copies))
    assert (
        lost.reasons["bytes_per_step"]
        == "the trace shows neither a collective nor a copy between devices"
    )


def test_the_links_of_the_manifest_are_used_without_being_asked_for() -> None:
    """V100 in a DGX-1: NVLink 2 x1 between GPUs 0 and 1, 25 GB/s; 4 MB of gradients take 160 us on
    two ranks.
    """
    nvml = ReplayedNvml(DATA / "nvml" / "v100_sxm2_x8.json")
    links = interconnect(nvml, [device.uuid or "" for device in interconnect(nvml).devices])
    run = run_of(ddp())
    environment = msgspec.structs.replace(run.manifest.environment, interconnect=links)
    linked = replace(run, recorded=msgspec.structs.replace(run.manifest, environment=environment))
    values = compare(linked).table.iloc[0]
    assert (values["ring_us"], values["ring_source"], values["link_gb_per_s"]) == (
        160.0,
        "specification",
        25.0,
    )
    # the cell's all-reduces have 8 GB/s of bus bandwidth
    assert values["transfer_of_link"] == pytest.approx(8 / 25)
    (note,) = known(ESTIMATES(compare(linked))).notes
    assert note.startswith(
        "ring model on 2 devices: NVLink 2 x1, 25 GB/s one way: NVML names the link"
    )
    # --link overrides
    assert compare(linked, parse_link("5GB/s")).table.iloc[0]["ring_us"] == 800.0


def test_the_rate_of_a_ring_is_that_of_the_cells_own_nodes() -> None:
    """4 MB of gradients on 2 ranks: 0.4 ms at 10 GB/s within a node, 4 ms at 1 GB/s between two;
    each note names its rate.
    """
    sizes = (1_000_000, 2_000_000, 4_000_000)
    both = fitted(timed(2, 0.0, 10.0, sizes), timed(2, 0.0, 1.0, sizes, nodes=2))
    near, far = ddp(), in_cell(ddp(), Cell("ddp", 2, 8, nodes=2))
    comparison = compare(run_of(near, far), calibration=both)
    rows = comparison.rows.values()
    assert [row.ring_us for row in rows] == pytest.approx([400, 4000])
    assert [rate.gb_per_s for row in rows for rate in row.ring_rates] == pytest.approx([10, 1])
    assert [note.partition(",")[0] for note in known(ESTIMATES(comparison)).notes] == [
        "ring model on 2 devices: 10 GB/s",
        "ring model on 2x1 devices: 1 GB/s",
    ]
    assert ["10 GB/s" in shortcuts_fact(row, far).text for row in rows] == [True, False]


def test_what_hsdp_runs_within_nodes_is_explained_by_times_within_a_node() -> None:
    """4 devices on 2 nodes: all-gathers of 2 ranks at 10 GB/s, of 3 MB and 1 MB: 300 and 100 us, 4
    MB on the wire by half.
    """
    cell, sizes = Cell("hsdp", 4, 8, nodes=2), (1_000_000, 2_000_000, 4_000_000)
    gathers = all_reduces(
        cell, STEPS, [(3_000_000, 500.0, 400.0), (1_000_000, 800.0, 200.0)], REPEATS
    )
    traced = windows(
        cell, STEPS, REPEATS, step_us=1530.0, compute_us=1000.0, communication_us=700.0, hidden_us=250.0, exposed_us=450.0,
        idle_us=80.0, transfer_us=600.0, wait_us=100.0,
    )  # fmt: skip
    data = cell_data(
        cell, [[1500.0] * STEPS] * REPEATS, traced, gathers.assign(kind="all_gather", group_size=2)
    )
    both = fitted(
        timed(2, 0.0, 10.0, sizes, "all_gather", nodes=1), timed(4, 0.0, 1.0, sizes, nodes=2)
    )
    run = run_of(data)
    comparison = compare(run, calibration=both)
    found = comparison.rows[cell.name]
    assert (found.predicted_transfer_us, found.calibrated_gb_per_s) == pytest.approx((400, 5))
    assert [one.predicted_slowest_us for one in comparison.predictions] == pytest.approx([300, 100])
    table = formula_table(run, comparison)
    assert [row[2].partition("+ 3")[2] for row in table.rows] == [".00 MB / 10 GB/s", ""]


@pytest.mark.parametrize(
    ("nodes", "known"), [(1, ()), (2, ("all_gather",)), (4, ("all_gather", "all_reduce"))]
)
def test_groups_that_run_at_once_are_not_predicted_from_one_alone(
    nodes: int, known: tuple[str, ...]
) -> None:
    """HSDP on 4 devices: (0, 1), (2, 3) gather and (0, 2), (1, 3) reduce at once; on two nodes each
    pair gathers alone.
    """
    cell, sizes = Cell("hsdp", 4, 8, nodes=nodes), (1_000_000, 2_000_000, 4_000_000)
    both = all_reduces(cell, STEPS, [(3_000_000, 500.0, 400.0), (1_000_000, 800.0, 200.0)], REPEATS)
    gathers = both["bytes"] == 3_000_000
    kinds, ranks = (
        np.where(gathers, "all_gather", "all_reduce"),
        np.where(gathers, 2, max(2, nodes)),
    )
    named = both.assign(kind=kinds.tolist(), group_size=ranks)
    traced = windows(
        cell, STEPS, REPEATS, step_us=1530.0, compute_us=1000.0, communication_us=700.0, hidden_us=250.0, exposed_us=450.0,
        idle_us=80.0, transfer_us=600.0, wait_us=100.0,
    )  # fmt: skip
    data = cell_data(cell, [[1500.0] * STEPS] * REPEATS, traced, named)
    timed_on = [
        timed(2, 0.0, 10.0, sizes, kind, nodes=spanned)
        for kind in ("all_gather", "all_reduce")
        for spanned in (1, nodes)
    ]
    timed_on.append(timed(4, 0.0, 1.0, sizes, nodes=nodes))
    comparison = compare(run_of(data), calibration=fitted(*timed_on))
    predicted = {one.kind: one.predicted_us for one in comparison.predictions}
    assert {kind for kind, us in predicted.items() if us is not None} == set(known)
    row = comparison.rows[cell.name]
    assert (row.predicted_transfer_us is None) == (len(known) < 2)
    if len(known) < 2:
        assert (
            "several groups run their all_reduce at the same time"
            in row.reasons["predicted_transfer_us"]
        )


def test_the_wire_carries_what_gloo_moves_for_a_reduce_scatter() -> None:
    data = ddp()
    scattered = data.tables.collectives.assign(kind="reduce_scatter")
    # of two ranks the factor of a reduce-scatter is 1/2, of an all-reduce 1
    assert wire_bytes(with_tables(data, collectives=scattered)) == 2e6
    assert wire_bytes(with_tables(data, collectives=scattered.assign(moved_as="all_reduce"))) == 4e6


def test_a_collective_without_a_bus_factor_leaves_the_wire_bytes_unknown() -> None:
    """nccl-tests states none for a gather: what it moves is not 0. A group of one rank sends
    nothing.
    """
    data = ddp()
    every = data.tables.collectives
    half = np.arange(len(every)) % 2 == 0
    mixed = every.assign(kind=np.where(half, "gather", "all_reduce").tolist())
    assert wire_bytes(with_tables(data, collectives=mixed)) is None
    assert wire_bytes(with_tables(data, collectives=every.assign(group_size=1))) == 0.0


@pytest.mark.parametrize(("backend", "busbw"), [("gloo", "2.00"), ("nccl", "1.00")])
def test_calibrations_of_gloos_reduce_scatter_give_the_rate_of_its_all_reduce(
    backend: str, busbw: str
) -> None:
    timed = CalibrationPoint(
        collective="reduce_scatter",
        devices=2,
        size_bytes=2_000_000,
        count=500_000,
        dtype="float32",
        times_us=(1000.0,),
    )
    made = msgspec.structs.replace(CALIBRATED, points=(timed,), backend=backend)
    (row_of_point,) = calibration_tables(made)[0].rows
    assert row_of_point[4:6] == ("2.00", busbw)  # algbw, busbw
