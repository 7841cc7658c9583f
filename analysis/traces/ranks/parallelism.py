"""Which kind of parallelism a trace shows, with the evidence; unknown if the evidence does not distinguish kinds."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from dpscope.analysis.traces.data_parallel.phases import is_data_parallel
from dpscope.analysis.traces.ranks.requests import Requests, asked_kinds, has_autograd, requests
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.event_kind import DEVICE_KINDS, Kind, named_annotations
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.trace_codes import TraceCode

_MESSAGES = frozenset({"send", "recv", "send_recv"})
_DDP = "DDP-like"
_DDP_BY_RANGE = "DDP-like by its forward range; no operators show which of its collectives reduce gradients"
_ACTIVATIONS = ", and all-reduces of activations (tensor-parallel)"
_SHARDED_FORWARD = ", and reduce-scatters that the forward pass asks for too (sequence-parallel, or sharded embeddings)"


@dataclass(frozen=True)
class ParallelismEvidence:
    """What one process's trace shows."""

    devices: int  # that worked in its steps
    world_size: int | None
    data_parallel: bool  # DataParallel's operators or ranges, on several devices
    stand_in: bool  # dp-host's ranges
    ddp_forward: bool  # the range of DistributedDataParallel's forward call
    autograd: bool  # nodes of a backward pass; without them the origin of collectives is unknown
    asked_kinds: frozenset[str]  # of the operators
    all_reduces: Requests
    reduce_scatters: Requests


def parallelism_evidence(attribution: Attribution) -> ParallelismEvidence:
    """Evidence of one trace."""
    events = attribution.events
    working = attribution.rows(*DEVICE_KINDS) & (attribution.step >= 0)
    return ParallelismEvidence(
        devices=len(np.unique(events.device[working])) if attribution.on_device else 0,
        world_size=attribution.trace.world_size,
        data_parallel=attribution.on_device and is_data_parallel(attribution),
        stand_in=bool(attribution.rows(Kind.HOST_RANGE).any()) and not attribution.on_device,
        ddp_forward=bool(named_annotations(events, "DistributedDataParallel.forward").any()),
        autograd=has_autograd(events),
        asked_kinds=asked_kinds(events),
        all_reduces=requests(events, attribution.steps, "all_reduce"),
        reduce_scatters=requests(events, attribution.steps, "reduce_scatter"),
    )


def parallelism_finding(evidence: Sequence[ParallelismEvidence], collectives: Table) -> list[Finding]:
    """An info finding that names the parallelism and its evidence; none if nothing communicates."""
    named = _name(evidence, collectives)
    if named is None or all(one.world_size == 1 and not one.data_parallel for one in evidence):
        return []
    return [
        TraceCode.PARALLELISM.finding(
            message=f"{named}; seen in {counted(len(evidence), 'trace')}: {_seen(evidence, collectives)}"
        )
    ]


def traced_strategy(
    evidence: Sequence[ParallelismEvidence], collectives: Table
) -> Literal["single", "dp", "dp-host", "ddp", "other"]:
    """Which of dpscope's strategies the traces show; other if they communicate in another way, or it is unknown."""
    named = _name(evidence, collectives)
    if named is None:
        return "single" if all(one.world_size in (None, 1) and one.devices <= 1 for one in evidence) else "other"
    if named in (_DDP, _DDP_BY_RANGE):
        return "ddp"
    if any(one.data_parallel for one in evidence):
        return "dp"
    return "dp-host" if any(one.stand_in for one in evidence) else "other"


def _name(evidence: Sequence[ParallelismEvidence], collectives: Table) -> str | None:
    if any(one.data_parallel for one in evidence):
        return "DataParallel: one process drives several devices and replicates, gathers and reduces between them"
    if any(one.stand_in for one in evidence):
        return "dp-host: replicas on threads of one process, copies within the host"
    kinds = set(collectives["kind"].tolist()) - {None} if len(collectives) else set()
    return _by_collectives(evidence, kinds.union(*(one.asked_kinds for one in evidence))) if kinds else None


