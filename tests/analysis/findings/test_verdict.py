"""The verdict on a run: which strategy, and what limits all that it states. Numbers by hand."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.findings.facts import Verdict
from dpscope.analysis.findings.run_findings import conclusions
from dpscope.analysis.findings.verdict import run_verdict
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.stats.samples import Estimate
from dpscope.analysis.traces.ranks.job import planned_job
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.run_codes import RunCode
from tests.helpers.known import known
from tests.helpers.made_rows import with_values
from tests.helpers.made_verdicts import (
    AHEAD,
    DDP,
    DP,
    FASTER,
    SINGLE,
    answer,
    cell,
    comparison,
    said,
    verdict_on,
)
from tests.helpers.run_cells import run_of, timed_cell, with_ranks


def which(verdict: Verdict) -> tuple[str, str | None]:
    """The label of the recommendation, and the strategy that it recommends."""
    return known(verdict.fact("which")).label, verdict.strategy


def limits(verdict: Verdict) -> dict[str, str]:
    return {one.label: " ".join(one.lines) for one in verdict.limits}


def test_ddp_is_recommended_where_it_is_shown_to_be_faster() -> None:
    """3.6 of 4 devices: 90%."""
    found = verdict_on(
        DP, replace(DDP, values={**DDP.values, "samples_per_s": 1280.0}), ratio=AHEAD
    )
    assert which(found) == ("USE DDP", "ddp")
    assert known(found.fact("which")).lines == (
        "4 devices, not one: 3.60x one device at the same batch per device (95% interval 3.40 to 3.80), 90% efficient",
        "DP takes 1.30x DDP's step (1.20 to 1.40): slower",
    )
    even = verdict_on(DP, DDP, ratio=Estimate(1.05, 0.9953, 1.2, 60))
    assert which(even) == ("USE DDP/DP", "ddp")
    assert "1.05x DDP's step (0.995 to 1.20): not significant" in said(even, "which")
    once = verdict_on(DP, DDP, ratio=Estimate(1.05, None, None, 60))
    assert said(once, "which").endswith(
        "DDP's step (too few repeats or steps for an interval): not judged"
    )


@pytest.mark.parametrize(
    ("gain", "label", "strategy", "basis"),
    [
        (Estimate(0.7, 0.6, 0.8, 60), "USE ONE", "single", "excludes 1"),
        (Estimate(1.1, 0.9, 1.3, 60), "UNDECIDED", None, "includes 1"),
        (Estimate(1.1, None, None, 60), "UNDECIDED", None, "too few repeats"),
        (Estimate(3.6, 3.4, 3.8, 60), "USE DDP", "ddp", "excludes 1"),
    ],
)
def test_one_device_is_as_good_where_the_gain_is_none_or_not_clear(
    gain: Estimate, label: str, strategy: str | None, basis: str
) -> None:
    found = verdict_on(DDP, gain=gain)
    assert which(found) == (label, strategy)
    assert basis in known(found.fact("which")).basis
    line = known(found.fact("which")).lines[0]
    assert line.startswith("DDP on 4 devices reaches 0.70x one device") == (label == "USE ONE")


def test_a_stand_in_is_never_recommended() -> None:
    """It is 1.25 times as fast as DDP, or as fast, or alone, or next to FSDP, which is slower."""
    host, ddp, fsdp = cell("dp-host", 4, 32), cell("ddp", 4, 32), cell("fsdp", 4, 32, step_us=200e3)
    for ratio in (Estimate(0.8, 0.75, 0.85, 60), Estimate(1.05, 0.9, 1.2, 60)):
        found = verdict_on(host, ddp, ratio=ratio)
        assert which(found) == ("USE DDP", "ddp")
        assert "dp-host" in said(found, "which")
    assert verdict_on(host, fsdp, of="fsdp-d4-b32").strategy == "fsdp"
    alone = verdict_on(host, of="dp-host-d4-b32")
    assert which(alone) == ("NO CHOICE", None)
    assert "3.60x one device" in said(alone, "which")
    assert "stands in for DP" in said(alone, "which")


def test_without_a_single_device_the_baseline_is_the_strategy_on_one_device() -> None:
    """Four devices in 100 ms against one in 90 ms, at 32 samples each: 4 x 90 / 100."""
    once = replace(comparison(DDP), over_itself={DDP.cell: Estimate(3.6, None, None, 50)})
    found = answer(once, "cuda")
    assert which(found) == ("NO CHOICE", None)
    assert "DDP on 4 devices: 3.60x one device under DDP (too few" in said(found, "which")
    assert "one device without DDP was not measured" in said(found, "which")
    twice = replace(once, over_itself={DDP.cell: Estimate(3.6, 3.5, 3.7, 50)})
    assert "excludes 1" in known(answer(twice, "cuda").fact("which")).basis
    assert "was not compared with one device" in said(answer(comparison(DDP), "cuda"), "which")


def on_two_cores(devices: tuple[int, ...]) -> RunData:
    """DDP on so many devices of a host with two cores; a step takes 1 ms for each two devices, and
    one device's 1 ms.
    """
    cells = [Cell("single", 1, 8), *(Cell("ddp", count, 8) for count in devices)]
    timed = [timed_cell(cell, *[1e3 * max(1, cell.devices // 2)] * 3) for cell in cells]
    return run_of(*(replace(with_ranks(data, threads=1), cores=2) for data in timed))


def test_nothing_is_concluded_from_devices_that_share_cores() -> None:
    run = on_two_cores((2, 4))
    compared = compare(run)
    found = run_verdict(run, compared)
    assert limits(found)["TOO FEW CORES"].startswith("4 devices share 2 cores")
    assert limits(found)["TOO FEW CORES"].endswith("use --devices up to 2")
    assert found.cell == "ddp-d2-b8"
    assert "2.00x one device" in said(found, "which")
    row = compared.rows["ddp-d4-b8"]
    assert (row.weak_efficiency, row.reasons["weak_efficiency"]) == (
        None,
        "4 devices share 2 cores",
    )
    assert row.step_us == 2e3  # what was measured stays
    assert [point.cell for series in compared.scaling for point in series.points] == ["ddp-d2-b8"]
    assert "loader" not in said(found, "next")


def test_repeats_that_differ_by_more_than_30_percent_are_called_noisy() -> None:
    """Medians of 1.0 and 1.31 ms."""
    single, ddp = Cell("single", 1, 8), Cell("ddp", 2, 8)
    for slowest_us, noisy in ((1310.0, True), (1290.0, False)):
        run = run_of(timed_cell(single, 1e3, 1e3), timed_cell(ddp, 1e3, slowest_us))
        found = limits(run_verdict(run, compare(run)))
        assert ("NOISY" in found) is noisy
        assert not noisy or found["NOISY"].endswith(": ddp-d2-b8 1.0 to 1.3 ms")


def test_what_a_cell_of_the_case_reports_of_a_drift_stands_above_the_answers() -> None:
    """Steps that grow longer, and untraced ones that are longer than the 86 ms of traced ones."""
    grown = RunCode.DRIFT.finding("steps grow longer by 61%", about="ddp-d4-b32")
    spread = RunCode.WIDE_SPREAD.finding("interquartile range 34%", about="ddp-d4-b32")
    for cost, lines in (
        (0.86, ("single-d1-b32: steps became shorter by 14% until they were traced (86.0 ms traced, 100.0 ms before)",)),
        (0.88, ()),
    ):  # fmt: skip
        single = with_values(SINGLE, tracer_cost=cost, traced_step_us=86e3)
        compared = comparison(single, DDP, speedups={DDP.cell: FASTER})
        found = answer(compared, "cuda", {"ddp-d4-b32": (spread, grown)})
        (drift,) = found.limits
        assert drift.label == "DRIFT"
        assert drift.lines == (*lines, "ddp-d4-b32: steps grow longer by 61%")
        assert found.shown[0] == drift
    other = answer(compared, "cuda", {"dp-d4-b32": (grown,)})
    assert not other.limits


def test_the_missing_baseline_is_the_first_thing_to_measure(tmp_path: Path) -> None:
    """A script's cell on two devices alone; with one on a single device there is nothing to add."""
    data = timed_cell(Cell("ddp", 2, 8), 1e3, 1e3)
    run = replace(run_of(data), path=tmp_path)
    run = replace(run, recorded=msgspec.structs.replace(run.manifest, script="train.py"))
    first, *_ = known(run_verdict(run, compare(run)).fact("next")).lines
    assert first.startswith("1. Run the script on one device")
    assert first.endswith(f"dpscope attach --devices single --out {tmp_path} -- train.py")
    both = replace(
        run, cells=run.cells | {"single-d1-b8": timed_cell(Cell("single", 1, 8), 1e3, 1e3)}
    )
    assert "single --out" not in said(run_verdict(both, compare(both)), "next")


