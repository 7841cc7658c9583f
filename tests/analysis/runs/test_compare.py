"""Two runs compared: the example against itself and against one made slower."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.output.changes import headline, setting_findings, undecided_findings
from dpscope.analysis.runs.compare import (
    COMPONENTS,
    STEP,
    Change,
    compare_runs,
)
from dpscope.analysis.runs.run_data import RunData, load_run
from dpscope.analysis.stats.samples import Estimate
from dpscope.analysis.traces.ranks.job import NO_TABLES
from dpscope.profiling.records.run import DeviceState
from tests.helpers.examples import FIVE_REPEATS, loaded
from tests.helpers.paths import EXAMPLE_RUN
from tests.helpers.run_cells import samples, traced_table, with_tables


@pytest.fixture(scope="module")
def before() -> RunData:
    return loaded()


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with every timed DDP step three times as long, the other cells untouched."""
    folder = Path(shutil.copytree(EXAMPLE_RUN, tmp_path_factory.mktemp("slower") / "run"))
    for path in (folder / "cells" / "ddp-d2-b8").glob("repeat*/samples_*.parquet"):
        samples = pd.read_parquet(path)
        samples["step_us"] *= 3.0
        samples.to_parquet(path, index=False)
    return folder


def test_a_run_does_not_differ_from_itself(before: RunData) -> None:
    changes = compare_runs(before, before)
    assert {change.quantity for change in changes} == {STEP, "compute", "exposed comm.", "idle"}
    assert {change.ratio.value for change in changes} == {1.0}
    assert {change.verdict for change in changes} <= {"no_difference_shown", "too_few_samples"}
    assert not any(change.is_regression for change in compare_runs(before, before, 0.0))
    assert setting_findings(before, before) == []


def test_what_got_slower_is_named(before: RunData, slower: Path) -> None:
    after = load_run(slower)
    (worse,) = [one for one in compare_runs(before, after, 0.05) if one.is_regression]
    assert worse.cell == "ddp-d2-b8"
    assert worse.ratio.value == pytest.approx(3.0)
    # three times as long is 200% more, not over 250%
    assert not any(one.is_regression for one in compare_runs(before, after, 2.5))
    (better,) = [
        one
        for one in compare_runs(after, before)
        if one.cell == "ddp-d2-b8" and one.quantity == STEP
    ]
    assert better.verdict == "below"


def with_levels(run: RunData, *levels: float, cells: int = 3) -> RunData:
    """The run's first cells as if each had a repeat of ten equal steps for each level, in
    microseconds.
    """
    own = samples([[level] * 10 for level in levels])
    return replace(
        run,
        cells={name: with_tables(run.cells[name], samples=own) for name in list(run.cells)[:cells]},
    )


def test_repeats_that_lie_apart_leave_a_difference_open(before: RunData) -> None:
    """Two repeats 10% apart in each run, the second run's both 10% longer: steps alone would call
    that shown.

    One cell: variances of logarithms 0.0953^2 / 2 on either side, 2 degrees of freedom, t = 4.303; half width
    4.303 x sqrt(2 x 0.0953^2 / 2 / 2) = 0.29, above ln 1.1 = 0.0953. Three cells: 5 degrees of freedom, 0.173, above it too.
    """
    for cells, half in ((1, 0.2900), (3, 0.1732)):
        first, second = (
            with_levels(before, 1000, 1100, cells=cells),
            with_levels(before, 1100, 1210, cells=cells),
        )
        steps = [change for change in compare_runs(first, second) if change.quantity == STEP]
        assert len(steps) == cells
        for change in steps:
            assert change.ratio.value == pytest.approx(1.1)
            assert change.ratio.high == pytest.approx(1.1 * np.exp(half), rel=1e-3)
            assert change.verdict == "no_difference_shown"
            assert not change.is_regression


def test_one_repeat_alone_is_told_to_decide_nothing(before: RunData) -> None:
    changes = compare_runs(with_levels(before, 1000), with_levels(before, 3000))
    assert {change.verdict for change in changes if change.quantity == STEP} == {"too_few_samples"}
    (finding,) = undecided_findings(changes)
    assert (finding.code, finding.severity) == ("not_compared", "warning")
    assert not list(undecided_findings(compare_runs(before, before, 7.0)))


