"""What NCCL chose, next to the formulas and to what was measured: one row per collective, size, algorithm and protocol."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpscope.analysis.costs.formulas import algorithm_us, ring_hops, ring_us
from dpscope.analysis.costs.sources import CostSources
from dpscope.profiling.machine.nccl_debug_log import read_nccl_logs
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.nccl_log import Choice, Communicator, NcclLog
from dpscope.profiling.store.errors import DpscopeError

MeasuredTimes = Mapping[tuple[str, int], float]
"""Median transfer in microseconds by kind and size in bytes, the larger of a rank's buffers."""


@dataclass(frozen=True)
class ChoiceRow:
    """Calls of one size with NCCL's choice, and what they should and do take; None is unknown."""

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
    """The choices of one job of `ranks` ranks on so many hosts."""

    log: NcclLog
    ranks: int
    nodes: int
    rows: tuple[ChoiceRow, ...]

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
        """Those of calls that ran on a ring, which the ring formula describes."""
        return sum(row.calls * row.size_bytes for row in self.rows if row.algorithm == "ring")


def log_files(paths: Sequence[Path]) -> list[Path]:
    """The files that are named, and those in folders that are; raises DpscopeError for an empty folder."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
        if not inside:
            raise DpscopeError(f"--nccl-log {path}: the folder is empty; give the files that NCCL_DEBUG_FILE wrote")
        found += inside
    return found


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
    return JobChoices(
        log, world.ranks, sources.nodes, tuple(_row(one, world, sources, measured) for one in log.choices)
    )


def _row(choice: Choice, world: Communicator, sources: CostSources, measured: MeasuredTimes) -> ChoiceRow:
    kind, size, ranks = _kind(choice, measured), choice.size_bytes, world.ranks
    ring = formula = nccl = None
    if kind is not None:
        nccl = world.estimate_us(kind, size, choice.algorithm, choice.protocol)
        if (rate := sources.ring_rate(ranks, kind)) is not None:
            hop_us = hop_latency_us(world, kind, choice.protocol) or 0.0
            ring = ring_us(kind, size, ranks, rate.gb_per_s, hop_us)
            formula = algorithm_us(choice.algorithm, kind, size, ranks, rate.gb_per_s, hop_us, sources.nodes)
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


def _kind(choice: Choice, measured: MeasuredTimes) -> str | None:
    """As the log says; else that of the only measured collective of this size."""
    if choice.kind is not None:
        return choice.kind
    kinds = {kind for kind, size in measured if size == choice.size_bytes}
    return next(iter(kinds)) if len(kinds) == 1 else None


def hop_latency_us(world: Communicator, kind: str, protocol: str) -> float | None:
    """NCCL's latency of a ring with this protocol, divided by its hops; None without a cost table."""
    entry = world.entry(kind, "ring", protocol)
    return entry.latency_us / ring_hops(kind, world.ranks) if entry is not None and world.ranks > 1 else None
