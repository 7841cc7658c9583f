"""NCCL's choices as tables, JSON and findings, from logs that the user passes, else from the calibration."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from dpscope.analysis.costs.nccl_choices import ChoiceRow, JobChoices, MeasuredTimes, job_choices, job_log
from dpscope.analysis.costs.sources import CostSources
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.text_table import Field, TextTable, table_of
from dpscope.analysis.text.units import NA, show_bytes, show_time
from dpscope.analysis.traces.reading.table import Table, joined
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
        """The tables with rows by name; none without a log."""
        if not self.jobs:
            return {}
        peers = [
            {"ranks": job.ranks, "transport": transport, "pairs": _pairs(pairs)}
            for job in self.jobs
            for transport, pairs in sorted(job.log.peers.items())
        ]
        both = ["a-b: in both directions; a→b: in one"]
        tables = {
            "nccl_job": table_of("NCCL: version, channels, transports", _JOB, self.jobs, [_CONNECTIONS]),
            "nccl_peers": table_of("NCCL: which ranks are connected by which transport", _PEERS, peers, both),
            "nccl_choices": choices_table(self.jobs),
        }
        return {name: table for name, table in tables.items() if table.rows}

    def choice(self, ranks: int, nodes: int, kind: str, size_bytes: float) -> ChoiceRow | None:
        """`JobChoices.at` of the job with this number of ranks and hosts."""
        found = (job.at(kind, size_bytes) for job in self.jobs if (job.ranks, job.nodes) == (ranks, nodes))
        return next((row for row in found if row is not None), None)

    def content(self) -> list[dict[str, object]]:
        """One dictionary per job, for JSON; unknown values are None."""
        return [
            {
                "ranks": job.ranks,
                "library": job.log.library,
                **{name: getattr(job.communicator, name) for name in ("channels", "nvls_channels", "collnet_channels")},
                "transports": job.log.links,
                "peers": {transport: [list(pair) for pair in pairs] for transport, pairs in job.log.peers.items()},
                "networks": list(job.log.networks),
                "infiniband": job.log.infiniband,
                "gpu_direct": job.log.gpu_direct,
                "ring_bytes": job.ring_bytes,
                "bytes": job.bytes_in_all,
                "choices": [asdict(row) for row in job.rows],
            }
            for job in self.jobs
        ]


def run_chapter(run: RunData, sources: CostSources, logs: Sequence[Path]) -> NcclChapter:
    """NCCL's choices in a run or in traces, from logs of one of its jobs, else from its calibration.

    Raises DpscopeError for a log of another job.
    """
    if not logs:
        return calibration_chapter(sources.calibration) if sources.calibration is not None else NcclChapter()
    cells = [data for data in run.measured if data.cell.devices > 1]
    log = job_log(logs, sorted({data.cell.devices for data in cells}))
    of_job = [data for data in cells if data.cell.devices == log.communicators[0].ranks]
    nodes = max(len(log.hosts), *(data.nodes for data in of_job))
    measured = _measured_times(of_job[0].cell.devices, [data.tables.collectives for data in of_job])
    return _chapter([job_choices(log, sources.on_nodes(nodes), measured)], sources.interconnect)


def calibration_chapter(calibration: Calibration) -> NcclChapter:
    """NCCL's choices recorded by a calibration, with the median times that it measured."""
    jobs = []
    for one in calibration.nccl:
        sources = CostSources(None, calibration, calibration.interconnect).on_nodes(one.nodes)
        place = (one.log.communicators[0].ranks, one.nodes)
        points = [timed for timed in calibration.points if (timed.devices, timed.nodes or 1) == place]
        times: MeasuredTimes = {(timed.collective, timed.size_bytes): float(median(timed.times_us)) for timed in points}
        jobs.append(job_choices(one.log, sources, times))
    return _chapter(jobs, calibration.interconnect)


def _chapter(jobs: Sequence[JobChoices], interconnect: Interconnect | None) -> NcclChapter:
    findings = (finding for job in jobs for finding in nccl_findings(job, interconnect))
    return NcclChapter(tuple(jobs), tuple(dict.fromkeys(findings)))


