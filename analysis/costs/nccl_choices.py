"""What NCCL chose: one row per collective, size, algorithm and protocol."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpscope.profiling.machine.nccl_debug_log import read_nccl_logs
from dpscope.profiling.records.calibration import Choice, NcclLog
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.errors import DpscopeError


@dataclass(frozen=True)
class JobChoices:
    """The choices of one job."""

    log: NcclLog
    ranks: int
    nodes: int

    @property
    def rows(self) -> tuple[Choice, ...]:
        return self.log.choices

    @property
    def bytes_in_all(self) -> int:
        """Bytes of all calls in the log."""
        return sum(row.calls * row.size_bytes for row in self.rows)

    @property
    def ring_bytes(self) -> int:
        """Bytes of the calls that ran on a ring, which the ring formula describes."""
        return sum(row.calls * row.size_bytes for row in self.rows if row.algorithm == "ring")

    def at(self, kind: str, size_bytes: float) -> Choice | None:
        """The choice at a size; between two sizes of which NCCL treats both alike, theirs.

        Versions of NCCL that do not print the kind have a choice for all of them.
        """
        alike = [row for row in self.rows if row.kind in (kind, None)]
        below = max((row.size_bytes for row in alike if row.size_bytes <= size_bytes), default=None)
        above = min((row.size_bytes for row in alike if row.size_bytes >= size_bytes), default=None)
        if below is None or above is None:
            return None
        near = [row for row in alike if row.size_bytes in (below, above)]
        return near[0] if len({row.words for row in near}) == 1 else None


def read_logs(paths: Sequence[Path]) -> NcclLog:
    """The logs of one job, files and folders of them; raises DpscopeError for an empty folder."""
    files: list[Path] = []
    for path in paths:
        inside = (
            sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
        )
        if not inside:
            raise DpscopeError(
                f"--nccl-log {path}: the folder is empty; give the files that NCCL_DEBUG_FILE wrote"
            )
        files += inside
    return read_nccl_logs(files)


def job_log(paths: Sequence[Path], ranks: Sequence[int]) -> tuple[NcclLog, int]:
    """The log of a job, and its ranks, one of these numbers; raises DpscopeError for a log of
    another job.
    """
    log = read_logs(paths)
    if log.ranks is None:
        raise DpscopeError(
            f"--nccl-log {paths[0]}: no communicator is in the log, so its job is unknown; add INIT to NCCL_DEBUG_SUBSYS"
        )
    if log.ranks not in ranks:
        expected = " or ".join(map(str, sorted(ranks)))
        advice = (
            f"give the log of the job with {expected} ranks"
            if ranks
            else "the job has no collectives of several ranks"
        )
        raise DpscopeError(
            f"--nccl-log {paths[0]}: a log of another job, whose largest communicator has "
            f"{counted(log.ranks, 'rank')}; {advice}"
        )
    return log, log.ranks
