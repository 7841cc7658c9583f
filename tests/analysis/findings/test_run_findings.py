"""Findings from a run's numbers and settings, each with a run that has it and one that does not."""

import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.findings.run_findings import conclusions
from dpscope.analysis.report.build import make_report
from dpscope.analysis.report.setting import setting_of
from dpscope.analysis.runs.cell_findings import spread_findings
from dpscope.analysis.runs.run_data import RunData, load_run
from dpscope.analysis.traces.ranks.job import planned_job
from dpscope.profiling.records.run import Cell, CellResult
from tests.helpers.examples import loaded
from tests.helpers.paths import EXAMPLE_RUN
from tests.helpers.run_cells import run_of, timed_cell, with_ranks, with_tables
from tests.helpers.trainings import write_trained


@pytest.fixture(scope="module")
def run() -> RunData:
    return loaded()


def codes(run: RunData) -> dict[str, str]:
    return {finding.code: finding.message for finding in conclusions(run, compare(run))}


def test_the_cell_whose_repeats_differ_most_is_named_first() -> None:
    single, ddp = Cell("single", 1, 8), Cell("ddp", 2, 8)
    cells = []
    for cell, slower in ((single, 1.2), (ddp, 1.4)):
        repeats = [np.full(30, 1e3), np.full(30, 1e3 * slower)]
        findings = spread_findings(timed_cell(cell, 1e3).name, repeats)
        cells.append(timed_cell(cell, 1e3, 1e3 * slower).with_findings(*findings))
    found = conclusions(run_of(*cells), compare(run_of(*cells)))
    (spread,) = (one for one in found if one.code == "wide_spread")
    assert spread.message == "ddp-d2-b8: repeats 40% apart; single-d1-b8: repeats 20% apart"


def test_what_disturbed_a_machine_is_one_finding_and_names_each_cell_once() -> None:
    """Half of the steps of each repeat are 20% longer, the second repeat by 50%; one cell has fewer
    repeats than the plan, so that it needs no advice to measure more of them.
    """
    single, ddp = Cell("single", 1, 8), Cell("ddp", 2, 8)
    unsteady = np.tile([1.0, 1.2], 15)
    cells = []
    for cell in (single, ddp):
        data = timed_cell(cell, 1e3, 1e3)
        findings = spread_findings(data.name, [1e3 * unsteady, 1.5e3 * unsteady])
        cells.append(data.with_findings(*findings))
    found = conclusions(run_of(*cells), compare(run_of(*cells)))
    (spread,) = (one for one in found if one.code == "wide_spread")
    assert spread.message.count("single-d1-b8") == spread.message.count("ddp-d2-b8") == 1
    assert spread.message.count("repeats 50% apart") == 2
    assert "the middle half" not in spread.message  # of a cell's signs the worst


def with_steps(run: RunData, **factors: float) -> RunData:
    """The run as if every timed step had taken 1,000 us, times its strategy's factor; a traced one
    `traced` times that.
    """
    cells = {}
    for name, data in run.cells.items():
        factor = factors.get(data.cell.strategy.replace("-", "_"), 1.0)
        samples, slower = data.tables.samples, factors.get("traced", 1.0)
        step_us = (
            1000.0 * factor * np.where(samples.words("measuring_pass").isin("traced"), slower, 1.0)
        )
        steps = data.tables.steps.assign(step_us=1000.0 * factor * slower)
        cells[name] = with_tables(data, samples=samples.assign(step_us=step_us), steps=steps)
    return replace(run, cells=cells)


@pytest.mark.long
def test_the_faster_strategy_is_named_with_its_factor(run: RunData) -> None:
    assert "dp-host takes 0.50x DDP's step (0.5" in codes(with_steps(run, ddp=2.0))["strategy_gap"]
    assert (
        "dp-host takes 1.50x DDP's step (1.5" in codes(with_steps(run, dp_host=1.5))["strategy_gap"]
    )
    assert ": not significant" in codes(with_steps(run))["strategy_gap"]
    alone = replace(
        run, cells={name: data for name, data in run.cells.items() if data.cell.strategy != "ddp"}
    )
    assert "strategy_gap" not in codes(alone)


