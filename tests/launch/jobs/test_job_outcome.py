"""How a job ended, told from what it left."""

from pathlib import Path

import pytest
import torch

from dpscope.launch.jobs import job_outcome as module
from dpscope.launch.jobs.job_files import FailureNote, read_failures, write_failure
from dpscope.launch.jobs.job_outcome import JobOutcome, job_outcome, judged_by_kernel
from dpscope.launch.jobs.process_group import collective_limit_s, join_limit_s
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


# In the words of torch 2.15's two engines, as their libraries hold them: rank 1 waited for rank 0, which was late.
LEGACY = (
    "[rank1]:[E1122 08:00:00.123456789 ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=120000) ran for 120009 milliseconds before "
    "timing out."
)
SECOND = "[rank1]:[E1122 08:00:00.123456789 ProcessGroupNCCL.cpp:91] timeout - collective operation timed out"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (LEGACY, "rank 1: NCCL: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE"),
        (SECOND, "rank 1: NCCL: timeout - collective operation timed out"),
    ],
)
def test_a_collective_that_nccl_gave_up_is_told_in_its_words(folder: RepeatFolder, line: str, said: str) -> None:
    """The watchdog aborts its process (signal 6), which leaves no note; the other rank's is a consequence."""
    folder.log_path.write_text(line + "\n" + REPORT.format(exit=-6))
    note(folder, 0, 1, "DistBackendError: NCCL communicator was aborted on rank 0.", peer_lost=True)
    outcome = job_outcome(folder, 1, 900, "timed")
    assert (outcome.status, outcome.message[: len(said)]) == ("crashed", said)
    assert outcome.log_tail[0].startswith("[rank1]: ")
    note(folder, 0, 1, "ValueError: bad label")  # what rank 1 waited for
    assert job_outcome(folder, 1, 900, "timed").message == "rank 0: ValueError: bad label (in its timed pass)"


@pytest.mark.parametrize(
    ("device", "job_s", "joining_s", "limit_s"),
    [
        ("cuda", 900.0, 720.0, 120.0),  # joining: 80% of the job's
        ("cuda", 60.0, 48.0, 48.0),
        ("cpu", 900.0, 900.0, 900.0),
    ],
)
def test_a_collective_on_gpus_is_given_up_before_its_job(
    device: str, job_s: float, joining_s: float, limit_s: float
) -> None:
    assert join_limit_s(torch.device(device), job_s) == joining_s
    assert collective_limit_s(torch.device(device), job_s) == limit_s


def test_a_training_s_collectives_may_wait_for_a_checkpoint_and_end_before_it() -> None:
    limits = [collective_limit_s(torch.device("cuda", 0), job_s, longest_s=1800.0) for job_s in (604_800.0, 1000.0)]
    assert limits == [1800.0, 800.0]


def test_a_rank_that_lost_its_communicator_lost_its_peer(folder: RepeatFolder) -> None:
    write_failure(folder.path, 0, 0, RuntimeError("NCCL communicator was aborted on rank 0."))
    assert [one.peer_lost for one in read_failures(folder.path)] == [True]
