"""NCCL's choices as tables, JSON and findings, from logs that the user passes, else from the calibration."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import pandas as pd

from dpscope.analysis.costs.nccl_choices import ChoiceRow, JobChoices, MeasuredTimes, job_choices, job_log
from dpscope.analysis.costs.sources import CostSources
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA, choose_unit, show, show_bytes, show_time, text
from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.links import Interconnect
from dpscope.profiling.records.run_codes import NcclCode

_MOST_PAIRS = 16  # per transport, in a table


@dataclass(frozen=True)
class NcclChapter:
    """NCCL's choices in one or several jobs, and the findings about them."""

    jobs: tuple[JobChoices, ...] = ()
    findings: tuple[Finding, ...] = ()

    def tables(self) -> dict[str, TextTable]:
        """The tables by name; none without a log."""
        if not self.jobs:
            return {}
        return {
            "nccl_job": _job_table(self.jobs),
            **({"nccl_peers": peers} if (peers := _peers_table(self.jobs)).rows else {}),
            **({"nccl_choices": table} if (table := choices_table(self.jobs)) else {}),
        }

    def chosen(self, ranks: int, nodes: int) -> dict[tuple[str, int], ChoiceRow]:
        """The choices by kind and size on this number of ranks and hosts."""
        rows = [row for job in self.jobs if (job.ranks, job.nodes) == (ranks, nodes) for row in job.rows]
        return {(row.kind or "", row.size_bytes): row for row in rows}

    def choice(self, ranks: int, nodes: int, kind: str, size_bytes: float) -> ChoiceRow | None:
        """`JobChoices.at` of the job with this number of ranks and hosts."""
        found = (job.at(kind, size_bytes) for job in self.jobs if (job.ranks, job.nodes) == (ranks, nodes))
        return next((row for row in found if row is not None), None)

    def content(self) -> list[dict[str, object]]:
        """One dictionary per job, for JSON; unknown values are None."""
        return [_content(job) for job in self.jobs]


def run_chapter(run: RunData, sources: CostSources, logs: Sequence[Path]) -> NcclChapter:
    """NCCL's choices in a run or in traces, from logs of one of its jobs, else from its calibration.

    Raises DpscopeError for a log of another job.
    """
    cells = [data for data in run.measured if data.cell.devices > 1]
    if logs:
        log = job_log(logs, sorted({data.cell.devices for data in cells}))
        of_job = [data for data in cells if data.cell.devices == log.communicators[0].ranks]
        nodes = max(len(log.hosts), *(data.nodes for data in of_job))
        measured = measured_times(of_job[0].cell.devices, [data.collectives for data in of_job])
        return _chapter([job_choices(log, sources.on_nodes(nodes), measured)], sources.interconnect)
    calibration = sources.calibration
    return calibration_chapter(calibration) if calibration is not None else NcclChapter()


def calibration_chapter(calibration: Calibration) -> NcclChapter:
    """NCCL's choices recorded by a calibration, with the times that it measured."""
    jobs = []
    for one in calibration.nccl:
        sources = CostSources(None, calibration, calibration.interconnect).on_nodes(one.nodes)
        jobs.append(
            job_choices(one.log, sources, calibrated_times(calibration, one.log.communicators[0].ranks, one.nodes))
        )
    return _chapter(jobs, calibration.interconnect)


def _chapter(jobs: Sequence[JobChoices], interconnect: Interconnect | None) -> NcclChapter:
    findings = (finding for job in jobs for finding in nccl_findings(job, interconnect))
    return NcclChapter(tuple(jobs), tuple(dict.fromkeys(findings)))


def measured_times(ranks: int, tables: Sequence[pd.DataFrame]) -> MeasuredTimes:
    """Median transfer of the collectives that include all ranks, by kind and size."""
    known = [table for table in tables if len(table)]
    if not known:
        return {}
    rows = pd.concat(known, ignore_index=True)
    rows = rows[rows["transfer_us"].notna() & rows["bytes"].notna() & rows["group_size"].eq(ranks).fillna(False)]
    medians = rows.groupby(["kind", "bytes"])["transfer_us"].median().reset_index()
    columns = zip(medians["kind"], medians["bytes"], medians["transfer_us"], strict=True)
    return {(str(kind), int(size)): float(median) for kind, size, median in columns}


def calibrated_times(calibration: Calibration, ranks: int, nodes: int) -> MeasuredTimes:
    """Median time by collective and size in a calibration, on this number of ranks and hosts."""
    points = [one for one in calibration.points if one.devices == ranks and (one.nodes or 1) == nodes]
    return {(one.collective, one.size_bytes): float(pd.Series(one.times_us).median()) for one in points}


