"""What NCCL chose, next to the formulas and to what was measured: one row per collective, size, algorithm and protocol."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpscope.analysis.costs.formulas import algorithm_us, ring_hops, ring_us
from dpscope.analysis.costs.sources import CostSources
from dpscope.profiling.machine.nccl_debug_log import read_nccl_logs
from dpscope.profiling.records.calibration import Choice, Communicator, NcclLog
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.errors import DpscopeError

MeasuredTimes = Mapping[tuple[str, int], float]
"""Median transfer in microseconds by kind and size in bytes, the larger of a rank's buffers."""


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
        """Algorithm and protocol."""
        return f"{self.algorithm}, {self.protocol}"


@dataclass(frozen=True)
class JobChoices:
    """The choices of one job, with the link or calibration that its formulas use."""

    log: NcclLog
    sources: CostSources
    rows: tuple[ChoiceRow, ...]

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
        return self.communicator.ranks

    @property
    def nodes(self) -> int:
        """Hosts that it spans."""
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
        row = by_size[below]
        ring, formula = _formulas_us(row, kind, size_bytes, self.communicator, self.sources)
        return replace(row, size_bytes=round(size_bytes), ring_us=ring, formula_us=formula)


def log_files(paths: Sequence[Path]) -> list[Path]:
    """The files among the paths, and those in folders among them; raises DpscopeError for an empty folder."""
    files: list[Path] = []
    for path in paths:
        inside = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
        if not inside:
            raise DpscopeError(f"--nccl-log {path}: the folder is empty; give the files that NCCL_DEBUG_FILE wrote")
        files += inside
    return files


def read_logs(paths: Sequence[Path]) -> NcclLog:
    """The logs of one job, files and folders of them."""
    return read_nccl_logs(log_files(paths))


def job_log(paths: Sequence[Path], ranks: Sequence[int]) -> NcclLog:
    """The log of a job with one of these numbers of ranks; raises DpscopeError for a log of another job."""
    log = read_logs(paths)
    expected = " or ".join(map(str, sorted(ranks)))
    if not log.communicators:
        raise DpscopeError(
            f"--nccl-log {paths[0]}: no communicator is in the log, so its job is unknown; add INIT to NCCL_DEBUG_SUBSYS"
        )
    if log.communicators[0].ranks not in ranks:
        largest = counted(log.communicators[0].ranks, "rank")
        advice = (
            f"give the log of the job with {expected} ranks" if ranks else "the job has no collectives of several ranks"
        )
        raise DpscopeError(
            f"--nccl-log {paths[0]}: a log of another job, whose largest communicator has {largest}; {advice}"
        )
    return log


def job_choices(log: NcclLog, sources: CostSources, measured: MeasuredTimes) -> JobChoices:
    """The rows of a log, with the link or calibration of `sources`."""
    world = log.communicators[0]
    return JobChoices(log, sources, tuple(_row(one, world, sources, measured) for one in log.choices))


def _row(choice: Choice, world: Communicator, sources: CostSources, measured: MeasuredTimes) -> ChoiceRow:
    kind, size = _kind(choice, measured), choice.size_bytes
    ring = formula = nccl = None
    if kind is not None:
        nccl = world.estimate_us(kind, size, choice.algorithm, choice.protocol)
        ring, formula = _formulas_us(choice, kind, size, world, sources)
    return ChoiceRow(
        kind=kind,
        size_bytes=size,
        algorithm=choice.algorithm,
        protocol=choice.protocol,
        channels=choice.channels,
        calls=choice.calls,
        nccl_us=nccl if choice.predicted_us is None else choice.predicted_us,
        ring_us=ring,
        formula_us=formula,
        measured_us=None if kind is None else measured.get((kind, size)),
    )


def _formulas_us(
    choice: Choice | ChoiceRow, kind: str, size_bytes: float, world: Communicator, sources: CostSources
) -> tuple[float | None, float | None]:
    """The ring formula and that of the algorithm that was chosen; None without a link or calibration, or without a formula."""
    if (rate := sources.ring_rate(world.ranks, kind)) is None:
        return None, None
    hop_us = hop_latency_us(world, kind, choice.protocol) or 0.0
    of_choice = algorithm_us(choice.algorithm, kind, size_bytes, world.ranks, rate.gb_per_s, hop_us, sources.nodes)
    return ring_us(kind, size_bytes, world.ranks, rate.gb_per_s, hop_us), of_choice


def _kind(choice: Choice, measured: MeasuredTimes) -> str | None:
    """The kind in the log; else that of the only measured collective of this size."""
    if choice.kind is not None:
        return choice.kind
    kinds = {kind for kind, size in measured if size == choice.size_bytes}
    return next(iter(kinds)) if len(kinds) == 1 else None


def hop_latency_us(world: Communicator, kind: str, protocol: str) -> float | None:
    """NCCL's latency of a ring with this protocol, divided by its hops; None without a cost table."""
    entry = world.entry(kind, "ring", protocol)
    return entry.latency_us / ring_hops(kind, world.ranks) if entry is not None and world.ranks > 1 else None
