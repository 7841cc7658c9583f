"""How a torchrun job fares and how it ended, from its result, its log and what its processes
report. Imports no torch.

Processes report their pass and their failures by files in the repeat's folder, which are removed
when the job is recorded.
"""

import contextlib
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from dpscope.profiling.records.run import CellStatus
from dpscope.profiling.records.stored import Stored
from dpscope.profiling.store.errors import error_line
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import JobFolder

STARTED_AT_VARIABLE = "DPSCOPE_STARTED_AT"  # Unix time at which torchrun was started
PROGRESS_NAME = "progress.txt"
NO_NOTE = 74  # EX_IOERR: exit status of a process that could not write why it failed

_LONGEST_MESSAGE = 400
_OUT_OF_MEMORY_SIGNS = (
    *("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory"),
    *("cudaerrormemoryallocation", "status_alloc_failed"),
)
# Messages of libraries that got no memory, and in other cases too.
_LIBRARY_FAILURE_SIGNS = (
    *(
        "cublas_status_not_initialized",
        "cublas_status_internal_error",
        "cublas_status_execution_failed",
    ),
    *(
        "cudnn_status_not_initialized",
        "cudnn_status_internal_error",
        "cudnn_status_execution_failed",
    ),
    *(
        "cudnn_status_not_supported",
        "unable to find a valid cudnn algorithm",
        "unable to find an engine",
    ),
    *("unhandled cuda error", "ncclunhandledcudaerror"),
)
# oneDNN's, of an operation that it does not have for this CPU and precision; what follows it is
# about oneDNN's own log.
_CPU_LACKS, _CPU_LACKS_END = "could not create a primitive", ". Run workload with"
_FULL = 0.9  # of a device's memory: above it such a failure counts as out of memory
_PEER_LOST_SIGNS = (
    *(
        "connection closed by peer",
        "connection reset by peer",
        "broken pipe",
        "socket",
        "remote process exited",
    ),
    *("timed out waiting", "communicator was aborted", "ncclremoteerror", "ncclsystemerror"),
)


class FailureNote(Stored, frozen=True, kw_only=True):
    """Why one process failed, with its message."""

    rank: int
    at_ns: int  # Unix time
    kind: Literal["out_of_memory", "crashed"]
    message: str
    peer_lost: bool  # a consequence of another rank's failure rather than a cause


def _has_one(signs: Sequence[str], text: str) -> bool:
    lowered = text.lower()
    return any(sign in lowered for sign in signs)


def _fullest_memory() -> float:
    """Largest used share of memory (0 to 1) among the GPUs that this process uses; 0 if torch uses
    none or fails.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0.0
    shares = [0.0]
    for index in range(torch.cuda.device_count()):
        with contextlib.suppress(RuntimeError):  # after some failures a device does not respond
            if torch.cuda.memory_reserved(index) > 0:
                free_bytes, total_bytes = torch.cuda.mem_get_info(index)
                shares.append(1 - free_bytes / total_bytes)
    return max(shares)


def write_failure(folder: Path, node: int, rank: int, error: BaseException) -> None:
    text = f"{type(error).__name__}: {error}"
    first_line = error_line(error)
    lacked = isinstance(error, MemoryError) or _has_one(_OUT_OF_MEMORY_SIGNS, text)
    if _has_one(_LIBRARY_FAILURE_SIGNS, text) and _fullest_memory() > _FULL:
        lacked = True
        first_line = f"GPU memory over {_FULL:.0%} full: {first_line}"
    if _CPU_LACKS in text:
        first_line = f"{first_line.partition(_CPU_LACKS_END)[0]}: this CPU cannot do it in the model's precision; use --amp off"
    note = FailureNote(
        rank=rank,
        at_ns=time.time_ns(),
        kind="out_of_memory" if lacked else "crashed",
        message=first_line
        if len(first_line) <= _LONGEST_MESSAGE
        else f"{first_line[: _LONGEST_MESSAGE - 3]}...",
        peer_lost=_has_one(_PEER_LOST_SIGNS, text),
    )
    write_json(folder / f"failure_{node}_{rank}.json", note)


def read_failures(folder: Path) -> list[FailureNote]:
    """The notes of a job, in the order of the failures."""
    notes = [
        msgspec.json.decode(path.read_bytes(), type=FailureNote)
        for path in folder.glob("failure_*.json")
    ]
    return sorted(notes, key=lambda note: note.at_ns)


def read_progress(folder: Path) -> str | None:
    """The job's current pass; None before its first and after its last."""
    try:
        return (folder / PROGRESS_NAME).read_text()
    except FileNotFoundError:  # a job that ends removes it at any moment
        return None


