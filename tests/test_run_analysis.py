"""Run folders that lost something: told, and left out of every sum."""

import shutil
from pathlib import Path

import pytest

from dpscope.analysis.comparison import compare
from dpscope.analysis.run_analysis import NothingMeasuredError, load_run

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "run_cpu"
REPEAT = Path("cells") / "ddp-d2-b8" / "repeat0"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "run"))


def codes(run: Path) -> set[str]:
    return {finding.code for finding in load_run(run).cells["ddp-d2-b8"].findings}


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
    data = load_run(run).cells["ddp-d2-b8"]
    assert "repeat_incomplete" in {finding.code for finding in data.findings}
    assert {repeat for repeat, _ in data.ranks} == {1}
    # throughput is of whole repeats only: the sum over one rank of two would be half of it
    row = compare(load_run(run)).table.set_index("cell").loc["ddp-d2-b8"]
    assert row["block_count"] == 1


def test_counters_that_are_gone_are_told(run: Path) -> None:
    shutil.rmtree(run / REPEAT / "counters")
    assert "counters_not_compared" in codes(run)


def test_a_run_without_one_measured_cell_names_the_first_failure(run: Path) -> None:
    shutil.rmtree(run / "cells")
    with pytest.raises(NothingMeasuredError, match="holds no measured cell"):
        load_run(run)
