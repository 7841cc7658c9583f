"""Which kind of parallelism a trace shows, with the evidence; unknown if the evidence does not
distinguish kinds.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from dpscope.analysis.traces.reading.event_table import (
    BoolColumn,
    CommunicationArgs,
    EventTable,
    IntColumn,
)
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.steps.attribution import Attribution, StepRanges
from dpscope.analysis.traces.steps.data_parallel import is_data_parallel
from dpscope.analysis.traces.steps.event_kind import (
    DEVICE_KINDS,
    Kind,
    collective_kind,
    named_annotations,
)
from dpscope.analysis.traces.steps.intervals import innermost
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.quantities import Count
from dpscope.profiling.records.trace_codes import TraceCode

_NODE = re.compile(r"^autograd::engine::evaluate_function: ")
_OPERATOR = re.compile(r"^c10d::")
_FUNCTIONAL = re.compile(r"^_c10d_functional::")
_REQUEST = re.compile(r"^(?:_c10d_functional|c10d)::")
_RANGE = re.compile(r"^(?:nccl|gloo):")
_NO_ARGS = CommunicationArgs()
Alike = tuple[str | None, int | None]
"""Group, and elements of the input (bytes where only these are recorded); None where not
recorded.
"""


class Requests(msgspec.Struct, frozen=True):
    """How many collectives of one kind each part of the steps requested.

    Tensor parallelism reduces activations in the forward pass and their gradients, which are as
    large, in the backward pass; gradients of parameters are reduced once a step, in the backward
    pass alone. So one that the backward pass requests is of activations if the forward pass
    requests at least half as many like it, in group and size. What like gradients comes right
    after the backward pass is of gradients: its last bucket.
    """

    gradients: Count = 0
    activations: Count = 0
    forward: Count = 0
    after: int = 0  # and unlike gradients
    seen: int = 0  # in all


def requests(events: EventTable, steps: StepRanges, kind: str) -> Requests:
    """Which part of the steps requested a trace's collectives of one kind."""
    rows = _request_rows(events, kind)
    backward, after = _places(events, steps, rows)
    # the three parts of a step, by what is alike
    by_backward = _alike(events, rows[backward])
    by_rest = _alike(events, rows[after])
    by_forward = _alike(events, rows[~backward & ~after])
    # what the forward pass requests too
    mirrored = {key for key, count in by_backward.items() if 2 * by_forward[key] >= count}
    gradients = by_backward.keys() - mirrored
    return Requests(
        gradients=sum(by_backward[key] + by_rest[key] for key in gradients),
        activations=sum(by_backward[key] for key in mirrored),
        forward=by_forward.total(),
        after=sum(count for key, count in by_rest.items() if key not in gradients),
        seen=len(rows),
    )


def _alike(events: EventTable, rows: IntColumn) -> Counter[Alike]:
    """How many of the requests are alike in group and size."""
    counts = Counter[Alike]()
    for row in rows.tolist():
        args = events.communication.get(row, _NO_ARGS)
        size = args.input_bytes if args.input_elements is None else args.input_elements
        counts[args.group, size] += 1
    return counts


def _places(
    events: EventTable, steps: StepRanges, rows: IntColumn
) -> tuple[BoolColumn, BoolColumn]:
    """Which of the rows an autograd node or autograd's own thread requested, and which come after
    all of their step's.
    """
    is_node = events.operators & events.named(_NODE.match)
    nodes = np.flatnonzero(is_node)
    step_threads = np.unique(events.thread[named_annotations(events, "ProfilerStep#")])
    # threads of autograd alone
    own_threads = np.setdiff1d(np.unique(events.thread[nodes]), step_threads)
    backward = (innermost(events, rows, is_node) >= 0) | np.isin(events.thread[rows], own_threads)
    node_steps = steps.index_at(events.start_us[nodes])
    # a step without nodes has no after
    last = np.full(len(steps), np.inf)
    known = node_steps >= 0
    last[np.unique(node_steps[known])] = -np.inf
    np.maximum.at(last, node_steps[known], events.end_us[nodes[known]])
    step = steps.index_at(events.start_us[rows])
    after = (step >= 0) & (events.start_us[rows] >= last[np.maximum(step, 0)]) & ~backward
    return np.asarray(backward, dtype=bool), np.asarray(after, dtype=bool)


