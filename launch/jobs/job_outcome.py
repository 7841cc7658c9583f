"""How a torchrun job ended, from its result, failure notes and log. Imports no torch."""

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from dpscope.launch.jobs.job_files import FailureNote, looks_like_out_of_memory, read_failures
from dpscope.profiling.records.run import CellStatus
from dpscope.profiling.store.folders import JobFolder

TAIL_LINES_FIRST = 25  # of the rank that failed first
TAIL_LINES_OTHER = 5

_PREFIX = re.compile(r"^\[rank(\d+)\]:")
_EXIT = re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s*exitcode\s*:\s*(-?\d+)")
# What NCCL's watchdog logs, of both of torch's engines, before it aborts its process.
_WATCHDOG = re.compile(
    r"^\[rank(\d+)\]:.*?(Watchdog caught collective operation timeout: .+|timeout - collective operation timed out.*)"
)
# torchrun ends the other ranks with SIGTERM, NCCL's watchdog aborts: consequences of a failure elsewhere.
_CONSEQUENT_SIGNALS = {signal.SIGTERM, signal.SIGABRT, signal.SIGINT}


@dataclass(frozen=True)
class JobOutcome:
    """Status of a job, why in one line, and the tail of its log, the first rank to fail first."""

    status: CellStatus
    message: str = ""
    log_tail: tuple[str, ...] = ()
    signal: int | None = None  # that killed the process which failed first


def memory_kills() -> int | None:
    """Number of processes that the kernel has killed on this host for lack of memory; None where it is not available."""
    try:
        counted = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(counted[1]) if counted else None


def judged_by_kernel(outcome: JobOutcome, kills_before: int | None) -> JobOutcome:
    """The outcome, changed to out of memory if a process was killed and the kernel's count has grown since `kills_before`.

    SIGKILL alone is not enough: a person, a batch system or another program may have sent it.
    """
    kills = memory_kills()
    killed = outcome.status == "crashed" and outcome.signal == signal.SIGKILL
    if not killed or kills is None or kills_before is None or kills <= kills_before:
        return outcome
    return replace(outcome, status="out_of_memory")


def job_outcome(
    folder: JobFolder,
    exit_status: int | None,
    timeout_s: float,
    last_pass: str | None,
    rank_location: Callable[[int | None], str] = lambda rank: "",
) -> JobOutcome:
    """The outcome of a job; `exit_status` is torchrun's, None if the job passed its time limit.

    `rank_location` returns on which of several nodes a rank ran, such as `` on node 1 (gpu07)``.
    """
    if folder.status() == "ok":
        return JobOutcome(status="ok")
    log = _log(folder)
    if exit_status is None:
        message = f"passed its time limit of {timeout_s:g} s ({_where(last_pass)}); raise --timeout if it was only slow"
        return JobOutcome(status="timed_out", message=message, log_tail=_log_tail(log, None))
    first = _first_failure(
        read_failures(folder.path),
        {int(rank): int(status) for rank, status in _EXIT.findall(log)},
        exit_status,
        _timed_out_collective(log),
    )
    return JobOutcome(
        status="out_of_memory"
        if first.status == "crashed" and looks_like_out_of_memory(first.message)
        else first.status,
        message=f"{first.message}{rank_location(first.rank)} ({_where(last_pass)})",
        log_tail=_log_tail(log, first.rank),
        signal=first.signal,
    )


def interrupted(folder: JobFolder, last_pass: str | None) -> JobOutcome:
    """The outcome of a job that was stopped on request."""
    message = f"interrupted ({_where(last_pass)}); the same command resumes the run"
    return JobOutcome(status="interrupted", message=message, log_tail=_log_tail(_log(folder), None))


def node_lost(folder: JobFolder, lost: str, last_pass: str | None) -> JobOutcome:
    """The outcome of a job on several nodes that lost a node; `lost` names it and the evidence."""
    if folder.status() == "ok":
        return JobOutcome(status="ok")
    message = f"{lost} ({_where(last_pass)}); the same command on all nodes resumes the run"
    return JobOutcome(status="crashed", message=message, log_tail=_log_tail(_log(folder), None))


def _log(folder: JobFolder) -> str:
    return folder.log_path.read_text(errors="replace") if folder.log_path.exists() else ""


def _where(last_pass: str | None) -> str:
    return f"in its {last_pass} pass" if last_pass else "before its first pass"


class _Failure(NamedTuple):
    """One process's failure; rank None is torchrun's own."""

    rank: int | None
    message: str
    status: CellStatus = "crashed"
    signal: int | None = None


def _timed_out_collective(log: str) -> _Failure | None:
    """The first collective that NCCL's watchdog aborted, with its message: a signal ends the rank, which writes no note."""
    found = next((match for line in log.splitlines() if (match := _WATCHDOG.search(line))), None)
    return None if found is None else _Failure(int(found[1]), f"rank {found[1]}: NCCL: {found[2].strip()}")


def _first_failure(
    notes: Sequence[FailureNote], exits: dict[int, int], torchrun_status: int, timed_out: _Failure | None
) -> _Failure:
    """The failure that caused the others."""
    killed = [rank for rank, status in exits.items() if status < 0 and -status not in _CONSEQUENT_SIGNALS]
    causes = [note for note in notes if note.kind == "out_of_memory"]
    if not causes and killed:
        rank, number = killed[0], -exits[killed[0]]
        return _Failure(rank, f"rank {rank} was killed by {_signal_text(number)}", signal=number)
    causes = causes or [note for note in notes if not note.peer_lost]
    if not causes and timed_out is not None:
        return timed_out
    causes = causes or list(notes)
    if causes:
        return _Failure(causes[0].rank, f"rank {causes[0].rank}: {causes[0].message}", causes[0].kind)
    if exits:
        rank, status = next(iter(exits.items()))
        ended = f"was ended by {_signal_text(-status)}" if status < 0 else f"ended with exit status {status}"
        return _Failure(rank, f"rank {rank} {ended}")
    if torchrun_status < 0:
        killer = -torchrun_status
        return _Failure(None, f"torchrun was killed by {_signal_text(killer)}", signal=killer)
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