def remove_job_files(folder: Path) -> None:
    """Remove the notes and the progress of a finished job."""
    for path in [*folder.glob("failure_*.json"), folder / PROGRESS_NAME]:
        path.unlink(missing_ok=True)


TAIL_LINES_FIRST = 25  # of the rank that failed first
TAIL_LINES_OTHER = 5

_PREFIX = re.compile(r"^\[rank(\d+)\]:")
_EXIT = re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s*exitcode\s*:\s*(-?\d+)")
# What NCCL's watchdog logs, of both of torch's engines, before it aborts its process: a timeout, or
# an error that it met.
_TIMEOUT = (
    r"Watchdog caught collective operation timeout: .+|timeout - collective operation timed out.*"
)
_WATCHDOG = re.compile(
    rf"^\[rank(\d+)\]:.*?(?:({_TIMEOUT})|exception: ((?:CUDA|NCCL) error: .+))", re.MULTILINE
)
# NCCL's watchdog aborts, torchrun ends the other ranks: consequences of a failure elsewhere, the
# likeliest last.
_CONSEQUENT_SIGNALS = (signal.SIGABRT, signal.SIGTERM, signal.SIGINT)


JobWait = Literal["exited", "timed_out", "stopped", "lost"]
"""How waiting for a job ended; lost: one of its nodes was lost."""


@dataclass(frozen=True)
class JobOutcome:
    """Status of a job, why in one line, and the tail of its log, the first rank to fail first."""

    status: CellStatus
    message: str = ""
    log_tail: tuple[str, ...] = ()


def memory_kills() -> int | None:
    """Number of processes that the kernel has killed on this host for lack of memory; None where it
    is not available.
    """
    try:
        counted = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(counted[1]) if counted else None


def job_outcome(
    folder: JobFolder,
    how: JobWait,
    exit_status: int | None = None,
    timeout_s: float = 0.0,
    lost: str | None = None,
    rank_location: Callable[[int | None], str] = lambda rank: "",
    kills_before: int | None = None,
) -> JobOutcome:
    """The outcome of a job; `exit_status` is that of a torchrun that exited. A result counts unless
    a rank failed after it.

    `lost` names the node that was lost and the evidence. `rank_location` returns on which of
    several nodes a rank ran, such as `` on node 1 (gpu07)``. A killed rank ran out of memory if
    `memory_kills` has grown beyond `kills_before`, its number at the job's start: a person, a batch
    system or another program may send SIGKILL as well.
    """
    log = folder.log_path.read_text(errors="replace") if folder.log_path.exists() else ""
    last_pass = read_progress(folder.path)
    where = f"in its {last_pass} pass" if last_pass else "before its first pass"
    if how == "stopped":
        message = f"stopped {where}; the same command without --fresh resumes the run"
        return JobOutcome("interrupted", message, _log_tail(log, None))
    has_result = folder.status() == "ok"
    if has_result and not exit_status:
        return JobOutcome("ok")
    if how == "lost":
        message = (
            f"{lost} ({where}); the same command on all nodes, without --fresh, resumes the run"
        )
        return JobOutcome("crashed", message, _log_tail(log, None))
    if exit_status is None:
        return _timed_out(log, f"passed its time limit of {timeout_s:g} s ({where})")
    first = next(_failures(read_failures(folder.path), log, exit_status, has_result))
    status = first.status
    if status == "crashed" and _lacked_memory(first, kills_before):
        status = "out_of_memory"
    message = f"{first.message}{rank_location(first.rank)} ({where})"
    return JobOutcome(status, message, _log_tail(log, first.rank))


def _lacked_memory(first: "_Failure", kills_before: int | None) -> bool:
    if _has_one(_OUT_OF_MEMORY_SIGNS, first.message):
        return True
    if first.signal != signal.SIGKILL or kills_before is None:
        return False
    return (memory_kills() or 0) > kills_before