def test_repeats_too_far_apart_for_an_interval_decide_nothing(before: RunData) -> None:
    """Two repeats at 1 and 5 ms, then ten times that: logarithms spread by 1.14, so 4.303 x 1.14 =
    4.9 is more than ln 10.
    """
    changes = compare_runs(
        with_levels(before, 1e3, 5e3, cells=1), with_levels(before, 1e4, 5e4, cells=1)
    )
    (step,) = [change for change in changes if change.quantity == STEP]
    assert (step.ratio.low, step.ratio.high, step.ratio.count) == (None, None, 20)
    assert (step.verdict, step.detectable, step.chance_slower) == ("too_few_samples", None, None)
    assert not step.hides_slowdown
    assert not step.is_regression
    assert step.not_judged == "no interval: too few steps or repeats"
    (finding,) = undecided_findings([step])
    assert finding.code == "not_compared"
    assert finding.message.endswith("or repeats lie too far apart")
    assert finding.next_step.startswith("time 5 repeats or more in both runs")


def test_traced_parts_are_those_of_the_ledger() -> None:
    """On every surface the same number: the mean over windows, as `analyze` gives it; of the
    untraced step the median.
    """
    run = loaded(FIVE_REPEATS)
    rows = compare(run).rows
    changes = compare_runs(run, run)
    assert any(one.quantity == "exposed comm." for one in changes)
    for change in changes:
        value_us = rows[change.cell].number({STEP: "step_us", **COMPONENTS}[change.quantity])
        assert value_us is not None
        assert change.before_us == change.after_us == pytest.approx(value_us, rel=1e-12)


def with_compute(run: RunData, *repeats: Sequence[float]) -> RunData:
    """The run's first cell with a traced step of one rank for each time of compute, microseconds,
    by repeat.
    """
    windows = traced_table(
        "steps",
        (
            {"repeat": repeat, "rank": 0, "step": step, "partial_window": False}
            | {
                "step_us": compute_us + 100,
                "compute_us": compute_us,
                "exposed_us": 0.0,
                "idle_us": 100.0,
            }
            | dict.fromkeys(("exposed_wait_us", "exposed_transfer_us", "exposed_other_us"), 0.0)
            | dict.fromkeys(("communication_us", "unlaunched_us", "host_copy_us"), 0.0)
            for repeat, times in enumerate(repeats)
            for step, compute_us in enumerate(times)
        ),
    )
    name = next(iter(run.cells))
    cell = with_tables(run.cells[name], steps=windows, exposed_parts=NO_TABLES.exposed_parts)
    return replace(run, cells={name: cell})


def test_the_interval_of_a_part_is_that_of_the_repeats_means(before: RunData) -> None:
    """Means of repeats 400 and 600 us (medians 300 and 450), twice that in the second run: the
    ratio of means is 2.

    Variance of logarithms on either side ln(1.5)^2 / 2, 2 degrees of freedom, t = 4.303: half
    width 4.303 x sqrt(2 x 0.4055^2 / 2 / 2) = 1.2337.
    """
    first = with_compute(before, (300, 300, 600), (450, 450, 900))
    second = with_compute(before, (600, 600, 1200), (900, 900, 1800))
    (compute,) = [change for change in compare_runs(first, second) if change.quantity == "compute"]
    assert (compute.before_us, compute.after_us) == (500.0, 1000.0)
    assert (compute.ratio.value, compute.ratio.count) == (2.0, 6)
    assert compute.ratio.low == pytest.approx(2 * np.exp(-1.2337), rel=1e-3)
    assert compute.ratio.high == pytest.approx(2 * np.exp(1.2337), rel=1e-3)


@pytest.mark.process
def test_the_command_guards_a_ci(slower: Path) -> None:
    for expected, share in ((1, "5%"), (0, "700%"), (2, "much")):
        command = [
            sys.executable,
            "-m",
            "dpscope.launch.cli",
            "compare",
            str(EXAMPLE_RUN),
            str(slower),
            "--fail-over",
            share,
        ]
        assert (
            subprocess.run(command, capture_output=True, timeout=60, check=False).returncode
            == expected
        )


def elsewhere(
    run: RunData, threads: int = 1, settings: dict[str, str] | None = None, gpus: Sequence[str] = ()
) -> RunData:
    """The run as if measured with so many threads a process, with these variables and these other
    GPUs.
    """
    manifest = msgspec.structs.replace(
        run.manifest,
        threads_per_process=threads,
        environment=msgspec.structs.replace(
            run.manifest.environment,
            settings=settings or {},
            accelerators=tuple(
                DeviceState(index=index, name=name) for index, name in enumerate(gpus)
            ),
        ),
    )
    return replace(run, recorded=manifest)


