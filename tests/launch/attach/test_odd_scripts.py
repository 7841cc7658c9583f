"""Scripts of two processes whose ranks differ or whose parameters change: what is counted, expected
and reported.
"""

from pathlib import Path

import pytest

from dpscope.analysis.output.run_screen import Targets, report_of
from dpscope.analysis.runs.run_data import load_run
from dpscope.profiling.store.folders import is_run_folder
from tests.helpers.script_jobs import run_scripts

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]
NAMES = ("uneven_batches", "unfrozen", "runs_short", "alternating")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("odd")


@pytest.fixture(scope="module")
def notes(out: Path) -> dict[str, list[list[str]]]:
    return run_scripts(out, {name: f"{name}.py" for name in NAMES}, processes=2, bare=False)


def test_the_batch_is_the_sum_over_ranks(notes: dict[str, list[list[str]]], out: Path) -> None:
    """32 samples on rank 0, 96 on rank 1: 128 a step."""
    assert notes["uneven_batches"] == [[], []]
    report = report_of(out / "uneven_batches" / "run", Targets())
    (data,) = report.run.measured
    row = report.comparison.rows[data.cell.name]
    assert (data.cell.name, row.batch_size, row.global_batch_size) == ("ddp-d2-b64", 64, 128)
    assert row.step_us is not None
    assert row.samples_per_s == pytest.approx(128e6 / row.step_us)
    assert {rank.blocks[0].samples for _, rank in data.ranks} == {8 * 32, 8 * 96}
    (uneven,) = (one.message for one in data.findings if one.code == "batches_differ")
    assert uneven == "ddp-d2-b64: 128 samples a step in all (rank 0: 32, rank 1: 96)"


def test_expected_bytes_are_those_of_what_required_gradients_in_the_traced_steps(
    notes: dict[str, list[list[str]]], out: Path
) -> None:
    """The last layer alone, 128 x 10 + 10 floats: the body is unfrozen after the trace, within the
    timed steps.
    """
    (data,) = load_run(out / "unfrozen" / "run").measured
    assert data.communication_known
    assert [one for one in data.findings if one.severity == "error"] == []
    reduced = data.collectives[data.collectives["kind"] == "all_reduce"]
    assert set(reduced.groupby(["rank", "step"])["bytes"].sum()) == {4 * 1290}
    assert {rank.model.gradient_bytes for _, rank in data.ranks} == {4 * 1290}
    assert [len(rank) for rank in notes["unfrozen"]] == [1, 0]  # it ended early


def test_unlike_steps_are_a_warning(notes: dict[str, list[list[str]]], out: Path) -> None:
    """Each other step of the critic's optimizer is followed by one of the generator's."""
    assert notes["alternating"] == [[], []]
    (data,) = load_run(out / "alternating" / "run").measured
    unlike = {one.message for one in data.findings if one.code == "steps_unlike"}
    assert unlike == {"4 of 8 timed steps call the models more or less often than the others"}


def test_a_rank_with_too_few_steps_is_not_measured(
    notes: dict[str, list[list[str]]], out: Path
) -> None:
    """Its reason goes to `dpscope attach`, which prints it (test_jobs.py)."""
    assert notes["runs_short"] == [[], []]
    assert not is_run_folder(out / "runs_short" / "run")