def _measured_times(ranks: int, tables: Sequence[Table]) -> MeasuredTimes:
    """Mean transfer of the collectives that include all ranks, by kind and size."""
    rows = joined(tables)
    rows = rows.take(
        rows.known("transfer_us") & rows.known("kind") & rows.known("bytes") & (rows["group_size"] == ranks)
    )
    sizes = rows.group("kind", "bytes", in_order=True)
    keys = rows.take(sizes.first).records(("kind", "bytes"))
    means = (float(rows["transfer_us"][own].mean()) for own in sizes.rows())
    return {(key["kind"], key["bytes"]): mean for key, mean in zip(keys, means, strict=True)}


_RANKS = Field("ranks", "ranks", meaning="Ranks of the job")
_CHOICES = (
    Field("collective", "kind", meaning="Kind of the collective"),
    _RANKS,
    Field("size", lambda row: show_bytes(row["size_bytes"]), meaning="The larger of a rank's input and output buffer"),
    Field("algorithm", "algorithm", meaning="The algorithm that NCCL chose"),
    Field("protocol", "protocol", meaning="The protocol that NCCL chose: LL, LL128 or Simple"),
    Field("channels", "channels", meaning="Channels that carried the call"),
    Field("calls", lambda row: f"{row['calls']:,}", meaning="Calls in the log, which rank 0 of a communicator writes"),
    Field("NCCL's model", "nccl_us", "time", "NCCL's prediction for its choice, from the cost table that it prints"),
    Field("ring", "ring_us", "time", "The ring formula with the latency per hop of NCCL's cost table"),
    Field("formula", "formula_us", "time", "The formula of the algorithm that ran"),
    Field("measured", "measured_us", "time", "Mean transfer in the traces, or median time in the calibration"),
)


def choices_table(jobs: Sequence[JobChoices]) -> TextTable:
    """A row per collective, size and choice; without rows if the logs contain no choice."""
    rows = [{"ranks": job.ranks, **asdict(row)} for job in jobs for row in job.rows]
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
    yield "NCCL's model: its prediction for the choice; ring: the ring formula; formula: that of the algorithm that ran"
    if any(row.kind is None for row in rows):
        yield "collective NA: this version of NCCL does not print it, and not exactly one measured collective has this size"
    if any(row.kind is not None and row.ring_us is None for row in rows):
        yield "ring and formula NA: no link or calibration is known (use --link or --calibration), or there is no formula"
    if any(row.ring_us is not None and row.formula_us is None for row in rows):
        yield "formula NA: no formula is known for this algorithm and collective"
    if any(row.ring_us is not None for row in rows):
        known = all(job.communicator.cost_table for job in jobs)
        how = (
            "the ring's latency in NCCL's cost table divided by its hops"
            if known
            else "omitted without NCCL's cost table"
        )
        yield f"latency per hop in both formulas: {how}"
    if any(row.measured_us is None for row in rows):
        yield "measured NA: no collective of this kind and size on all ranks was measured"