def test_threads_devices_and_variables_that_differ_are_told(before: RunData) -> None:
    first = elsewhere(before, settings={"NCCL_ALGO": "Ring"})
    second = elsewhere(
        before, 2, {"NCCL_ALGO": "Tree", "GLOO_SOCKET_IFNAME": "eth1"}, ["H100", "H100"]
    )
    (finding,) = setting_findings(first, second)
    assert (finding.code, finding.severity) == ("settings_differ", "warning")
    for said in (
        "threads a process 1 -> 2",
        "GPUs none -> 2 x H100",
        "NCCL_ALGO Ring -> Tree",
        "GLOO_SOCKET_IFNAME unset -> eth1",
    ):
        assert said in finding.message
    (finding,) = setting_findings(
        elsewhere(before, gpus=["A100"]), elsewhere(before, gpus=["H100"])
    )
    assert finding.message == "the runs differ in GPUs 1 x A100 -> 1 x H100"
    silent = {
        "CUDA_VISIBLE_DEVICES": "1",
        "OMP_NUM_THREADS": "4",
        "TORCH_HOME": "/x",
        "NCCL_DEBUG": "INFO",
    }
    # no time depends on them
    assert setting_findings(elsewhere(before), elsewhere(before, settings=silent)) == []


def test_what_could_have_been_seen_is_told(before: RunData) -> None:
    """One cell, three repeats a run at 990, 1,000 and 1,010 us: logarithms spread by 0.010, and 4 degrees of freedom from both
    runs together: t is 2.776 and 0.941, so 3.717 x 0.010 x sqrt(2 / 3) = 0.0304. Six repeats: 5 + 4 (shared) degrees, 2.262 and
    0.883: 3.145 x 0.010 x sqrt(2 / 6) = 0.0182."""
    run = with_levels(before, 990.0, 1000.0, 1010.0, cells=1)
    (step,) = [one for one in compare_runs(run, run) if one.quantity == STEP]
    assert step.detectable == pytest.approx(0.0309, rel=0.01)
    assert step.chance_slower == pytest.approx(0.5)
    # 2% can be neither shown nor ruled out, as the interval reaches 2.776 x 0.010 x sqrt(2/3) = 2.3%
    (hiding,) = [one for one in compare_runs(run, run, 0.02) if one.quantity == STEP]
    assert (step.outcome, hiding.outcome) == ("same", "not judged")
    (finding,) = undecided_findings([hiding])
    assert "not judged: these repeats can detect 3.1%, not 2.0%" in finding.message
    assert (
        finding.next_step
        == "measure 6 repeats per side, which would detect 1.8%, or raise --fail-over"
    )
    (finer,) = [one for one in compare_runs(run, run, 0.01) if one.quantity == STEP]
    (finding,) = undecided_findings([finer])
    assert (
        finding.next_step
        == "6 repeats per side would still detect only 1.8%: raise --fail-over, or make the machine quieter"
    )
    # without an interval nothing is
    changes = compare_runs(with_levels(before, 1000.0), with_levels(before, 1000.0))
    assert {one.detectable for one in changes if one.quantity == STEP} == {None}


def change_of(cell: str, ratio: float, low: float | None, high: float | None) -> Change:
    """A step that was 1 ms long, by 50 samples, judged by 5%."""
    return Change(cell, STEP, 1000.0, 1000.0 * ratio, Estimate(ratio, low, high, 50))


def test_the_first_line_answers_by_how_much() -> None:
    slower = change_of("a", 1.30, 1.25, 1.352)
    barely = change_of("b", 1.03, 1.01, 1.05)
    faster = change_of("c", 0.8, 0.701, 0.9)
    same = change_of("d", 1.001, 0.99, 1.012)
    unknown = change_of("e", 1.1, None, None)
    assert headline([slower]) == "Slower: a +30% (+25% to +35%)."
    assert headline([barely]) == "Slower: b +3.0% (+1.0% to +5.0%), by less than --fail-over 5.0%."
    every = headline([same, faster, barely, unknown, slower])
    expected = "Slower: a +30% (+25% to +35%), b +3.0% (+1.0% to +5.0%)"
    assert every == f"{expected}; faster: 1 of 5; not judged: 1 of 5; same: 1 of 5."
    assert headline([unknown, faster]) == "Faster: c -20% (-30% to -10%); not judged: 1 of 2."
    assert headline([unknown]) == "Not judged: e +10% (no interval)."
    assert (
        headline([same] * 5) == f"Same: {', '.join(['d +0.1% (-1.0% to +1.2%)'] * 3)} and 2 more."
    )
