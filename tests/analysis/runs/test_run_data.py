"""Run folders that lost something: told, and left out of every sum."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.runs.run_data import NothingMeasuredError, load_run
from tests.helpers.paths import EXAMPLE_RUN

REPEAT = Path("cells") / "ddp-d2-b8" / "repeat0"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE_RUN, tmp_path / "run"))


def codes(run: Path) -> set[str]:
    return {finding.code for finding in load_run(run).cells["ddp-d2-b8"].findings}


@pytest.mark.long
def test_a_whole_run_has_no_such_finding(run: Path) -> None:
    assert not codes(run) & {"repeat_incomplete", "counters_not_compared", "trace_incomplete"}


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
    assert "repeat_incomplete" in {finding.code for finding in data.findings}
    assert {repeat for repeat, _ in data.ranks} == {1}
    # throughput is of whole repeats only: the sum over one rank of two would be half of it
    row = compare(loaded).table.set_index("cell").loc["ddp-d2-b8"]
    assert row["block_count"] == 1


def test_counters_that_are_gone_are_told(run: Path) -> None:
    shutil.rmtree(run / REPEAT / "counters")
    assert "counters_not_compared" in codes(run)


@pytest.mark.long
@pytest.mark.parametrize(("slower_mhz", "told"), [(1_340, False), (1_338, True)])
def test_a_rank_that_its_power_limit_makes_the_slow_one_is_told(run: Path, slower_mhz: int, told: bool) -> None:
    """Each rank knows its own GPU alone; 95% of 1,410 MHz is 1,339.5."""
    for rank, clock_mhz in ((0, 1_410), (1, slower_mhz)):
        path = run / REPEAT / f"rank_0_{rank}.json"
        state = {"index": rank, "sm_clock_mhz": clock_mhz, "throttle_reasons": ["sw_power_cap"]}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"device_states_after": [state]}))
    assert ("device_throttled" in codes(run)) == told


@pytest.mark.long
def test_communication_without_a_trace_is_not_known(run: Path) -> None:
    whole = load_run(run).cells["ddp-d2-b8"]
    assert (whole.communication_known, len(whole.ranks)) == (True, 4)
    shutil.rmtree(run / REPEAT / "traces")
    assert not load_run(run).cells["ddp-d2-b8"].communication_known


def test_a_run_without_one_measured_cell_names_the_first_failure(run: Path) -> None:
    shutil.rmtree(run / "cells")
    with pytest.raises(NothingMeasuredError, match="holds no measured cell"):
        load_run(run)


@pytest.mark.long
def test_the_wait_for_the_loader_is_the_slowest_ranks(run: Path) -> None:
    """Rank 1 waits 4 ms in each step, rank 0 nothing but for rank 1: without the loader both would be 4 ms faster."""
    for path in run.glob("cells/ddp-d2-b8/repeat*/samples_*.parquet"):
        samples = pd.read_parquet(path)
        samples["step_us"] = 10_000.0
        samples["data_wait_us"] = 4_000.0 if path.stem.endswith("_1") else 0.0
        samples.to_parquet(path, index=False)
    row = compare(load_run(run)).table.set_index("cell").loc["ddp-d2-b8"]
    assert row["step_us"] == 10_000.0
    assert row["step_without_wait_us"] == 6_000.0


@pytest.mark.long
def test_short_steps_are_no_samples_of_the_cell(run: Path) -> None:
    for path in run.glob("cells/single-d1-b8/repeat*/samples_*.parquet"):
        samples = pd.read_parquet(path)
        samples["step_us"] = 1_000.0
        samples.loc[samples.index[-1], ["step_us", "samples"]] = [1.0, 2]
        last_timed = samples.index[samples["measuring_pass"] == "timed"][-1]
        samples.loc[last_timed, ["step_us", "samples"]] = [1.0, 2]
        samples.to_parquet(path, index=False)
    (first, second) = load_run(run).cells["single-d1-b8"].step_samples()
    assert first.tolist() == second.tolist() == [1_000.0] * 9
