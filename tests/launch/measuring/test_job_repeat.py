"""All ranks of a job measure the repeat that rank 0 chose."""

import threading
from pathlib import Path

import pytest

from dpscope.launch.jobs.job_files import JOB_NAME, remove_job_files
from dpscope.launch.jobs.worker_process import TorchrunPlace
from dpscope.launch.measuring import worker_arguments
from dpscope.launch.measuring.worker_arguments import chosen_repeat
from dpscope.profiling.records.run import Cell, CellResult
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RunFolder

CELL = Cell(strategy="ddp", devices=2, batch_size=8)
RANK_0, RANK_1 = (TorchrunPlace(rank, rank, world_size=2, local_world_size=2, node=0) for rank in range(2))


@pytest.fixture(autouse=True)
def started_by_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"RUN_ID": "none", "RESTART_COUNT": "0"}
    for name, value in variables.items():
        monkeypatch.setenv(f"TORCHELASTIC_{name}", value)
    monkeypatch.setenv("MASTER_ADDR", "node0")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setattr(worker_arguments, "POLL_S", 0.01)


def measured(run: RunFolder, repeat: int) -> None:
    folder = run.repeat(CELL, repeat)
    folder.path.mkdir(parents=True)
    write_json(folder.result_path, CellResult(cell=CELL, repeat=repeat, status="ok", duration_s=1.0))


def test_a_rank_that_is_first_waits_for_rank_0s_choice(tmp_path: Path) -> None:
    """Repeat 0 gets its result while rank 1 waits, as on a slow file system: rank 1 alone would have taken repeat 0."""
    run = RunFolder(tmp_path)
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(chosen_repeat(run, CELL, None, RANK_1)))
    waiting.start()
    measured(run, 0)
    assert found == []
    assert chosen_repeat(run, CELL, None, RANK_0) == 1
    waiting.join(timeout=10)
    assert found == [1]


@pytest.mark.parametrize(("name", "value"), [("MASTER_PORT", "29501"), ("TORCHELASTIC_RESTART_COUNT", "1")])
def test_another_jobs_choice_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """A killed job left its choice behind; a restarted attempt counts as another job too."""
    run = RunFolder(tmp_path)
    assert chosen_repeat(run, CELL, None, RANK_0) == 0
    monkeypatch.setattr(worker_arguments, "WAIT_FOR_RANK_0_S", 0.05)
    monkeypatch.setenv(name, value)
    with pytest.raises(DpscopeError, match=r"rank 0 has chosen no repeat of ddp-d2-b8 there in 0.05 s"):
        chosen_repeat(run, CELL, None, RANK_1)
    assert chosen_repeat(run, CELL, None, RANK_0) == 0
    assert chosen_repeat(run, CELL, None, RANK_1) == 0


def test_a_named_repeat_needs_no_waiting(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert [chosen_repeat(run, CELL, 3, place) for place in (RANK_1, RANK_0)] == [3, 3]
    measured(run, 5)
    for place in (RANK_0, RANK_1):
        with pytest.raises(DpscopeError, match="--repeat 5: ddp-d2-b8 is measured already"):
            chosen_repeat(run, CELL, 5, place)


def test_a_finished_job_leaves_no_choice(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    folder = run.repeat(CELL, chosen_repeat(run, CELL, None, RANK_0)).path
    assert (folder / JOB_NAME).exists()
    remove_job_files(folder)
    assert list(folder.iterdir()) == []