@pytest.mark.long
def test_a_tracer_that_slows_the_steps_is_reported(run: RunData) -> None:
    assert (
        "takes 1.30x as long as an untraced one"
        in codes(with_steps(run, traced=1.3))["tracer_cost"]
    )
    assert "tracer_cost" not in codes(with_steps(run, traced=1.1))


@pytest.mark.long
def test_a_lost_repeat_is_reported_and_not_counted_in_the_setting(
    run: RunData, tmp_path: Path
) -> None:
    copied = shutil.copytree(EXAMPLE_RUN, tmp_path / "run")
    (copied / "cells" / "ddp-d2-b8" / "repeat0" / "result.json").unlink()
    lost = load_run(copied)
    assert codes(lost)["repeats_missing"].startswith("ddp-d2-b8: 1 of 2 repeats measured")
    assert "; 1 to 2 repeats; " in setting_of(lost)
    assert not {"repeats_missing", "few_samples"} & set(codes(run))
    assert "; 2 repeats; " in setting_of(run)
    assert " 1 thread per process; " in setting_of(run)


def test_cells_of_a_script_with_different_threads_do_not_compare(run: RunData) -> None:
    """torchrun sets one thread for each of several processes, and none for a single one, which then
    has all cores.
    """

    def with_threads(*threads: int) -> RunData:
        cells = {
            name: with_ranks(data, threads=count)
            for (name, data), count in zip(run.cells.items(), threads, strict=True)
        }
        return replace(
            run, recorded=msgspec.structs.replace(run.manifest, script="train.py"), cells=cells
        )

    names, same = list(run.cells), [1] * len(run.cells)
    found = codes(with_threads(2, *same[1:]))
    assert found["threads_differ"].startswith(
        f"threads of each process: {names[0]} 2, {names[1]} 1"
    )
    assert "threads_differ" not in codes(with_threads(*same))


@pytest.mark.long
def test_a_training_without_an_epoch_leaves_the_measured_cells_readable(tmp_path: Path) -> None:
    """`dpscope train` and `dpscope run` may share a folder."""
    shutil.copytree(EXAMPLE_RUN, tmp_path / "run")
    write_trained(tmp_path / "run", [Cell(strategy="ddp", devices=2, batch_size=16)], [], epochs=1)
    run = load_run(tmp_path / "run")
    assert run.training is None
    assert len(run.measured) == 3
    (finding,) = [
        one for one in conclusions(run, compare(run)) if one.code == "training_incomplete"
    ]
    assert finding.severity == "warning"
    assert "train.json holds no epoch" in finding.message
    assert make_report(run).verdict.cell
    assert "training_incomplete" not in {
        one.code for one in conclusions(loaded(), compare(loaded()))
    }


def test_a_skipped_cell_is_reported_with_its_reason(run: RunData) -> None:
    cell = Cell(strategy="ddp", devices=2, batch_size=999)
    skipped = replace(
        run, cells={**run.cells, cell.name: planned_job(cell, "the data set has 512 samples")}
    )
    assert codes(skipped)["cell_skipped"] == "ddp-d2-b999: left out: the data set has 512 samples"
    assert "cell_skipped" not in codes(run)
    waiting = replace(run, cells={**run.cells, cell.name: planned_job(cell)})  # never started
    assert codes(waiting)["repeats_missing"].startswith("ddp-d2-b999: 0 of 2 repeats measured")


@pytest.mark.long
def test_what_the_user_stopped_can_be_resumed(run: RunData) -> None:
    data = run.cells["ddp-d2-b8"]
    message = "stopped before its first pass; the same command resumes the run"
    stopped = CellResult(
        cell=data.cell, repeat=1, status="interrupted", duration_s=1.0, message=message
    )
    crashed = msgspec.structs.replace(stopped, status="crashed", message="exit status 1")

    def finding_on(result: CellResult) -> tuple[str, str]:
        changed = replace(run, cells={**run.cells, "ddp-d2-b8": replace(data, results=(result,))})
        (found,) = [
            one for one in conclusions(changed, compare(changed)) if one.code == "cell_failed"
        ]
        return found.message, found.next_step

    assert finding_on(stopped) == (
        f"ddp-d2-b8, repeat 1: interrupted: {message}",
        "run the same command again to measure it",
    )
    assert finding_on(crashed)[0] == "ddp-d2-b8, repeat 1: crashed: exit status 1"
    assert "fix the cause" in finding_on(crashed)[1]