def test_planned_cells_that_were_not_measured_are_the_first_thing_to_measure() -> None:
    """DDP is missing, then the single device; a run that holds all that was planned has no limit."""
    single, ddp, host = Cell("single", 1, 8), Cell("ddp", 2, 8), Cell("dp-host", 2, 8)
    for lost in (ddp, single):
        cells = [timed_cell(cell, 1e3, 1e3) for cell in (single, ddp, host) if cell != lost]
        whole = run_of(*cells)
        run = replace(whole, cells=whole.cells | {lost.name: planned_job(lost)})
        compared = compare(run)
        found = run_verdict(run, compared)
        assert limits(found)["MISSING"] == f"{lost.name}: 0 of 2 repeats"
        first, *_ = known(found.fact("next")).lines
        assert first.removeprefix("1. ").startswith("Run again without --fresh")
        assert "MISSING" not in limits(run_verdict(whole, compare(whole)))
    reason = f"{single.name} was not measured (not run)"
    assert compared.rows[ddp.name].reasons["same_local_batch_us"] == reason


def drifting(slope: float) -> RunData:
    """Three cells in three turns and orders; each measurement takes as much more than the one
    before, as a logarithm.
    """
    orders = {"single-d1-b8": [0, 2, 1], "ddp-d2-b8": [1, 0, 2], "dp-host-d2-b8": [2, 1, 0]}
    cells = [Cell("single", 1, 8), Cell("ddp", 2, 8), Cell("dp-host", 2, 8)]
    made = []
    for plan, level_us in zip(cells, (100.0, 125.0, 150.0), strict=True):
        places = orders[plan.name]
        times = [3 * turn + place for turn, place in enumerate(places)]
        off = np.array([0.001, -0.001, 0.0]) if plan.devices == 1 else np.zeros(3)
        levels = level_us * np.exp(slope * np.array(times) + off)
        made.append(replace(timed_cell(plan, *levels), places=tuple(places)))
    return run_of(*made)


def test_verdict_and_table_leave_a_clear_drift_out_alike() -> None:
    """100 us on one device and 125 on two: 2 x 100 / 125 = 1.6 times, 80% efficient. From place to
    place 3% more: 6% within a round of three cells. The medians of all steps are of other places.
    """
    run = drifting(0.03)
    compared = compare(run)
    row = compared.rows["ddp-d2-b8"]
    assert row.weak_efficiency == pytest.approx(0.8, rel=2e-3)
    found = run_verdict(run, compared)
    assert "1.60x one device" in said(found, "which")
    assert "80% efficient" in said(found, "which")
    drift = "steps became 6% longer within a round of all measured cells"
    assert limits(found)["DRIFT"].startswith(drift)
    (reported,) = (
        finding for finding in conclusions(run, compared) if finding.message.startswith(drift)
    )
    assert reported.code == RunCode.DRIFT.code
    by_medians = known(compared.rows["single-d1-b8"].step_us) / known(row.step_us)
    assert by_medians != pytest.approx(0.8, rel=0.02)
    steady = limits(run_verdict(drifting(0.0), compare(drifting(0.0))))
    assert "within a round" not in steady["DRIFT"]
