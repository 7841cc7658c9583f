"""How a torchrun job ended, from its result, failure notes and log. Imports no torch."""

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from dpscope.launch.jobs.job_files import FailureNote, looks_like_out_of_memory, read_failures, read_progress
from dpscope.profiling.records.run import CellStatus
from dpscope.profiling.store.folders import JobFolder

TAIL_LINES_FIRST = 25  # of the rank that failed first
TAIL_LINES_OTHER = 5

_PREFIX = re.compile(r"^\[rank(\d+)\]:")
_EXIT = re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s*exitcode\s*:\s*(-?\d+)")
# What NCCL's watchdog logs, of both of torch's engines, before it aborts its process.
_WATCHDOG = re.compile(
    r"^\[rank(\d+)\]:.*?(Watchdog caught collective operation timeout: .+|timeout - collective operation timed out.*)",
    re.MULTILINE,
)
# torchrun ends the other ranks with SIGTERM, NCCL's watchdog aborts: consequences of a failure elsewhere.
_CONSEQUENT_SIGNALS = {signal.SIGTERM, signal.SIGABRT, signal.SIGINT}


JobWait = Literal["exited", "timed_out", "stopped", "lost"]
"""How waiting for a job ended; lost: one of its nodes was lost."""


@dataclass(frozen=True)
class JobOutcome:
    """Status of a job, why in one line, and the tail of its log, the first rank to fail first."""

    status: CellStatus
    message: str = ""
    log_tail: tuple[str, ...] = ()


def memory_kills() -> int | None:
    """Number of processes that the kernel has killed on this host for lack of memory; None where it is not available."""
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
    """The outcome of a job; `exit_status` is that of a torchrun that exited.

    `lost` names the node that was lost and the evidence. `rank_location` returns on which of several nodes a rank ran, such as
    `` on node 1 (gpu07)``. A killed rank ran out of memory if `memory_kills` has grown beyond `kills_before`, its number at the
    job's start: a person, a batch system or another program may send SIGKILL as well.
    """
    log = folder.log_path.read_text(errors="replace") if folder.log_path.exists() else ""
    last_pass = read_progress(folder.path)
    where = f"in its {last_pass} pass" if last_pass else "before its first pass"
    if how == "stopped":
        message = f"interrupted ({where}); the same command resumes the run"
        return JobOutcome("interrupted", message, _log_tail(log, None))
    if folder.status() == "ok":
        return JobOutcome("ok")
    if how == "lost":
        message = f"{lost} ({where}); the same command on all nodes resumes the run"
        return JobOutcome("crashed", message, _log_tail(log, None))
    if exit_status is None:
        message = f"passed its time limit of {timeout_s:g} s ({where}); raise --timeout if it was only slow"
        return JobOutcome("timed_out", message, _log_tail(log, None))
    first = _first_failure(read_failures(folder.path), log, exit_status)
    lacked = looks_like_out_of_memory(first.message)
    if first.signal == signal.SIGKILL and kills_before is not None:
        lacked = lacked or (memory_kills() or 0) > kills_before
    status = "out_of_memory" if first.status == "crashed" and lacked else first.status
    return JobOutcome(status, f"{first.message}{rank_location(first.rank)} ({where})", _log_tail(log, first.rank))


class _Failure(NamedTuple):
    """One process's failure; rank None is torchrun's own."""

    rank: int | None
    message: str
    status: CellStatus = "crashed"
    signal: int | None = None


def _first_failure(notes: Sequence[FailureNote], log: str, torchrun_status: int) -> _Failure:
    """The failure that caused the others."""
    exits = {int(rank): int(status) for rank, status in _EXIT.findall(log)}
    killed = [rank for rank, status in exits.items() if status < 0 and -status not in _CONSEQUENT_SIGNALS]
    causes = [note for note in notes if note.kind == "out_of_memory"]
    if not causes and killed:
        rank, number = killed[0], -exits[killed[0]]
        return _Failure(rank, f"rank {rank} was killed by {_signal_text(number)}", signal=number)
    causes = causes or [note for note in notes if not note.peer_lost]
    if not causes and (aborted := _WATCHDOG.search(log)):  # a signal ends the rank, which writes no note
        return _Failure(int(aborted[1]), f"rank {aborted[1]}: NCCL: {aborted[2].strip()}")
    for note in causes or notes:
        return _Failure(note.rank, f"rank {note.rank}: {note.message}", note.kind)
    for rank, status in exits.items():
        ended = f"was ended by {_signal_text(-status)}" if status < 0 else f"ended with exit status {status}"
        return _Failure(rank, f"rank {rank} {ended}")
    if torchrun_status < 0:
        return _Failure(None, f"torchrun was killed by {_signal_text(-torchrun_status)}", signal=-torchrun_status)
    return _Failure(None, f"torchrun ended with exit status {torchrun_status} and no result")


def _signal_text(number: int) -> str:
    hint = ", often the kernel's out-of-memory killer" if number == signal.SIGKILL else ""
    hint = ", often a full /dev/shm" if number == signal.SIGBUS else hint
    return f"signal {number} ({signal.Signals(number).name}{hint})"


def _log_tail(log: str, first_rank: int | None) -> tuple[str, ...]:
    """Last lines of every rank, each with its rank, the first rank to fail first; torchrun's own if there are none."""
    by_rank: dict[int, list[str]] = {}
    others = []
    for line in log.splitlines():
        prefix = _PREFIX.match(line)
        if prefix is None:
            others.append(f"[torchrun]: {line}")
        else:
            by_rank.setdefault(int(prefix[1]), []).append(f"[rank{prefix[1]}]: {line[prefix.end() :]}")
    if not by_rank:
        return tuple(others[-TAIL_LINES_FIRST:])
    order = sorted(by_rank, key=lambda rank: (rank != first_rank, rank))
    lengths = [TAIL_LINES_FIRST] + [TAIL_LINES_OTHER] * (len(order) - 1)
    return tuple(line for rank, length in zip(order, lengths, strict=True) for line in by_rank[rank][-length:])