_GPU_DIRECT = {None: NA, True: "enabled", False: "disabled"}
_JOB = (
    _RANKS,
    Field("library", "log.library", meaning="NCCL or RCCL, with its version"),
    Field("channels", "communicator.channels", meaning="Channels for collectives"),
    Field(
        "NVLS channels",
        "communicator.nvls_channels",
        meaning="Channels for reductions in the NVSwitch; 0: not available",
    ),
    Field(
        "CollNet channels",
        "communicator.collnet_channels",
        meaning="Channels for reductions in the network; 0: not available",
    ),
    Field("networks", lambda job: ", ".join(job.log.networks) or NA, meaning="Networks that NCCL uses between hosts"),
    Field(
        "connections by transport",
        lambda job: ", ".join(f"{name} {pairs}" for name, pairs in sorted(job.log.links.items())) or NA,
        meaning="Pairs of ranks by transport",
    ),
    Field(
        "GPUDirect",
        lambda job: _GPU_DIRECT[job.log.gpu_direct],
        meaning="Whether the network reads and writes GPU memory directly",
    ),
)
_CONNECTIONS = "connections: pairs of ranks in NCCL's log, each direction counted once"
_PEERS = (
    _RANKS,
    Field("transport", "transport", meaning="How data travel between two ranks"),
    Field("pairs", "pairs", meaning="The ranks that this transport connects"),
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


_LONGER = 1.05  # time of a size over that of the next larger one, above which it is not noise of the median


def nccl_findings(job: JobChoices, interconnect: Interconnect | None = None) -> Iterator[Finding]:
    """All findings from one job's log; `interconnect` is NVML's record of the machine, if available."""
    yield from _transports(job, interconnect)
    yield from _protocol_switches(job)
    yield from _channels(job, interconnect)
    if lines := job.log.unread_lines:
        verb = "is" if lines == 1 else "are"
        yield NcclCode.NCCL_LOG_INCOMPLETE.finding(
            f"{counted(lines, 'line')} of choices or cost tables {verb} cut off, of an unknown form, or of a communicator that "
            "the line does not name"
        )


def _count(job: JobChoices, *transports: str) -> int:
    return sum(pairs for name, pairs in job.log.links.items() if name.startswith(transports))


def _transports(job: JobChoices, interconnect: Interconnect | None) -> Iterator[Finding]:
    """Connections that are slower than the hardware allows."""
    log = job.log
    if log.infiniband and (sockets := _count(job, "NET/Socket")):
        yield NcclCode.SOCKETS_WITH_INFINIBAND.finding(
            f"{counted(sockets, 'connection')} of ranks {'uses' if sockets == 1 else 'use'} TCP sockets (NET/Socket), "
            "although NCCL found InfiniBand or RoCE devices"
        )
    every = _count(job, "NET/IB")
    through_host = sum(pairs for name, pairs in log.links.items() if name.startswith("NET/IB") and "GDRDMA" not in name)
    if through_host:
        disabled = "; the log reports GPU Direct RDMA as disabled" if log.gpu_direct is False else ""
        yield NcclCode.NO_GPU_DIRECT_RDMA.finding(
            f"{through_host} of {counted(every, 'connection')} over InfiniBand or RoCE "
            f"{'has' if through_host == 1 else 'have'} no GPUDirect RDMA{disabled}"
        )
    evidence = log.peer_access_off
    if evidence is None and interconnect is not None and any(pair.peer_access for pair in interconnect.pairs):
        evidence = "NVML reports peer access between GPUs"
    if evidence is not None and (shared := _count(job, "SHM")):
        yield NcclCode.SHARED_MEMORY_WITH_PEER_ACCESS.finding(
            f"{counted(shared, 'connection')} between GPUs of a host {'uses' if shared == 1 else 'use'} shared memory (SHM): "
            f"{evidence}"
        )


def _protocol_switches(job: JobChoices) -> Iterator[Finding]:
    """Adjacent sizes of all-reduce with different choices, of which the smaller takes longer.

    Compared are the measured times of both, else NCCL's predictions of both.
    """
    rows = sorted((row for row in job.rows if row.kind == "all_reduce"), key=lambda row: row.size_bytes)
    for smaller, larger in pairwise(rows):
        what, first_us, second_us = "measured", smaller.measured_us, larger.measured_us
        if first_us is None or second_us is None:
            what, first_us, second_us = "predicted by NCCL", smaller.nccl_us, larger.nccl_us
        if smaller.size_bytes == larger.size_bytes or smaller.choice == larger.choice:
            continue
        if first_us is not None and second_us is not None and first_us > _LONGER * second_us:
            yield NcclCode.PROTOCOL_SLOWS_SMALLER_BUCKET.finding(
                f"an all-reduce of {show_bytes(smaller.size_bytes)} ({smaller.choice}) takes {show_time(first_us)}, one of "
                f"{show_bytes(larger.size_bytes)} ({larger.choice}) {show_time(second_us)}, {what}"
            )


def _channels(job: JobChoices, interconnect: Interconnect | None) -> Iterator[Finding]:
    """Links behind an NVSwitch are ignored, since every channel reaches all of them."""
    channels = job.communicator.channels
    ports = job.log.network_ports if _count(job, "NET/IB") else None
    direct = interconnect is not None and not any(pair.through_nvswitch for pair in interconnect.pairs)
    nvlinks = min((one.active_nvlinks for one in interconnect.devices), default=0) if interconnect and direct else 0
    for links, noun, of in ((ports or 0, "network port", "a host"), (nvlinks, "NVLink", "a GPU")):
        if channels is not None and channels < links:
            yield NcclCode.FEWER_CHANNELS_THAN_LINKS.finding(
                f"NCCL uses {counted(channels, 'channel')} for collectives, fewer than the {counted(links, noun)} of {of}"
            )
