"""How a job ended, by its result, notes and log; Python stands in for torchrun."""

import io
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from rich.console import Console

from dpscope.launch.jobs import job_outcome as module
from dpscope.launch.jobs import worker_process
from dpscope.launch.jobs.job_outcome import (
    NO_NOTE,
    PROGRESS_NAME,
    FailureNote,
    JobOutcome,
    job_outcome,
    write_failure,
)
from dpscope.launch.jobs.job_queue import attend_job, check_done
from dpscope.launch.jobs.process_group import COLLECTIVE_S, wait_limit_s
from dpscope.launch.jobs.stop_request import StoppedError, StopRequest
from dpscope.launch.jobs.worker_process import TorchrunPlace
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import JobFolder
from tests.helpers.programs import Program

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


def write_note(
    folder: JobFolder, rank: int, at_ns: int, message: str, peer_lost: bool = False
) -> None:
    note = FailureNote(rank=rank, at_ns=at_ns, kind="crashed", message=message, peer_lost=peer_lost)
    write_json(folder.path / f"failure_0_{rank}.json", note)


def outcome_of(
    folder: JobFolder, log: str, exit_status: int = 1, kills_before: int | None = None
) -> JobOutcome:
    """Of a job in its timed pass."""
    (folder.path / PROGRESS_NAME).write_text("timed")
    folder.log_path.write_text(log)
    return job_outcome(folder, "exited", exit_status, kills_before=kills_before)


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    return JobFolder(tmp_path)


def test_a_killed_rank_comes_before_the_rank_that_lost_it(folder: JobFolder) -> None:
    write_note(folder, 0, 1, "RuntimeError: Connection closed by peer", peer_lost=True)
    outcome = outcome_of(folder, REPORT.format(exit=-9))
    assert outcome.status == "crashed"
    assert outcome.message.startswith(
        "rank 1 was killed by signal 9 (SIGKILL, often the kernel's out-of-memory"
    )
    assert outcome.log_tail[:2] == (
        "[rank1]: loss 2.30",
        "[rank0]: Traceback (most recent call last):",
    )


@pytest.mark.parametrize(
    ("before", "after", "exit_status", "status"),
    [
        (3, 3, -9, "crashed"),  # by a person
        (3, 4, -9, "out_of_memory"),
        (3, 4, -11, "crashed"),  # the kernel killed something else
        (3, 4, 1, "crashed"),
        (None, None, -9, "crashed"),
    ],
)
def test_a_kill_is_out_of_memory_only_if_the_kernel_reports_it(
    folder: JobFolder,
    before: int | None,
    after: int,
    exit_status: int,
    status: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "memory_kills", lambda: after)
    # no signal is taken from a message
    write_note(folder, 1, 2, "ValueError: killed by signal 9, by a user")
    assert outcome_of(folder, REPORT.format(exit=exit_status), kills_before=before).status == status


def test_torchrun_itself_is_killed_a_cause_before_a_consequence_and_memory_before_everything(
    folder: JobFolder,
) -> None:
    outcome = outcome_of(folder, "no line of a rank\n", exit_status=-9)
    assert outcome.message.startswith("torchrun was killed by signal 9")
    assert outcome.log_tail == ("[torchrun]: no line of a rank",)
    write_failure(folder.path, 0, 0, RuntimeError("NCCL communicator was aborted on rank 0."))
    write_note(folder, 1, time.time_ns(), "ValueError: bad label")
    assert (
        outcome_of(folder, REPORT.format(exit=1)).message
        == "rank 1: ValueError: bad label (in its timed pass)"
    )
    error = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation")
    write_failure(folder.path, 0, 0, error)
    message = (
        "rank 0: RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB. (in its timed pass)"
    )
    outcome = outcome_of(folder, REPORT.format(exit=-9))
    assert (outcome.status, outcome.message) == ("out_of_memory", message)


def test_a_rank_without_a_note_is_named_by_its_exit_unless_it_was_ended_with_the_others(
    folder: JobFolder,
) -> None:
    ended = REPORT.replace("exitcode  : 1 ", "exitcode  : -15 ")
    assert (
        outcome_of(folder, ended.format(exit=3)).message
        == "rank 1 ended with exit status 3 (in its timed pass)"
    )
    assert outcome_of(folder, REPORT.format(exit=NO_NOTE)).message == (
        "rank 1 could not write into the run folder: make room on its disk, or do not remove it during the run (in its timed "
        "pass)"
    )


