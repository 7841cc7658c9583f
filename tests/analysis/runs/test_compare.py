"""Two runs compared: the example against itself and against one made slower."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpscope.analysis.output.change_findings import headline, undecided_findings
from dpscope.analysis.runs.compare import EXPOSED, STEP, Change, compare_runs
from dpscope.analysis.runs.run_data import RunData, load_run
from dpscope.analysis.stats.samples import Estimate, Noise
from dpscope.analysis.traces.ranks.job import NO_TABLES, Job
from dpscope.launch.cli import main
from dpscope.profiling.records.run import Cell
from tests.helpers.examples import loaded
from tests.helpers.paths import EXAMPLE_RUN
from tests.helpers.run_cells import cell_data, run_of, traced_table, with_tables


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


def exposed_cell(name: str, *levels_us: float) -> Job:
    """A repeat of three traced steps of two ranks for each level of exposed communication."""
    cell = Cell(strategy="ddp", devices=2, batch_size=8)
    rows = (
        {"repeat": repeat, "rank": rank, "step": step, "partial_window": False}
        | {"step_us": 1_000 + exposed_us, "compute_us": 900.0 + exposed_us / 10}
        | {"exposed_us": exposed_us, "idle_us": 100 - exposed_us / 10}
        | {"exposed_wait_us": 0.0, "exposed_transfer_us": exposed_us, "exposed_other_us": 0.0}
        | {"communication_us": exposed_us, "unlaunched_us": 0.0, "host_copy_us": 0.0}
        for repeat, exposed_us in enumerate(levels_us)
        for rank in range(2)
        for step in range(3)
    )
    repeats = [[1_000.0] * 8] * len(levels_us)
    return replace(cell_data(cell, repeats, traced_table("steps", rows)), name=name)


def test_the_exposed_communication_of_a_cell_has_no_other_cells_spread() -> None:
    """Repeats of 90 and 100 us alone, and next to a cell of 50 and 500 us: half width of a side
    12.706 x ln(10 / 9) / 2 = 0.6694, of both sides 0.9466.
    """
    quiet, wide = exposed_cell("quiet", 90, 100), exposed_cell("wide", 50, 500)
    for cells in ((quiet,), (quiet, wide)):
        run = run_of(*cells)
        first, *_ = (change for change in compare_runs(run, run) if change.quantity == EXPOSED)
        assert first.cell == "quiet"
        assert first.ratio.high == pytest.approx(np.exp(0.9466), rel=1e-3)


def test_what_more_repeats_would_detect_is_rounded_up_to_a_percent() -> None:
    """Five repeats of 1% of spread detect (t_0.975 + t_0.8) x 0.01 / sqrt(5) x sqrt(2) = 2.4%, ten
    1.4%.
    """
    noise = Noise(variance=1e-4, cell_freedom=4, shared_freedom=0, repeats=5)
    change = replace(change_of("a", 1.0, 0.97, 1.03), noises=(noise, noise))
    assert change.detectable == pytest.approx(0.0238, rel=0.01)
    assert change.with_more_repeats() == (10, 0.02)
    (finding,) = undecided_findings([replace(change, fail_over=0.022)])
    assert "10 repeats per side, which would detect about 2%, " in finding.next_step


@pytest.mark.long
def test_the_command_guards_a_ci(slower: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for expected, share in ((1, "5%"), (0, "700%"), (2, "much")):
        arguments = ["compare", str(EXAMPLE_RUN), str(slower), "--fail-over", share]
        monkeypatch.setattr(sys, "argv", ["dpscope", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == expected


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
    assert every == f"{expected}; faster: 1 of 5 (c); not judged: 1 of 5 (e); same: 1 of 5 (d)."
    news = "Faster: c -20% (-30% to -10%); not judged: 1 of 2 (e)."
    assert headline([unknown, faster]) == news
    assert headline([unknown, same]).startswith("Not judged: e ")
    wide = change_of("f", 1.03, 1.004, 1.063)
    assert headline([wide]).endswith("+6.3%), not shown to exceed --fail-over 5.0%.")
    assert headline([unknown]) == "Not judged: e +10% (no interval)."
    one = "d +0.1% (-1.0% to +1.2%)"
    assert headline([same] * 5) == f"Same: {one}, {one}, {one} and 2 more."
    assert headline([same] * 4) == f"Same: {one}, {one}, {one}, {one}.", "the last is not hidden"