def _request_rows(events: EventTable, kind: str) -> IntColumn:
    """One event for each: its record where records name what they record, else its operator, else
    its range.
    """
    host = events.operators

    def is_named(pattern: re.Pattern[str]) -> BoolColumn:
        return events.named(lambda name: pattern.match(name) and collective_kind(name) == kind)

    records = np.flatnonzero(host & events.named("record_param_comms".__eq__)).tolist()
    recorded = [events.communication.get(row, _NO_ARGS).collective_name or "" for row in records]
    of_kind = [
        row for row, name in zip(records, recorded, strict=True) if collective_kind(name) == kind
    ]
    if of_kind:
        return np.array(of_kind, dtype=np.int64)
    # no record: the operators
    functional, plain = host & is_named(_FUNCTIONAL), np.flatnonzero(host & is_named(_OPERATOR))
    outside = plain[innermost(events, plain, functional) < 0]
    operators = np.concatenate((np.flatnonzero(functional), outside))
    if len(operators):
        return operators
    # of gloo the ranges in which it carries collectives out
    return np.flatnonzero(events.annotations & is_named(_RANGE))


_MESSAGES = frozenset({"send", "recv", "send_recv"})
_DATA_PARALLEL = "DataParallel: one process drives several devices and replicates, gathers and reduces between them"
_STAND_IN = "dp-host: replicas on threads of one process, copies within the host"
_DDP = "DDP-like"
_DDP_BY_RANGE = (
    "DDP-like by its forward range; no operators show which of its collectives reduce gradients"
)
_Traced = Literal["single", "dp", "dp-host", "ddp", "other"]
_STRATEGIES: dict[str, _Traced] = {
    _DATA_PARALLEL: "dp",
    _STAND_IN: "dp-host",
    _DDP: "ddp",
    _DDP_BY_RANGE: "ddp",
}
_ACTIVATIONS = ", and all-reduces of activations (tensor-parallel)"
_SHARDED = "sharded (FSDP- or ZeRO-like)"
_AND_GRADIENTS = ", with all-reduces of gradients in the backward pass"
_NO_REDUCTION = "not DDP: it all-reduces no gradients"
_SHARED = ", with all-to-alls (as of sharded embeddings or experts)"
_PIPELINE = ", but sends and receives (pipeline-like)"
NO_BACKWARD = (
    "unknown: no operators of a backward pass in the trace show what launched its collectives"
)
_NOTHING_LAUNCHES = (
    "unknown: nothing in the trace launches its all-reduces (replayed graphs have no operators)"
)
_NO_GRADIENTS = (
    "no DDP shown: nothing is all-reduced by the backward pass alone (tensor-parallel, gradients averaged after "
    "the backward pass, or metrics)"
)
_SHARDED_FORWARD = ", and reduce-scatters that the forward pass asks for too (sequence-parallel, or sharded embeddings)"


class ParallelismEvidence(msgspec.Struct, frozen=True):
    """What one process's trace shows."""

    devices: Count = 0  # that worked in its steps
    world_size: Count | None = None
    data_parallel: bool = False  # DataParallel's operators or ranges, on several devices
    stand_in: bool = False  # dp-host's ranges
    ddp_forward: bool = False  # the range of DistributedDataParallel's forward call
    # nodes of a backward pass; without them the origin of collectives is unknown
    autograd: bool = False
    requested_kinds: frozenset[str] = (
        frozenset()
    )  # of all `c10d` operators: gloo carries out a reduce-scatter by an all-reduce
    all_reduces: Requests = Requests()
    reduce_scatters: Requests = Requests()


def parallelism_evidence(attribution: Attribution) -> ParallelismEvidence:
    events = attribution.events
    operators = events.operators
    requested = np.unique(events.name[operators & events.named(_REQUEST.match)])
    kinds = {collective_kind(events.names[code]) for code in requested}
    working = attribution.in_steps(*DEVICE_KINDS)
    return ParallelismEvidence(
        devices=len(np.unique(events.device[working])) if attribution.on_device else 0,
        world_size=attribution.trace.world_size,
        data_parallel=attribution.on_device and is_data_parallel(attribution),
        stand_in=bool(attribution.rows(Kind.HOST_RANGE).any()) and not attribution.on_device,
        ddp_forward=bool(named_annotations(events, "DistributedDataParallel.forward").any()),
        autograd=bool((operators & events.named(_NODE.match)).any()),
        requested_kinds=frozenset(kind for kind in kinds if kind is not None),
        all_reduces=requests(events, attribution.steps, "all_reduce"),
        reduce_scatters=requests(events, attribution.steps, "reduce_scatter"),
    )