def _timed_out(log: str, passed: str) -> JobOutcome:
    aborting = _watchdog_failure(log)
    if aborting is None:
        message = f"{passed}; raise --timeout if it was only slow"
        return JobOutcome("timed_out", message, _log_tail(log, None))
    message = f"{aborting.message}; {passed}"
    return JobOutcome("timed_out", message, _log_tail(log, aborting.rank))


class _Failure(NamedTuple):
    rank: int | None  # None: torchrun itself
    message: str
    status: CellStatus = "crashed"
    signal: int | None = None


def _failures(
    notes: Sequence[FailureNote], log: str, torchrun_status: int, has_result: bool
) -> Iterator[_Failure]:
    """What failed, the most likely cause of all the others first."""
    exits = {int(rank): int(status) for rank, status in _EXIT.findall(log)}
    yield from (_noted(note) for note in notes if note.kind == "out_of_memory")
    for rank, status in exits.items():
        if status < 0 and -status not in _CONSEQUENT_SIGNALS:
            message = f"rank {rank} was killed by {_signal_text(-status)}"
            yield _Failure(rank, message, signal=-status)
    yield from (_noted(note) for note in notes if not note.peer_lost)
    # a signal ends the rank, which writes no note
    if aborted := _watchdog_failure(log):
        yield aborted
    yield from map(_noted, notes)
    for rank in sorted(exits, key=lambda rank: _likely_consequence(exits[rank])):
        yield _Failure(rank, f"rank {rank} {_end_text(exits[rank])}")
    yield _failure_of_torchrun(torchrun_status, has_result)


def _noted(note: FailureNote) -> _Failure:
    return _Failure(note.rank, f"rank {note.rank}: {note.message}", note.kind)


def _failure_of_torchrun(status: int, has_result: bool) -> _Failure:
    if status < 0:
        message = f"torchrun was killed by {_signal_text(-status)}"
        return _Failure(None, message, signal=-status)
    without = "" if has_result else " and no result"
    return _Failure(None, f"torchrun ended with exit status {status}{without}")


def _watchdog_failure(log: str) -> _Failure | None:
    """The first failure that a watchdog of NCCL logged."""
    logged = _WATCHDOG.search(log)
    if logged is None:
        return None
    rank, timeout, error = logged.groups()
    return _Failure(int(rank), f"rank {rank}: {f'NCCL: {timeout}' if timeout else error}".strip())


def _likely_consequence(exit_status: int) -> int:
    """How likely a rank that ended so is a victim of another one's failure, as a key to sort by."""
    if exit_status == NO_NOTE:
        return -1
    return (
        1 + _CONSEQUENT_SIGNALS.index(signal.Signals(-exit_status))
        if -exit_status in _CONSEQUENT_SIGNALS
        else 0
    )


def _end_text(exit_status: int) -> str:
    if exit_status == NO_NOTE:
        return "could not write into the run folder: make room on its disk, or do not remove it during the run"
    if exit_status < 0:
        return f"was ended by {_signal_text(-exit_status)}"
    return f"ended with exit status {exit_status}"


_HINTS = {
    signal.SIGKILL: ", often the kernel's out-of-memory killer",
    signal.SIGBUS: ", often a full /dev/shm",
}


def _signal_text(number: int) -> str:
    name = signal.Signals(number)
    return f"signal {number} ({name.name}{_HINTS.get(name, '')})"


def _log_tail(log: str, first_rank: int | None) -> tuple[str, ...]:
    """Last lines of every rank, each with its rank, the first rank to fail first; torchrun's own if
    there are none.
    """
    by_rank: dict[int, list[str]] = {}
    for line in log.splitlines():
        if prefix := _PREFIX.match(line):
            by_rank.setdefault(int(prefix[1]), []).append(
                f"[rank{prefix[1]}]: {line[prefix.end() :]}"
            )
    if not by_rank:
        return tuple(f"[torchrun]: {line}" for line in log.splitlines()[-TAIL_LINES_FIRST:])
    first, *others = sorted(by_rank, key=lambda rank: (rank != first_rank, rank))
    return (
        *by_rank[first][-TAIL_LINES_FIRST:],
        *(line for rank in others for line in by_rank[rank][-TAIL_LINES_OTHER:]),
    )
