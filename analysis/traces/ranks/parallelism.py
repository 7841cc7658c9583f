"""Which kind of parallelism a trace shows, said only with what was seen of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dpscope.analysis.asked_collectives import all_reduces_asked_for, asked_kinds
from dpscope.analysis.text.units import counted
from dpscope.analysis.traces.data_parallel.phases import is_data_parallel
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.event_kind import DEVICE_KINDS, Kind, named_annotations
from dpscope.profiling.records.run import Finding

_MESSAGES = frozenset({"send", "recv", "send_recv"})
_ACTIVATIONS = ", and all-reduces of activations (tensor-parallel)"


@dataclass(frozen=True)
class ParallelismEvidence:
    """What one process's trace shows.

    An all-reduce that the backward pass asks for is one of activations where others like it, in group and size, are asked
    for elsewhere: tensor parallelism reduces activations in the forward pass and their gradients, which are as large, in
    the backward pass. Where sizes are not recorded, it is untold unless there are few elsewhere (a loss, an accuracy).
    """

    devices: int  # that worked in its steps
    data_parallel: bool  # DataParallel's operators or ranges, on several devices
    stand_in: bool  # dp-host's ranges
    ddp_forward: bool  # the range of DistributedDataParallel's forward call
    asked_kinds: frozenset[str]  # of the operators
    gradient_all_reduces: int  # asked for by the backward pass: these,
    activation_all_reduces: int  # these,
    untold_all_reduces: int  # and these
    other_all_reduces: int  # asked for elsewhere


def parallelism_evidence(attribution: Attribution) -> ParallelismEvidence:
    """Evidence of one trace."""
    events = attribution.events
    working = attribution.rows(*DEVICE_KINDS) & (attribution.step >= 0)
    by_backward, elsewhere = all_reduces_asked_for(events)
    activations = {key for key in by_backward if key[1] is not None and elsewhere[key]}
    untold = {key for key, count in by_backward.items() if key[1] is None and 2 * elsewhere[key] >= count}
    return ParallelismEvidence(
        devices=len(np.unique(events.device[working])) if attribution.on_device else 0,
        data_parallel=attribution.on_device and is_data_parallel(attribution),
        stand_in=bool(attribution.rows(Kind.HOST_RANGE).any()) and not attribution.on_device,
        ddp_forward=bool(named_annotations(events, "DistributedDataParallel.forward").any()),
        asked_kinds=asked_kinds(events),
        gradient_all_reduces=sum(count for key, count in by_backward.items() if key not in activations | untold),
        activation_all_reduces=sum(by_backward[key] for key in activations),
        untold_all_reduces=sum(by_backward[key] for key in untold),
        other_all_reduces=sum(elsewhere.values()),
    )


def parallelism_finding(evidence: Sequence[ParallelismEvidence], collectives: pd.DataFrame) -> list[Finding]:
    """An info finding that names the parallelism and what it was told from; none where nothing communicates."""
    named = _name(evidence, collectives)
    if named is None:
        return []
    return [
        Finding(
            severity="info",
            code="parallelism",
            message=f"{named}; seen in {counted(len(evidence), 'trace')}: {_seen(evidence, collectives)}",
            next_step="told from names and launches alone: say it otherwise if you know better",
        )
    ]


def _name(evidence: Sequence[ParallelismEvidence], collectives: pd.DataFrame) -> str | None:
    if any(one.data_parallel for one in evidence):
        return "DataParallel: one process drives several devices and replicates, gathers and reduces between them"
    if any(one.stand_in for one in evidence):
        return "dp-host: replicas on threads of one process, copies within the host"
    kinds = set(collectives["kind"].dropna()) if len(collectives) else set()
    return _by_collectives(evidence, kinds.union(*(one.asked_kinds for one in evidence))) if kinds else None


def _by_collectives(evidence: Sequence[ParallelismEvidence], kinds: set[str]) -> str:
    gradients, activations, untold, others = _all_reduce_counts(evidence)
    besides = _ACTIVATIONS if activations else ""
    if {"all_gather", "reduce_scatter"} <= kinds:
        reduced = ", with all-reduces of gradients in the backward pass" if gradients else ""
        return "sharded (FSDP- or ZeRO-like)" + reduced + besides
    if gradients or (untold and any(one.ddp_forward for one in evidence)):
        shared = ", with all-to-alls (as of sharded embeddings or experts)" if "all_to_all" in kinds else ""
        return "DDP-like" + shared + besides
    if activations:
        return "not DDP: its backward pass all-reduces what others do too, and no gradients of parameters (tensor-parallel)"
    if untold:
        return "DDP-like or tensor-parallel: the sizes that would tell gradients from activations are not recorded"
    if "all_reduce" in kinds and not others:
        return "not told: nothing in the trace asks for its all-reduces (replayed graphs have no operators)"
    if "all_reduce" in kinds:
        return "not DDP: its all-reduces are not launched by the backward pass (tensor-parallel or metrics)"
    messages = ", but sends and receives (pipeline-like)" if kinds & _MESSAGES else ""
    return f"not DDP: it all-reduces no gradients{messages}"


def _all_reduce_counts(evidence: Sequence[ParallelismEvidence]) -> tuple[int, int, int, int]:
    """All-reduces of gradients, of activations in the backward pass, untold ones there, and others."""
    return (
        sum(one.gradient_all_reduces for one in evidence),
        sum(one.activation_all_reduces for one in evidence),
        sum(one.untold_all_reduces for one in evidence),
        sum(one.other_all_reduces for one in evidence),
    )


def _seen(evidence: Sequence[ParallelismEvidence], collectives: pd.DataFrame) -> str:
    counts = collectives["kind"].value_counts() if len(collectives) else pd.Series(dtype=int)
    parts = [f"{count} {kind}" for kind, count in sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))]
    gradients, activations, untold, others = _all_reduce_counts(evidence)
    if gradients:
        parts.append(f"{gradients} all-reduces asked for by the backward pass alone")
    if activations:
        parts.append(f"{activations} all-reduces of the backward pass like others outside of it")
    if untold:
        parts.append(f"{untold} all-reduces asked for by the backward pass and {others} elsewhere")
    if any(one.ddp_forward for one in evidence):
        parts.append("DistributedDataParallel's forward range")
    groups = collectives["group"].nunique() if len(collectives) else 0
    if groups > 1:
        parts.append(f"{groups} process groups")
    if devices := max((one.devices for one in evidence), default=0):
        parts.append(f"{counted(devices, 'device')} per process")
    return ", ".join(parts) or "its ranges alone"