def choices_table(jobs: Sequence[JobChoices]) -> TextTable | None:
    """A row per collective, size and choice; None if the logs contain no choice."""
    rows = [(job.ranks, row) for job in jobs for row in job.rows]
    if not rows:
        return None
    times = [time for _, row in rows for time in (row.nccl_us, row.ring_us, row.formula_us, row.measured_us)]
    unit = choose_unit("time", times)
    headings = ("collective", "ranks", "size", "algorithm", "protocol", "channels", "calls")
    named = (f"{what} [{unit.label}]" for what in ("NCCL's model", "ring", "formula", "measured"))
    return TextTable(
        "What NCCL chose",
        (*headings, *named),
        tuple(
            (
                text(row.kind),
                str(ranks),
                show_bytes(row.size_bytes),
                row.algorithm,
                row.protocol,
                text(row.channels),
                f"{row.calls:,}",
                *(show(time, unit) for time in (row.nccl_us, row.ring_us, row.formula_us, row.measured_us)),
            )
            for ranks, row in rows
        ),
        (*map(ring_sentence, jobs), *_notes(jobs)),
    )


def ring_sentence(job: JobChoices) -> str:
    """The number of bytes that the ring formula describes."""
    return f"on {job.ranks} ranks {ring_share(job.ring_bytes, job.bytes_in_all)}: the calls that ran on a ring"


def ring_share(ring_bytes: int, all_bytes: int) -> str:
    """Such as ``the ring formula describes 3 MB of 4 MB (75%)``."""
    share = f" ({ring_bytes / all_bytes:.0%})" if all_bytes else ""
    return f"the ring formula describes {show_bytes(ring_bytes)} of {show_bytes(all_bytes)}{share}"


def _notes(jobs: Sequence[JobChoices]) -> Iterator[str]:
    rows = [row for job in jobs for row in job.rows]
    yield "NCCL's model: its prediction for the choice; ring: the ring formula; formula: that of the algorithm that ran"
    if any(row.kind is None for row in rows):
        yield "collective NA: this version of NCCL does not print it, and not exactly one measured collective has this size"
    if any(row.kind is not None and row.ring_us is None for row in rows):
        yield "ring and formula NA: no link or calibration is known (use --link or --calibration), or there is no formula"
    if any(row.ring_us is not None and row.formula_us is None for row in rows):
        yield "formula NA: no formula is known for this algorithm and collective"
    if any(row.ring_us is not None for row in rows):
        with_table = all(job.communicator.cost_table for job in jobs)
        latency = (
            "the ring's latency in NCCL's cost table divided by its hops"
            if with_table
            else "omitted without NCCL's cost table"
        )
        yield f"latency per hop in both formulas: {latency}"
    if any(row.measured_us is None for row in rows):
        yield "measured NA: no collective of this kind and size on all ranks was measured"


_NCCL_JOB_HEADINGS = (
    "ranks", "library", "channels", "NVLS channels", "CollNet channels", "networks", "connections by transport", "GPUDirect",
)  # fmt: skip


def _job_table(jobs: Sequence[JobChoices]) -> TextTable:
    return TextTable(
        "NCCL: version, channels, transports",
        _NCCL_JOB_HEADINGS,
        tuple(
            (
                str(job.ranks),
                text(job.log.library),
                *(
                    text(count)
                    for count in (
                        job.communicator.channels,
                        job.communicator.nvls_channels,
                        job.communicator.collnet_channels,
                    )
                ),
                ", ".join(job.log.networks) or NA,
                ", ".join(f"{name} {pairs}" for name, pairs in sorted(job.log.links.items())) or NA,
                {None: NA, True: "enabled", False: "disabled"}[job.log.gpu_direct],
            )
            for job in jobs
        ),
        ("connections: pairs of ranks in NCCL's log, each direction counted once",),
    )


def _peers_table(jobs: Sequence[JobChoices]) -> TextTable:
    return TextTable(
        "NCCL: which ranks are connected by which transport",
        ("ranks", "transport", "pairs"),
        tuple(
            (str(job.ranks), transport, _pairs(peers))
            for job in jobs
            for transport, peers in sorted(job.log.peers.items())
        ),
        ("a-b: in both directions; a→b: in one",),
    )


def _pairs(peers: Sequence[tuple[int, int]]) -> str:
    """Such as ``0-1, 2→3``; at most _MOST_PAIRS."""
    known = set(peers)
    pairs = [
        f"{first}{'-' if (second, first) in known else '→'}{second}"
        for first, second in peers
        if first < second or (second, first) not in known
    ]
    more = f" and {len(pairs) - _MOST_PAIRS} more" if len(pairs) > _MOST_PAIRS else ""
    return ", ".join(pairs[:_MOST_PAIRS]) + more


def _content(job: JobChoices) -> dict[str, object]:
    log, world = job.log, job.communicator
    return {
        "ranks": job.ranks,
        "library": log.library,
        "channels": world.channels,
        "nvls_channels": world.nvls_channels,
        "collnet_channels": world.collnet_channels,
        "transports": log.links,
        "peers": {transport: [list(pair) for pair in pairs] for transport, pairs in log.peers.items()},
        "networks": list(log.networks),
        "infiniband": log.infiniband,
        "gpu_direct": log.gpu_direct,
        "ring_bytes": job.ring_bytes,
        "bytes": job.bytes_in_all,
        "choices": [asdict(row) for row in job.rows],
    }


