"""Findings about NCCL's choices that cost time: network, transports, protocols and channels."""

from collections.abc import Iterator
from itertools import pairwise

from dpscope.analysis.costs.nccl_choices import ChoiceRow, JobChoices
from dpscope.analysis.text.units import show_bytes, show_time
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.links import Interconnect
from dpscope.profiling.records.run_codes import NcclCode

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
