"""What NCCL chose, next to the formulas and to what was measured: one row per collective, size, algorithm and protocol."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpscope.analysis.costs.formulas import algorithm_us, ring_hops, ring_us
from dpscope.analysis.costs.sources import CostSources
from dpscope.profiling.machine.nccl_debug_log import read_nccl_logs
from dpscope.profiling.records.calibration import Communicator, NcclLog
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.errors import DpscopeError

MeasuredTimes = Mapping[tuple[str, int], float]
"""Transfer in microseconds by kind and size in bytes, the larger of a rank's buffers."""


@dataclass(frozen=True)
class ChoiceRow:
    """Calls of one size with NCCL's choice, their predicted and their measured time; None is unknown."""

    kind: str | None
    size_bytes: int
    algorithm: str
    protocol: str
    channels: int | None
    calls: int
    nccl_us: float | None  # NCCL's own prediction
    ring_us: float | None
    formula_us: float | None  # of the algorithm that ran
    measured_us: float | None

    @property
    def choice(self) -> str:
        return f"{self.algorithm}, {self.protocol}"


@dataclass(frozen=True)
class JobChoices:
    """The choices of one job, with the link or calibration that its formulas use."""

    log: NcclLog
    sources: CostSources
    rows: tuple[ChoiceRow, ...]

    @property
    def ranks(self) -> int:
        return self.communicator.ranks

    @property
    def nodes(self) -> int:
        return self.sources.nodes

    @property
    def communicator(self) -> Communicator:
        """The communicator of all ranks."""
        return self.log.communicators[0]

    @property
    def bytes_in_all(self) -> int:
        """Bytes of all calls in the log."""
        return sum(row.calls * row.size_bytes for row in self.rows)

    @property
    def ring_bytes(self) -> int:
        """Bytes of the calls that ran on a ring, which the ring formula describes."""
        return sum(row.calls * row.size_bytes for row in self.rows if row.algorithm == "ring")

    def at(self, kind: str, size_bytes: float) -> ChoiceRow | None:
        """The choice at a size with the formulas of this size; between two sizes of which NCCL treats both alike, theirs."""
        by_size = {row.size_bytes: row for row in self.rows if row.kind == kind}
        below = max((size for size in by_size if size <= size_bytes), default=None)
        above = min((size for size in by_size if size >= size_bytes), default=None)
        if below is None or above is None or by_size[below].choice != by_size[above].choice:
            return None
        row = replace(by_size[below], size_bytes=round(size_bytes))
        return _with_formulas(row, size_bytes, self.communicator, self.sources)


def read_logs(paths: Sequence[Path]) -> NcclLog:
    """The logs of one job, files and folders of them; raises DpscopeError for an empty folder."""
    files: list[Path] = []
    for path in paths:
        inside = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
        if not inside:
            raise DpscopeError(f"--nccl-log {path}: the folder is empty; give the files that NCCL_DEBUG_FILE wrote")
        files += inside
    return read_nccl_logs(files)


def job_log(paths: Sequence[Path], ranks: Sequence[int]) -> NcclLog:
    """The log of a job with one of these numbers of ranks; raises DpscopeError for a log of another job."""
    log = read_logs(paths)
    if not log.communicators:
        raise DpscopeError(
            f"--nccl-log {paths[0]}: no communicator is in the log, so its job is unknown; add INIT to NCCL_DEBUG_SUBSYS"
        )
    if log.communicators[0].ranks not in ranks:
        expected = " or ".join(map(str, sorted(ranks)))
        advice = (
            f"give the log of the job with {expected} ranks" if ranks else "the job has no collectives of several ranks"
        )
        raise DpscopeError(
            f"--nccl-log {paths[0]}: a log of another job, whose largest communicator has "
            f"{counted(log.communicators[0].ranks, 'rank')}; {advice}"
        )
    return log


def job_choices(log: NcclLog, sources: CostSources, measured: MeasuredTimes) -> JobChoices:
    """The rows of a log, with the link or calibration of `sources`.

    A choice without a kind is of the only measured collective of its size, if there is one.
    """
    world, rows = log.communicators[0], []
    for one in log.choices:
        kind, size, nccl_us = one.kind, one.size_bytes, one.predicted_us
        kinds = {kind for kind, measured_size in measured if measured_size == size}
        if kind is None and len(kinds) == 1:
            (kind,) = kinds
        if kind is not None and nccl_us is None:
            nccl_us = world.estimate_us(kind, size, one.algorithm, one.protocol)
        measured_us = None if kind is None else measured.get((kind, size))
        own = (kind, size, one.algorithm, one.protocol, one.channels, one.calls)
        rows.append(_with_formulas(ChoiceRow(*own, nccl_us, None, None, measured_us), size, world, sources))
    return JobChoices(log, sources, tuple(rows))


def _with_formulas(row: ChoiceRow, size_bytes: float, world: Communicator, sources: CostSources) -> ChoiceRow:
    """With the ring formula and that of the algorithm that was chosen; None without a link or calibration, or without a formula.

    A hop takes NCCL's latency of a ring with this protocol, divided by its hops; 0 without a cost table.
    """
    kind, ranks = row.kind, world.ranks
    if kind is None or (rate := sources.ring_rate(ranks, kind)) is None:
        return row
    entry = world.entry(kind, "ring", row.protocol)
    hop_us = entry.latency_us / ring_hops(kind, ranks) if entry is not None and ranks > 1 else 0.0
    return replace(
        row,
        ring_us=ring_us(kind, size_bytes, ranks, rate.gb_per_s, hop_us),
        formula_us=algorithm_us(row.algorithm, kind, size_bytes, ranks, rate.gb_per_s, hop_us, sources.nodes),
    )