def _by_collectives(evidence: Sequence[ParallelismEvidence], kinds: set[str]) -> str:
    reduced = _together([one.all_reduces for one in evidence])
    scattered = _together([one.reduce_scatters for one in evidence])
    besides = (_ACTIVATIONS if reduced.activations else "") + (
        _SHARDED_FORWARD if scattered.activations or scattered.forward else ""
    )
    if not any(one.autograd for one in evidence):
        return _without_autograd(evidence, kinds)
    is_ddp = reduced.gradients and any(one.ddp_forward for one in evidence)
    if scattered.gradients or (scattered.after and "all_gather" in kinds and not is_ddp):
        also = ", with all-reduces of gradients in the backward pass" if reduced.gradients else ""
        return "sharded (FSDP- or ZeRO-like)" + also + besides
    if reduced.gradients or (reduced.untold and any(one.ddp_forward for one in evidence)):
        shared = ", with all-to-alls (as of sharded embeddings or experts)" if "all_to_all" in kinds else ""
        return _DDP + shared + besides
    if scattered.untold:
        return "sharded or sequence-parallel: the sizes that distinguish gradients from activations are not recorded"
    return _without_gradients(reduced, kinds, besides)


def _without_autograd(evidence: Sequence[ParallelismEvidence], kinds: set[str]) -> str:
    if any(one.ddp_forward for one in evidence) and "all_reduce" in kinds:
        return _DDP_BY_RANGE
    return "unknown: no operators of a backward pass in the trace show what launched its collectives"


def _without_gradients(reduced: Requests, kinds: set[str], besides: str) -> str:
    """If no collective of the backward pass is known to reduce gradients."""
    if reduced.activations:
        return "not DDP: its backward pass all-reduces what others do too, and no gradients of parameters (tensor-parallel)"
    if reduced.untold:
        return "DDP-like or tensor-parallel: the sizes that distinguish gradients from activations are not recorded"
    if "all_reduce" in kinds and not reduced.seen:
        return "unknown: nothing in the trace launches its all-reduces (replayed graphs have no operators)"
    if reduced.large_after or (reduced.after and not reduced.forward):
        return "unknown: it all-reduces after the backward pass: gradients averaged without DDP, or metrics" + besides
    if "all_reduce" in kinds:
        return "not DDP: its all-reduces are not launched by the backward pass (tensor-parallel or metrics)" + besides
    messages = ", but sends and receives (pipeline-like)" if kinds & _MESSAGES else ""
    return f"not DDP: it all-reduces no gradients{messages}{besides}"


def _together(parts: Sequence[Requests]) -> Requests:
    return Requests(**{field.name: sum(getattr(one, field.name) for one in parts) for field in fields(Requests)})


def _seen(evidence: Sequence[ParallelismEvidence], collectives: Table) -> str:
    counts = Counter(kind for kind in collectives["kind"].tolist() if kind) if len(collectives) else Counter()
    parts = [f"{count} {kind}" for kind, count in sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))]
    for name, asked in (
        ("all-reduces", _together([one.all_reduces for one in evidence])),
        ("reduce-scatters", _together([one.reduce_scatters for one in evidence])),
    ):
        if asked.gradients:
            parts.append(f"{asked.gradients} {name} asked for by the backward pass alone")
        if asked.activations:
            parts.append(f"{asked.activations} {name} of the backward pass like others of the forward pass")
        if asked.untold:
            parts.append(f"{asked.untold} {name} asked for by the backward pass and {asked.forward} before it")
        if asked.after:
            parts.append(f"{asked.after} {name} after the backward pass")
    if any(one.ddp_forward for one in evidence):
        parts.append("DistributedDataParallel's forward range")
    groups = len(set(collectives["group"].tolist()) - {None}) if len(collectives) else 0
    if groups > 1:
        parts.append(f"{groups} process groups")
    if devices := max((one.devices for one in evidence), default=0):
        parts.append(f"{counted(devices, 'device')} per process")
    return ", ".join(parts) or "its ranges alone"
