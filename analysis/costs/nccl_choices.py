"""What NCCL chose, next to what was measured: one row per collective, size, algorithm and protocol."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpscope.profiling.machine.nccl_debug_log import read_nccl_logs
from dpscope.profiling.records.calibration import NcclLog
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.errors import DpscopeError

MeasuredTimes = Mapping[tuple[str, int], float]
"""Transfer in microseconds by kind and size in bytes, the larger of a rank's buffers."""


@dataclass(frozen=True)
class ChoiceRow:
    """Calls of one size with NCCL's choice and their measured time; None is unknown."""

    kind: str | None
    size_bytes: int
    algorithm: str
    protocol: str
    calls: int
    measured_us: float | None

    @property
    def choice(self) -> str:
        return f"{self.algorithm}, {self.protocol}"


@dataclass(frozen=True)
class JobChoices:
    """The choices of one job."""

    log: NcclLog
    ranks: int
    nodes: int
    rows: tuple[ChoiceRow, ...]

    @property
    def bytes_in_all(self) -> int:
        """Bytes of all calls in the log."""
        return sum(row.calls * row.size_bytes for row in self.rows)

    @property
    def ring_bytes(self) -> int:
        """Bytes of the calls that ran on a ring, which the ring formula describes."""
        return sum(row.calls * row.size_bytes for row in self.rows if row.algorithm == "ring")

    def at(self, kind: str, size_bytes: float) -> ChoiceRow | None:
        """The choice at a size; between two sizes of which NCCL treats both alike, theirs."""
        by_size = {row.size_bytes: row for row in self.rows if row.kind == kind}
        below = max((size for size in by_size if size <= size_bytes), default=None)
        above = min((size for size in by_size if size >= size_bytes), default=None)
        if below is None or above is None or by_size[below].choice != by_size[above].choice:
            return None
        return replace(by_size[below], size_bytes=round(size_bytes))


def read_logs(paths: Sequence[Path]) -> NcclLog:
    """The logs of one job, files and folders of them; raises DpscopeError for an empty folder."""
    files: list[Path] = []
    for path in paths:
        inside = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
        if not inside:
            raise DpscopeError(f"--nccl-log {path}: the folder is empty; give the files that NCCL_DEBUG_FILE wrote")
        files += inside
    return read_nccl_logs(files)


def job_log(paths: Sequence[Path], ranks: Sequence[int]) -> tuple[NcclLog, int]:
    """The log of a job, and its ranks, one of these numbers; raises DpscopeError for a log of another job."""
    log = read_logs(paths)
    if log.ranks is None:
        raise DpscopeError(
            f"--nccl-log {paths[0]}: no communicator is in the log, so its job is unknown; add INIT to NCCL_DEBUG_SUBSYS"
        )
    if log.ranks not in ranks:
        expected = " or ".join(map(str, sorted(ranks)))
        advice = (
            f"give the log of the job with {expected} ranks" if ranks else "the job has no collectives of several ranks"
        )
        raise DpscopeError(
            f"--nccl-log {paths[0]}: a log of another job, whose largest communicator has "
            f"{counted(log.ranks, 'rank')}; {advice}"
        )
    return log, log.ranks


def job_choices(log: NcclLog, ranks: int, nodes: int, measured: MeasuredTimes) -> JobChoices:
    """The rows of a log. A choice without a kind is of the only measured collective of its size, if there is one."""
    rows = []
    for one in log.choices:
        kind = one.kind
        kinds = {kind for kind, measured_size in measured if measured_size == one.size_bytes}
        if kind is None and len(kinds) == 1:
            (kind,) = kinds
        measured_us = None if kind is None else measured.get((kind, one.size_bytes))
        rows.append(ChoiceRow(kind, one.size_bytes, one.algorithm, one.protocol, one.calls, measured_us))
    return JobChoices(log, ranks, nodes, tuple(rows))