_LONGER = 1.05  # time of a size over that of the next larger one, above which it is not noise of the median


def nccl_findings(job: JobChoices, interconnect: Interconnect | None = None) -> tuple[Finding, ...]:
    """All findings from one job's log; `interconnect` is NVML's record of the machine, if available."""
    return (
        *_networks(job),
        *_shared_memory(job, interconnect),
        *_protocol_switches(job),
        *_channels(job, interconnect),
        *_unread(job),
    )


def _count(job: JobChoices, *transports: str) -> int:
    return sum(pairs for name, pairs in job.log.links.items() if name.startswith(transports))


def _networks(job: JobChoices) -> Iterator[Finding]:
    log = job.log
    if log.infiniband and (sockets := _count(job, "NET/Socket")):
        yield NcclCode.SOCKETS_WITH_INFINIBAND.finding(
            f"{counted(sockets, 'connection')} of ranks {'uses' if sockets == 1 else 'use'} TCP sockets (NET/Socket), "
            "although NCCL found InfiniBand or RoCE devices"
        )
    direct = sum(pairs for name, pairs in log.links.items() if name.startswith("NET/IB") and "GDRDMA" in name)
    through_host = _count(job, "NET/IB") - direct
    if through_host:
        disabled = "; the log reports GPU Direct RDMA as disabled" if log.gpu_direct is False else ""
        yield NcclCode.NO_GPU_DIRECT_RDMA.finding(
            f"{through_host} of {counted(through_host + direct, 'connection')} over InfiniBand or RoCE "
            f"{'has' if through_host == 1 else 'have'} no GPUDirect RDMA{disabled}"
        )


def _shared_memory(job: JobChoices, interconnect: Interconnect | None) -> Iterator[Finding]:
    pairs = _count(job, "SHM")
    evidence = job.log.peer_access_off
    if evidence is None and interconnect is not None and any(pair.peer_access for pair in interconnect.pairs):
        evidence = "NVML reports peer access between GPUs"
    if pairs and evidence is not None:
        yield NcclCode.SHARED_MEMORY_WITH_PEER_ACCESS.finding(
            f"{counted(pairs, 'connection')} between GPUs of a host {'uses' if pairs == 1 else 'use'} shared memory (SHM): "
            f"{evidence}"
        )


def _protocol_switches(job: JobChoices) -> Iterator[Finding]:
    """Adjacent sizes of all-reduce with different choices, of which the smaller takes longer."""
    rows = sorted((row for row in job.rows if row.kind == "all_reduce"), key=lambda row: row.size_bytes)
    for smaller, larger in pairwise(rows):
        times = _comparable(smaller, larger)
        if smaller.size_bytes == larger.size_bytes or smaller.choice == larger.choice or times is None:
            continue
        what, smaller_us, larger_us = times
        if smaller_us > _LONGER * larger_us:
            yield NcclCode.PROTOCOL_SLOWS_SMALLER_BUCKET.finding(
                f"an all-reduce of {show_bytes(smaller.size_bytes)} ({smaller.choice}) takes {show_time(smaller_us)}, one of "
                f"{show_bytes(larger.size_bytes)} ({larger.choice}) {show_time(larger_us)}, {what}"
            )


def _comparable(smaller: ChoiceRow, larger: ChoiceRow) -> tuple[str, float, float] | None:
    """The measured times of both, else NCCL's predictions of both."""
    if smaller.measured_us is not None and larger.measured_us is not None:
        return "measured", smaller.measured_us, larger.measured_us
    if smaller.nccl_us is not None and larger.nccl_us is not None:
        return "predicted by NCCL", smaller.nccl_us, larger.nccl_us
    return None


def _channels(job: JobChoices, interconnect: Interconnect | None) -> Iterator[Finding]:
    """Links behind an NVSwitch are ignored, since every channel reaches all of them."""
    channels = job.communicator.channels
    ports = job.log.network_ports if _count(job, "NET/IB") else None
    direct = interconnect is not None and not any(pair.through_nvswitch for pair in interconnect.pairs)
    nvlinks = min((one.active_nvlinks for one in interconnect.devices), default=0) if interconnect and direct else 0
    for links, what in ((ports or 0, "network port of a host"), (nvlinks, "NVLink of a GPU")):
        if channels is not None and channels < links:
            noun, _, of = what.partition(" of ")
            yield NcclCode.FEWER_CHANNELS_THAN_LINKS.finding(
                f"NCCL uses {counted(channels, 'channel')} for collectives, fewer than the {counted(links, noun)} of {of}"
            )


def _unread(job: JobChoices) -> Iterator[Finding]:
    if lines := job.log.unread_lines:
        verb = "is" if lines == 1 else "are"
        yield NcclCode.NCCL_LOG_INCOMPLETE.finding(
            f"{counted(lines, 'line')} of choices or cost tables {verb} cut off or of an unknown form"
        )
