"""Estimates, predictions and bandwidths of a cell made by hand: every expectation is worked out in
the comments.
"""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.cells.predicted import predictions
from dpscope.analysis.cells.row import CellRow, row_of
from dpscope.analysis.cells.view import CellView
from dpscope.analysis.costs.costs import Costs
from dpscope.analysis.report.comparison_tables import ESTIMATES
from dpscope.analysis.runs.spreads import RunSpreads, run_spreads
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.reading.table import joined
from dpscope.profiling.machine.interconnect import interconnect
from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.records.run import Cell
from tests.helpers.known import known
from tests.helpers.nvml_records import ReplayedNvml
from tests.helpers.paths import DATA
from tests.helpers.run_cells import (
    all_reduces,
    calibration,
    cell_data,
    run_of,
    traced_table,
    windows,
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
    # 1,500 - 1,000; 1,500 - 1,800 / 2; 1,500 - 1,800. An epoch has 10 steps in every cell: 15,000 -
    # 10,000 / 2; 15,000 - 18,000 / 2; 15,000 - 18,000.
    check(found, same_local_batch_us=500, ideal_split_us=600, same_total_us=-300)
    check(found, same_local_batch_epoch_us=10000, ideal_split_epoch_us=6000)
    check(found, same_total_epoch_us=-3000, exposed_epoch_us=4500)
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
    for method, local in (("same_local_batch", 0), ("ideal_split", 100)):
        check(found, **{f"{method}_error_exposed_us": local + 40 + 30 - 20})
    alone = row_next_to(ddp(), {8: SINGLES[8]})
    check(alone, same_local_batch_us=500, ideal_split_us=None, same_total_us=None)
    assert (
        alone.reasons["ideal_split_us"]
        == "no single-device cell with the same options at the global batch"
    )


def repeats_that_differ(
    cell: Cell,
    step_us: tuple[float, float],
    traced_steps: int = STEPS,
    **columns: tuple[float, float],
) -> Job:
    """Two repeats, each with steps that are all alike; traced steps as long as untraced ones."""
    traced = [
        windows(
            cell,
            traced_steps,
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


def test_all_transfers_have_an_interval_of_their_repeats() -> None:
    """590 and 610 us: 600 -+ 12.706 x 10."""
    several = repeats_that_differ(
        Cell(strategy="ddp", devices=2, batch_size=8), (1500.0, 1500.0), transfer_us=(590.0, 610.0)
    )
    assert bounds(row_next_to(several, {}), "transfer") == pytest.approx(
        (600 - 127.06, 600 + 127.06), rel=1e-4
    )


def test_one_traced_step_per_repeat_gives_the_intervals_of_all_traced_means() -> None:
    """Two repeats of a traced step each: ±12.706 x 2 of what is exposed, ±12.706 x 10 of transfers;
    those of ±12.706 x 150 are wider than the step.
    """

    def row(transfer_us: tuple[float, float]) -> CellRow:
        several = repeats_that_differ(
            Cell(strategy="ddp", devices=2, batch_size=8), (1500.0, 1500.0), traced_steps=1,
            exposed_us=(440.0, 444.0), compute_us=(1000.0, 1000.0), transfer_us=transfer_us,
        )  # fmt: skip
        return row_next_to(several, {})

    known = row((590.0, 610.0))
    assert bounds(known, "exposed") == pytest.approx((442 - 25.412, 442 + 25.412), rel=1e-4)
    assert bounds(known, "transfer") == pytest.approx((600 - 127.06, 600 + 127.06), rel=1e-4)
    assert bounds(row((450.0, 750.0)), "transfer") == (None, None)


def test_exposed_communication_has_the_interval_of_its_only_part_next_to_any_strategy() -> None:
    """DDP's exposed communication spreads tenfold; dp-host's is all of it "other"."""
    ddp = repeats_that_differ(
        Cell(strategy="ddp", devices=2, batch_size=8), (1500.0, 1500.0),
        exposed_us=(400.0, 440.0), exposed_wait_us=(100.0, 120.0), exposed_transfer_us=(300.0, 320.0),
    )  # fmt: skip
    copies = repeats_that_differ(
        Cell(strategy="dp-host", devices=2, batch_size=8), (1500.0, 1500.0),
        exposed_us=(200.0, 204.0), exposed_other_us=(200.0, 204.0),
    )  # fmt: skip
    alone = row_next_to(copies, {}, spreads=run_spreads([copies]))
    together = row_next_to(copies, {}, spreads=run_spreads([ddp, copies]))
    assert bounds(together, "exposed") == pytest.approx((202 - 25.412, 202 + 25.412), rel=1e-4)
    assert bounds(together, "exposed_other") == bounds(together, "exposed")
    assert bounds(together, "exposed") == bounds(alone, "exposed")


def test_contention_has_an_interval_where_kernels_show_it() -> None:
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
    low, high = map(known, bounds(found, "contention"))
    assert low < known(found.contention_us) < high
    assert bounds(row(several), "contention") == (None, None)  # no kernel


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


def test_bandwidth_three_ways() -> None:
    found = row(ddp(), Costs(parse_link("20GB/s"), calibration=CALIBRATED))
    # 4 MB x 2(N-1)/N = 4 MB on the wire: over 500 and 700 us; the transfers lie at 500-900 and
    # 800-1,000, together 500 us
    check(found, wire_bytes_per_step=4e6, subtraction_gb_per_s=8, communication_gb_per_s=4e3 / 700)
    check(found, transfer_gb_per_s=4e3 / 500, calibrated_gb_per_s=8)  # calibrated: 4 MB in 500 us
    check(found, transfer_of_link=0.4, transfer_of_calibration=500 / 500)
    negative = row(ddp(step_us=990.0), Costs(parse_link("20GB/s")))
    check(negative, same_local_batch_us=-10, subtraction_gb_per_s=None)
    assert "-10.0 µs, not a time" in negative.reasons["subtraction_gb_per_s"]
    assert negative.reasons["calibrated_gb_per_s"] == "no calibration was given"


def test_dp_by_copies_is_predicted_from_the_link() -> None:
    cell = Cell(strategy="dp", devices=3, batch_size=8)
    times = dict.fromkeys(("compute_us", "communication_us", "exposed_us", "idle_us"), 1000.0)
    traced = windows(cell, STEPS, step_us=3000.0, hidden_us=0.0, **times)
    data = cell_data(cell, [[2900.0] * STEPS], traced)
    found = row(data, Costs(parse_link("20GB/s")))
    # device 0 sends 4 MB to each of two others and receives as much: 16 MB / 20 GB/s
    check(found, predicted_transfer_us=800, predicted_transfer_error=-0.2, wire_bytes_per_step=16e6)
    check(found, communication_gb_per_s=16)
    only_calibrated = row(data, Costs(calibration=CALIBRATED))
    assert "which no calibration measures" in only_calibrated.reasons["predicted_transfer_us"]


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
        "ring formula on 2 devices: NVLink 2 x1, 25 GB/s one way: NVML names the link"
    )
    # --link overrides
    assert compare(linked, parse_link("5GB/s")).table.iloc[0]["ring_us"] == 800.0


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
