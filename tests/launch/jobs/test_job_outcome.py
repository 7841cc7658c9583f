"""How a job ended, told from what it left."""

from pathlib import Path

import pytest

from dpscope.launch.jobs import job_outcome as module
from dpscope.launch.jobs.job_files import FailureNote, write_failure
from dpscope.launch.jobs.job_outcome import JobOutcome, job_outcome, judged_by_kernel
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RepeatFolder

# torchrun's own report, torch 2.15, of two ranks of which rank 1 was killed.
REPORT = """[rank1]:loss 2.30
[rank0]:Traceback (most recent call last):
[rank0]:RuntimeError: Connection closed by peer
Failures:
[1]:
  time      : 2026-11-20_22:15:42
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 5494)
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : {exit} (pid: 5493)
"""


@pytest.fixture
def folder(tmp_path: Path) -> RepeatFolder:
    return RepeatFolder(tmp_path)


def note(folder: RepeatFolder, rank: int, at_ns: int, message: str, peer_lost: bool = False) -> None:
    written = FailureNote(rank=rank, at_ns=at_ns, kind="crashed", message=message, peer_lost=peer_lost)
    write_json(folder.path / f"failure_0_{rank}.json", written)


def test_a_killed_rank_comes_before_the_rank_that_lost_it(folder: RepeatFolder) -> None:
    folder.log_path.write_text(REPORT.format(exit=-9))
    note(folder, 0, 1, "RuntimeError: Connection closed by peer", peer_lost=True)
    outcome = job_outcome(folder, 1, 10, "timed")
    assert outcome.status == "crashed"
    assert outcome.message.startswith("rank 1 was killed by signal 9 (SIGKILL, often the kernel's out-of-memory")
    assert outcome.signal == 9
    assert outcome.log_tail[:2] == ("[rank1]: loss 2.30", "[rank0]: Traceback (most recent call last):")


def test_a_cause_comes_before_an_earlier_consequence(folder: RepeatFolder) -> None:
    folder.log_path.write_text(REPORT.format(exit=1))
    note(folder, 0, 1, "RuntimeError: Connection closed by peer", peer_lost=True)
    note(folder, 1, 2, "ValueError: killed by signal 9, says a user")
    assert job_outcome(folder, 1, 10, "timed").signal is None  # whatever a message says
    note(folder, 1, 2, "ValueError: bad label")
    assert job_outcome(folder, 1, 10, "timed").message == "rank 1: ValueError: bad label (in its timed pass)"


def test_memory_comes_before_everything(folder: RepeatFolder) -> None:
    folder.log_path.write_text(REPORT.format(exit=-9))
    error = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation")
    write_failure(folder.path, 0, 0, error)
    outcome = job_outcome(folder, 1, 10, "timed")
    assert outcome.status == "out_of_memory"
    assert outcome.message == (
        "rank 0: RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB. (in its timed pass)"
    )


def test_torchrun_itself_killed(folder: RepeatFolder) -> None:
    folder.log_path.write_text("no line of a rank\n")
    outcome = job_outcome(folder, -9, 10, None)
    assert outcome.message.startswith("torchrun was killed by signal 9")
    assert outcome.signal == 9
    assert outcome.log_tail == ("[torchrun]: no line of a rank",)


def test_past_its_time_limit(folder: RepeatFolder) -> None:
    outcome = job_outcome(folder, None, 2.5, "traced")
    assert (outcome.status, outcome.log_tail) == ("timed_out", ())
    assert "2.5 s (in its traced pass)" in outcome.message


@pytest.mark.parametrize(
    ("before", "after", "sent", "status"),
    [
        (3, 3, 9, "crashed"),  # by a person: nothing is said of memory
        (3, 4, 9, "out_of_memory"),
        (3, 4, None, "crashed"),  # the kernel killed something else
        (None, None, 9, "crashed"),
    ],
)
def test_a_kill_is_for_memory_only_if_the_kernel_says_so(
    before: int | None, after: int | None, sent: int | None, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "memory_kills", lambda: after)
    assert judged_by_kernel(JobOutcome(status="crashed", signal=sent), before).status == status
