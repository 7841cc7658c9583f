"""NCCL's choices as tables, JSON and findings, from logs that the user passes, else from the
calibration.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dpscope.analysis.costs.nccl_choices import JobChoices, job_log
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.text_table import Field, TextTable, table_of
from dpscope.analysis.text.units import NA, show_bytes
from dpscope.profiling.records.calibration import Calibration, Choice
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run_codes import NcclCode


@dataclass(frozen=True)
class NcclChapter:
    """NCCL's choices in one or several jobs, and the findings about them."""

    jobs: tuple[JobChoices, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def tables(self) -> list[TextTable]:
        """The tables with rows; none without a log."""
        tables = (choices_table(self.jobs), job_table(self.jobs))
        return [table for table in tables if table.rows]

    def choice(self, ranks: int, nodes: int, kind: str, size_bytes: float) -> Choice | None:
        """`JobChoices.at` of the job with this number of ranks and hosts."""
        found = (
            job.at(kind, size_bytes)
            for job in self.jobs
            if (job.ranks, job.nodes) == (ranks, nodes)
        )
        return next((row for row in found if row is not None), None)

    def content(self) -> list[dict[str, object]]:
        """One dictionary per job, for JSON; unknown values are None."""
        return [
            {
                "ranks": job.ranks,
                "library": job.log.library,
                "transports": job.log.links,
                "infiniband": job.log.infiniband,
                "gpu_direct": job.log.gpu_direct,
                "ring_bytes": job.ring_bytes,
                "bytes": job.bytes_in_all,
                "choices": msgspec.to_builtins(job.rows),
            }
            for job in self.jobs
        ]


def run_chapter(run: RunData, calibration: Calibration | None, logs: Sequence[Path]) -> NcclChapter:
    """NCCL's choices in a run or in traces, from logs of one of its jobs, else from its
    calibration.

    Raises DpscopeError for a log of another job.
    """
    if not logs:
        return calibration_chapter(calibration) if calibration is not None else NcclChapter()
    cells = [data for data in run.measured if data.devices > 1]
    log, ranks = job_log(logs, sorted({data.devices for data in cells}))
    of_job = [data for data in cells if data.devices == ranks]
    nodes = max(len(log.hosts), *(data.nodes for data in of_job))
    return _chapter([JobChoices(log, ranks, nodes)])


def calibration_chapter(calibration: Calibration) -> NcclChapter:
    """NCCL's choices recorded by a calibration."""
    return _chapter(
        [JobChoices(choices.log, choices.devices, choices.nodes) for choices in calibration.nccl]
    )


def _chapter(jobs: Sequence[JobChoices]) -> NcclChapter:
    findings = (finding for job in jobs for finding in nccl_findings(job))
    return NcclChapter(tuple(jobs), tuple(dict.fromkeys(findings)))


_RANKS = Field("ranks", "ranks", meaning="Ranks of the job")
_CHOICES = (
    Field("collective", "kind", meaning="Kind of the collective"),
    _RANKS,
    Field(
        "size",
        "size_bytes",
        meaning="The larger of a rank's input and output buffer",
        text=lambda row: show_bytes(row["size_bytes"]),
    ),
    Field("algorithm", "algorithm", meaning="The algorithm that NCCL chose"),
    Field("protocol", "protocol", meaning="The protocol that NCCL chose: LL, LL128 or Simple"),
    Field(
        "calls",
        "calls",
        meaning="Calls in the log, which rank 0 of a communicator writes",
        text=lambda row: f"{row['calls']:,}",
    ),
)


def choices_table(jobs: Sequence[JobChoices]) -> TextTable:
    """A row per collective, size and choice; without rows if the logs contain no choice."""
    rows = [{"ranks": job.ranks, **msgspec.structs.asdict(row)} for job in jobs for row in job.rows]
    return table_of("What NCCL chose", _CHOICES, rows, (*map(ring_sentence, jobs), *_notes(jobs)))


def ring_sentence(job: JobChoices) -> str:
    """The number of bytes that the ring formula describes."""
    return f"on {job.ranks} ranks {ring_share(job.ring_bytes, job.bytes_in_all)}: the calls that ran on a ring"


def ring_share(ring_bytes: int, all_bytes: int) -> str:
    """Such as ``the ring formula describes 3 MB of 4 MB (75%)``."""
    share = f" ({ring_bytes / all_bytes:.0%})" if all_bytes else ""
    return f"the ring formula describes {show_bytes(ring_bytes)} of {show_bytes(all_bytes)}{share}"


def _notes(jobs: Sequence[JobChoices]) -> Iterator[str]:
    rows = [row for job in jobs for row in job.rows]
    if any(row.kind is None for row in rows):
        yield "collective NA: this version of NCCL does not print it"


_GPU_DIRECT = {None: NA, True: "enabled", False: "disabled"}
_JOB = (
    _RANKS,
    Field("library", "log.library", meaning="NCCL or RCCL, with its version"),
    Field(
        "connections by transport",
        lambda job: (
            ", ".join(f"{name} {pairs}" for name, pairs in sorted(job.log.links.items())) or NA
        ),
        meaning="Pairs of ranks by transport",
    ),
    Field(
        "GPUDirect",
        lambda job: _GPU_DIRECT[job.log.gpu_direct],
        meaning="Whether the network reads and writes GPU memory directly",
    ),
)


def job_table(jobs: Sequence[JobChoices]) -> TextTable:
    """A row per job: NCCL's version and the transports of its connections."""
    note = "connections: pairs of ranks in NCCL's log, each direction counted once"
    return table_of("NCCL: version and transports", _JOB, jobs, [note])


def nccl_findings(job: JobChoices) -> Iterator[Finding]:
    """All findings from one job's log."""
    yield from _transports(job)
    if lines := job.log.unread_lines:
        verb = "is" if lines == 1 else "are"
        yield NcclCode.NCCL_LOG_INCOMPLETE.finding(
            f"{counted(lines, 'line')} of choices {verb} cut off, of an unknown form, or of a communicator that the line "
            "does not name"
        )


def _count(job: JobChoices, *transports: str) -> int:
    return sum(pairs for name, pairs in job.log.links.items() if name.startswith(transports))


def _transports(job: JobChoices) -> Iterator[Finding]:
    """Connections that are slower than the hardware allows."""
    log = job.log
    if log.infiniband and (sockets := _count(job, "NET/Socket")):
        yield NcclCode.SOCKETS_WITH_INFINIBAND.finding(
            f"{counted(sockets, 'connection')} of ranks {'uses' if sockets == 1 else 'use'} TCP sockets (NET/Socket), "
            "although NCCL found InfiniBand or RoCE devices"
        )
    every = _count(job, "NET/IB")
    through_host = sum(
        pairs
        for name, pairs in log.links.items()
        if name.startswith("NET/IB") and "GDRDMA" not in name
    )
    if through_host:
        disabled = (
            "; the log reports GPU Direct RDMA as disabled" if log.gpu_direct is False else ""
        )
        yield NcclCode.NO_GPU_DIRECT_RDMA.finding(
            f"{through_host} of {counted(every, 'connection')} over InfiniBand or RoCE "
            f"{'has' if through_host == 1 else 'have'} no GPUDirect RDMA{disabled}"
        )
