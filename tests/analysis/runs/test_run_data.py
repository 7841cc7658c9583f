"""Run folders: each file read once; what was lost is reported and left out of every sum."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.runs.run_data import load_run, missing_repeats, with_samples
from dpscope.analysis.traces.ranks.job import Job, planned_job, together
from dpscope.profiling.store.files import write_bytes
from dpscope.profiling.store.folders import RunFolder
from tests.helpers.paths import DATA, EXAMPLE_RUN

REPEAT = Path("cells") / "ddp-d2-b8" / "repeat0"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE_RUN, tmp_path / "run"))


@pytest.mark.parametrize("lost", ["rank_0_1.json", "samples_0_1.parquet"])
@pytest.mark.parametrize("how", ["missing", "corrupt"])
def test_a_repeat_that_lost_a_file_is_left_out(run: Path, lost: str, how: str) -> None:
    path = run / REPEAT / lost
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:20])
    shutil.rmtree(run / "cells" / "dp-host-d2-b8")  # of no interest here
    loaded = load_run(run)
    data = loaded.cells["ddp-d2-b8"]
    assert "repeats_missing" in {finding.code for finding in data.findings}
    assert {repeat for repeat, _ in data.ranks} == {1}
    # throughput is of whole repeats only: the sum over one rank of two would be half of it
    row = compare(loaded).table.set_index("cell").loc["ddp-d2-b8"]
    blocks = [rank.blocks[0] for _, rank in data.ranks]
    rate = sum(block.samples for block in blocks) / max(block.duration_s for block in blocks)
    assert row["block_samples_per_s"] == pytest.approx(rate)


@pytest.mark.long
def test_repeats_are_missing_by_the_plan_though_every_cell_has_as_many(run: Path) -> None:
    """One repeat of each cell is left, of two that were planned."""
    for repeat in run.glob("cells/*/repeat1"):
        shutil.rmtree(repeat)
    assert set(missing_repeats(load_run(run)).values()) == {"1 of 2 repeats"}


@pytest.mark.long
def test_repeats_of_a_script_are_missing_by_the_cell_with_the_most(tmp_path: Path) -> None:
    """Each command that attaches adds repeats to the run, and none plans them all."""
    script = Path(shutil.copytree(DATA / "attached_tiny", tmp_path / "script"))
    assert not missing_repeats(load_run(script))
    shutil.rmtree(script / REPEAT.parent / "repeat1")
    assert missing_repeats(load_run(script)) == {"ddp-d2-b8": "1 of 2 repeats"}


@pytest.mark.long
def test_the_wait_for_the_loader_is_the_slowest_ranks_and_short_steps_are_no_samples(
    run: Path,
) -> None:
    """Rank 1 waits 4 ms in each step, rank 0 nothing but for rank 1: without the loader both would
    be 4 ms faster.
    """
    for path in run.glob("cells/*-d?-b8/repeat*/samples_*.parquet"):
        samples = pd.read_parquet(path)
        samples["step_us"] = 10_000.0
        samples["data_wait_us"] = 4_000.0 if path.stem.endswith("_1") else 0.0
        if "single" in str(path):
            last_timed = samples.index[samples["measuring_pass"] == "timed"][-1]
            samples.loc[[samples.index[-1], last_timed], ["step_us", "samples"]] = [1.0, 2]
        samples.to_parquet(path, index=False)
    loaded = load_run(run)
    row = compare(loaded).table.set_index("cell").loc["ddp-d2-b8"]
    assert (row["step_us"], row["step_without_wait_us"]) == (10_000.0, 6_000.0)
    (first, second) = loaded.cells["single-d1-b8"].step_samples()
    assert first.tolist() == second.tolist() == [10_000.0] * 9


def timed_repeats(run: Path, name: str = "ddp-d2-b8") -> Job:
    folder = RunFolder(run)
    (cell,) = (planned.cell for planned in folder.manifest().plan if planned.cell.name == name)
    job = planned_job(cell)
    repeats = [with_samples(job, index, repeat) for index, repeat in folder.repeats(cell)]
    return together([job, *repeats])


def test_a_repeat_lacks_a_rank_or_is_not_begun_or_did_not_end_well(run: Path) -> None:
    cell = run / "cells" / "ddp-d2-b8"
    (cell / "repeat0" / "rank_0_1.json").unlink()
    failed = (cell / "repeat1" / "result.json").read_bytes().replace(b'"ok"', b'"crashed"')
    write_bytes(cell / "repeat1" / "result.json", failed)
    (cell / "repeat2").mkdir()  # begun, and without a result yet
    (cell / "repeat-of-mine").mkdir()
    job = timed_repeats(run)
    (lost,) = job.findings
    assert lost.message == "ddp-d2-b8: repeat 0 is left out: it holds results of 1 of 2 ranks"
    assert [result.status for result in job.results] == ["ok", "crashed"]
    assert (job.ranks, len(job.tables.samples)) == ((), 0)