def test_a_process_that_cannot_even_write_its_failure_ends_with_a_status_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its standard error is a file on the same full disk."""

    def full(*_: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    def fail(place: TorchrunPlace) -> None:
        full()

    def end(status: int) -> NoReturn:
        raise SystemExit(status)

    for name in (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
    ):
        monkeypatch.setenv(name, "1" if "SIZE" in name else "0")
    monkeypatch.setattr("os._exit", end)
    monkeypatch.setattr(sys.stderr, "write", full)
    for write, status in ((full, NO_NOTE), (lambda *_: None, 1)):
        monkeypatch.setattr(worker_process, "write_failure", write)
        with pytest.raises(SystemExit) as ended:
            worker_process.work(lambda arguments, place: (JobFolder(tmp_path), fail))
        assert ended.value.code == status


# Messages of torch 2.15's two engines, as in their libraries: rank 1 waited for rank 0, which was
# late.
LEGACY = (
    "[rank1]:[E1122 08:00:00.123456789 ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=120000) ran for 120009 milliseconds before "
    "timing out."
)
SECOND = "[rank1]:[E1122 08:00:00.123456789 ProcessGroupNCCL.cpp:91] timeout - collective operation timed out"
# What torch 2.14's watchdog logged on a virtual GPU node: of a kernel that failed, and of an error
# that NCCL reported later.
STICKY = (
    "[rank1]:[rank1]:[E1129 14:01:54.636425359 ProcessGroupNCCL.cpp:2192] [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group "
    "watchdog thread terminated with exception: CUDA error: unspecified launch failure"
)
ASYNCHRONOUS = (
    "[rank1]:[rank1]:[E1129 14:00:08.146959703 ProcessGroupNCCL.cpp:657] [PG GUID 0(default_pg) Rank 1] Collective WorkNCCL("
    "SeqNum=20, OpType=BROADCAST, NumelIn=672, NumelOut=672, Timeout(ms)=48000) raised the following async exception: "
    "NCCL error: remote process exited or there was a network error, NCCL version 2.30.7"
)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (STICKY, "rank 1: CUDA error: unspecified launch failure (in its timed pass)"),
        (
            ASYNCHRONOUS,
            "rank 1: NCCL error: remote process exited or there was a network error, NCCL version 2.30.7",
        ),
        (
            LEGACY,
            "rank 1: NCCL: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE",
        ),
        (SECOND, "rank 1: NCCL: timeout - collective operation timed out"),
    ],
)
def test_a_collective_that_nccl_aborted_is_reported_with_its_message(
    folder: JobFolder, line: str, message: str
) -> None:
    """The watchdog aborts its process (signal 6), which leaves no note; the other rank's is a
    consequence.
    """
    log = line + "\n" + REPORT.format(exit=-6)
    write_note(
        folder, 0, 1, "DistBackendError: NCCL communicator was aborted on rank 0.", peer_lost=True
    )
    outcome = outcome_of(folder, log)
    assert (outcome.status, outcome.message[: len(message)]) == ("crashed", message)
    assert outcome.log_tail[0].startswith("[rank1]: ")
    write_note(folder, 0, 1, "ValueError: bad label")  # the error that rank 1 waited for
    assert outcome_of(folder, log).message == "rank 0: ValueError: bad label (in its timed pass)"


def test_a_job_that_hangs_after_an_error_of_nccl_is_no_slow_job(folder: JobFolder) -> None:
    """The watchdog collects its records for a minute before it aborts: a shorter time limit ends
    the job first.
    """
    folder.log_path.write_text(f"{ASYNCHRONOUS}\n")
    outcome = job_outcome(folder, "timed_out", timeout_s=60.0)
    assert outcome.status == "timed_out"
    assert outcome.message.startswith(
        "rank 1: NCCL error: remote process exited or there was a network error"
    )
    assert outcome.message.endswith("; passed its time limit of 60 s (before its first pass)")


def test_the_rank_that_aborted_is_named_before_those_that_torchrun_ended(folder: JobFolder) -> None:
    report = REPORT.format(exit=-6).replace("exitcode  : 1 ", "exitcode  : -15 ")
    outcome = outcome_of(folder, report)
    assert outcome.message == "rank 1 was ended by signal 6 (SIGABRT) (in its timed pass)"


@pytest.mark.parametrize(
    ("device", "job_s", "joining_s", "limit_s", "of_training_s"),
    [
        ("cuda", 900.0, 720.0, 120.0, 720.0),  # joining: 80% of the job's limit
        ("cuda", 60.0, 48.0, 48.0, 48.0),
        # a rank of a training may write a checkpoint
        ("cuda", 604_800.0, 483_840.0, 120.0, 1800.0),
        ("cpu", 900.0, 900.0, 900.0, 900.0),
    ],
)
def test_a_collective_on_gpus_times_out_before_its_job(
    device: str, job_s: float, joining_s: float, limit_s: float, of_training_s: float
) -> None:
    one = torch.device(device)
    assert wait_limit_s(one, job_s) == joining_s
    assert wait_limit_s(one, job_s, COLLECTIVE_S) == limit_s
    assert wait_limit_s(one, job_s, 1800.0) == of_training_s


pytestmark = pytest.mark.process


def run_job(path: Path, code: str, timeout_s: float = 60.0, stop: bool = False) -> tuple[str, str]:
    """The error of a job that runs `code` ("" if there is none), and its printed lines."""
    shown, request = Console(file=io.StringIO(), width=200), StopRequest()
    request.requested = stop
    job = Program(name="job", program=("-c", code), folder=JobFolder(path), threads=1)
    outcome = attend_job(job, timeout_s, "A job", request, shown)
    assert not (path / PROGRESS_NAME).exists()
    assert isinstance(shown.file, io.StringIO)
    try:
        check_done(outcome, "it failed", request, shown)
    except StoppedError as error:
        return f"{error} [{error.exit_status}]", shown.file.getvalue()
    except DpscopeError as error:
        return str(error), shown.file.getvalue()
    return "", shown.file.getvalue()


RESULT = "open('{0}/result.json', 'w').write('{{\"status\": \"{1}\"}}')"
PASS = "open('{0}/" + PROGRESS_NAME + "', 'w').write('timed')"


def test_jobs_by_their_results_and_exits(tmp_path: Path) -> None:
    """A job without a result, or of which a rank failed after the result was stored, has failed."""
    folders = {name: tmp_path / name for name in ("done", "fails", "silent", "begun", "late")}
    for name in ("done", "begun", "late"):
        folders[name].mkdir()
    # of a process that was killed
    (folders["done"] / ".tmp-failure_0_1.json-xr17fgzj").write_text('{"rank": 1, "at_')
    (folders["done"] / ".tmp-mine").write_text("not dpscope's")
    assert run_job(folders["done"], f"{PASS}; {RESULT}".format(folders["done"], "ok"))[0] == ""
    assert [path.name for path in folders["done"].glob(".tmp-*")] == [".tmp-mine"]
    line, printed = run_job(
        folders["fails"], "print('[rank0]: no such device'); raise SystemExit(3)"
    )
    assert (
        line == "it failed: torchrun ended with exit status 3 and no result (before its first pass)"
    )
    assert printed == "[rank0]:  no such device\n"
    silent, _ = run_job(folders["silent"], "")
    assert (
        silent
        == "it failed: torchrun ended with exit status 0 and no result (before its first pass)"
    )
    begun, _ = run_job(folders["begun"], f"{PASS}; {RESULT}".format(folders["begun"], "crashed"))
    assert begun == "it failed: torchrun ended with exit status 0 and no result (in its timed pass)"
    leaves = f"{PASS}; {RESULT}; raise SystemExit(1)".format(folders["late"], "ok")
    late, _ = run_job(folders["late"], leaves)
    assert late == "it failed: torchrun ended with exit status 1 (in its timed pass)"


def test_a_slow_or_stopped_job_is_ended(tmp_path: Path) -> None:
    assert (
        "passed its time limit of 0.3 s"
        in run_job(tmp_path / "a", "import time; time.sleep(60)", timeout_s=0.3)[0]
    )
    line, printed = run_job(tmp_path / "b", "import time; time.sleep(60)", stop=True)
    assert line == "it failed: interrupted [143]"  # 128 + SIGTERM
    assert "rank" not in printed