def parallelism_finding(
    evidence: Sequence[ParallelismEvidence], collectives: Table
) -> list[Finding]:
    """An info finding that names the parallelism and its evidence; none if nothing communicates, or
    no backward pass is recorded.
    """
    named = parallelism_name(evidence, collectives)
    if named in (None, NO_BACKWARD) or all(
        rank.world_size == 1 and not rank.data_parallel for rank in evidence
    ):
        return []
    message = f"{named}; seen in {counted(len(evidence), 'trace')}: {_seen(evidence, collectives)}"
    return [TraceCode.PARALLELISM.finding(message)]


def traced_strategy(evidence: Sequence[ParallelismEvidence], collectives: Table) -> _Traced:
    """Which of dpscope's strategies the traces show; other if they communicate in another way, or
    it is unknown.
    """
    named = parallelism_name(evidence, collectives)
    if named is None:
        alone = all(rank.world_size in (None, 1) and rank.devices <= 1 for rank in evidence)
        return "single" if alone else "other"
    return _STRATEGIES.get(named, "other")


def parallelism_name(evidence: Sequence[ParallelismEvidence], collectives: Table) -> str | None:
    """What the traces' operators and collectives look like; None if nothing communicates."""
    if any(rank.data_parallel for rank in evidence):
        return _DATA_PARALLEL
    if any(rank.stand_in for rank in evidence):
        return _STAND_IN
    kinds = set(collectives.words("kind").counts)
    if not kinds:
        return None
    kinds = kinds.union(*(rank.requested_kinds for rank in evidence))
    if any(rank.autograd for rank in evidence):
        return _by_collectives(evidence, kinds)
    ddp = any(rank.ddp_forward for rank in evidence)
    return _DDP_BY_RANGE if ddp and "all_reduce" in kinds else NO_BACKWARD


def _by_collectives(evidence: Sequence[ParallelismEvidence], kinds: set[str]) -> str:
    """By who requested the reductions: the parameters' gradients, or something else as well."""
    reduced, scattered = _together(evidence)
    ddp = any(rank.ddp_forward for rank in evidence)
    gathers_after = scattered.after > 0 and "all_gather" in kinds
    if scattered.gradients or (gathers_after and not (reduced.gradients and ddp)):
        name = _SHARDED + _AND_GRADIENTS * bool(reduced.gradients)
    elif reduced.gradients:
        name = _DDP + _SHARED * ("all_to_all" in kinds)
    elif "all_reduce" not in kinds:
        name = _NO_REDUCTION + _PIPELINE * bool(kinds & _MESSAGES)
    elif not reduced.seen:
        return _NOTHING_LAUNCHES
    else:
        return _NO_GRADIENTS
    if reduced.activations:
        name += _ACTIVATIONS
    if scattered.activations or scattered.forward:
        name += _SHARDED_FORWARD
    return name


def _together(evidence: Sequence[ParallelismEvidence]) -> tuple[Requests, Requests]:
    """All processes' all-reduces and reduce-scatters."""
    return (
        _sum([rank.all_reduces for rank in evidence]),
        _sum([rank.reduce_scatters for rank in evidence]),
    )


def _sum(parts: Sequence[Requests]) -> Requests:
    names = Requests.__struct_fields__
    return Requests(*(sum(getattr(part, name) for part in parts) for name in names))


def _seen(evidence: Sequence[ParallelismEvidence], collectives: Table) -> str:
    counts = collectives.words("kind").counts
    most_first = sorted(counts, key=lambda kind: (-counts[kind], kind))
    parts = [f"{counts[kind]} {kind}" for kind in most_first]
    reduced, scattered = _together(evidence)
    parts += _requested("all-reduces", reduced)
    parts += _requested("reduce-scatters", scattered)
    if any(rank.ddp_forward for rank in evidence):
        parts.append("DistributedDataParallel's forward range")
    groups = len(collectives.words("group").counts)
    if groups > 1:
        parts.append(f"{groups} process groups")
    if devices := max((rank.devices for rank in evidence), default=0):
        parts.append(f"{counted(devices, 'device')} per process")
    return ", ".join(parts) or "its ranges alone"


def _requested(what: str, of: Requests) -> list[str]:
    places = {
        "started by the backward pass alone": of.gradients,
        "of the backward pass like others of the forward pass": of.activations,
        "after the backward pass": of.after,
    }
    return [f"{count} {what} {where}" for where, count in places.items() if count]
