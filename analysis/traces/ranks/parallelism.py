"""Which kind of parallelism a trace shows, said only with what was seen of it."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dpscope.analysis.text.units import counted
from dpscope.analysis.traces.data_parallel.phases import is_data_parallel
from dpscope.analysis.traces.reading.event_table import BoolColumn, Category, CommunicationArgs, EventTable, IntColumn
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.enclosing_ranges import innermost
from dpscope.analysis.traces.steps.event_kind import DEVICE_KINDS, Kind, collective_kind, named_annotations
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.trace_codes import TraceCode

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
        TraceCode.PARALLELISM.finding(
            message=f"{named}; seen in {counted(len(evidence), 'trace')}: {_seen(evidence, collectives)}"
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


_NODE = "autograd::engine::evaluate_function: "
_RECORD = re.compile(r"^record_param_comms$")
_OPERATOR = re.compile(r"^c10d::")
_FUNCTIONAL = re.compile(r"^_c10d_functional::")
_RANGE = re.compile(r"^(?:nccl|gloo):")
_NO_ARGS = CommunicationArgs()

Alike = tuple[str | None, int | None]
"""Group, and elements of the input (bytes where only these are recorded); None where not recorded."""


def asked_kinds(events: EventTable) -> frozenset[str]:
    """Kinds of all `c10d` operators: gloo carries some out by others, as a reduce-scatter by an all-reduce."""
    operators = events.is_category(Category.CPU_OP) & (_matching(events, _OPERATOR) | _matching(events, _FUNCTIONAL))
    kinds = {collective_kind(events.names[code]) for code in np.unique(events.name[operators])}
    return frozenset(kind for kind in kinds if kind is not None)


def all_reduces_asked_for(events: EventTable) -> tuple[Counter[Alike], Counter[Alike]]:
    """All-reduces that an autograd node or autograd's own thread asked for, and those asked for elsewhere."""
    rows = _all_reduces(events)
    found: tuple[Counter[Alike], Counter[Alike]] = (Counter(), Counter())
    for row, by_backward in zip(rows.tolist(), _in_backward(events, rows).tolist(), strict=True):
        args = events.communication.get(row, _NO_ARGS)
        size = args.input_elements if args.input_elements is not None else args.input_bytes
        found[0 if by_backward else 1][args.group, size] += 1
    return found


def _in_backward(events: EventTable, rows: IntColumn) -> BoolColumn:
    nodes = events.is_category(Category.CPU_OP) & _beginning(events, _NODE)
    step_threads = np.unique(events.thread[named_annotations(events, "ProfilerStep#")])
    own_threads = np.setdiff1d(np.unique(events.thread[nodes]), step_threads)
    return (innermost(events, rows, nodes) >= 0) | np.isin(events.thread[rows], own_threads)


def _all_reduces(events: EventTable) -> IntColumn:
    """One event for each: its record where records name what they record, else its operator, else its range."""
    host = events.is_category(Category.CPU_OP)
    records = np.flatnonzero(host & _matching(events, _RECORD)).tolist()
    named = [row for row in records if _recorded_kind(events, row) == "all_reduce"]
    if named:
        return np.array(named, dtype=np.int64)
    functional = host & _all_reduce_names(events, _FUNCTIONAL)
    plain = np.flatnonzero(host & _all_reduce_names(events, _OPERATOR))
    operators = np.concatenate((np.flatnonzero(functional), plain[innermost(events, plain, functional) < 0]))
    if len(operators):
        return operators
    return np.flatnonzero(events.is_category(Category.USER_ANNOTATION) & _all_reduce_names(events, _RANGE))


def _recorded_kind(events: EventTable, row: int) -> str | None:
    return collective_kind(events.communication.get(row, _NO_ARGS).collective_name or "")


def _all_reduce_names(events: EventTable, pattern: re.Pattern[str]) -> BoolColumn:
    reduces = np.array([collective_kind(name) == "all_reduce" for name in events.names], dtype=bool)
    return _matching(events, pattern) & events.has_name(reduces)


def _matching(events: EventTable, pattern: re.Pattern[str]) -> BoolColumn:
    return events.has_name(np.array([bool(pattern.match(name)) for name in events.names], dtype=bool))


def _beginning(events: EventTable, prefix: str) -> BoolColumn:
    return events.has_name(np.array([name.startswith(prefix) for name in events.names], dtype=bool))
