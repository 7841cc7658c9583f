"""Which kind of parallelism a trace shows, said only with what was seen of it."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dpscope.analysis.attribution import Attribution
from dpscope.analysis.dp_phases import is_data_parallel
from dpscope.analysis.enclosing_ranges import innermost
from dpscope.analysis.event_kind import DEVICE_KINDS, Kind, collective_kind, named_annotations
from dpscope.analysis.event_table import BoolColumn, Category, CommunicationArgs, EventTable, IntColumn
from dpscope.analysis.tensor_sizes import buffer_bytes
from dpscope.profiling.run_types import Finding

_NODE = "autograd::engine::evaluate_function: "
_RECORD = re.compile(r"^record_param_comms$")
_OPERATOR = re.compile(r"^_?c10d(?:_functional)?::")
_RANGE = re.compile(r"^(?:nccl|gloo):")
_MESSAGES = frozenset({"send", "recv", "send_recv"})
_ACTIVATIONS = ", and all-reduces of activations (tensor-parallel)"
_Alike = tuple[str | None, int | None]  # group, bytes


@dataclass(frozen=True)
class ParallelismEvidence:
    """What one process's trace shows.

    An all-reduce that the backward pass asks for is one of activations where others like it, in group and size, are asked
    for elsewhere: tensor parallelism reduces activations in the forward pass and their gradients, which are as large, in
    the backward pass. Where no size is known, it is one if elsewhere there are as many.
    """

    devices: int  # that worked in its steps
    data_parallel: bool  # DataParallel's operators or ranges, on several devices
    stand_in: bool  # dp-host's ranges
    gradient_all_reduces: int  # asked for by the backward pass, others than...
    activation_all_reduces: int  # ...these
    other_all_reduces: int  # asked for elsewhere


def parallelism_evidence(attribution: Attribution) -> ParallelismEvidence:
    """Evidence of one trace."""
    events = attribution.events
    working = attribution.rows(*DEVICE_KINDS) & (attribution.step >= 0)
    by_backward, elsewhere = _asked_for(events)
    activations = {key for key, count in by_backward.items() if elsewhere[key] >= (1 if key[1] is not None else count)}
    return ParallelismEvidence(
        devices=len(np.unique(events.device[working])) if attribution.on_device else 0,
        data_parallel=attribution.on_device and is_data_parallel(attribution),
        stand_in=bool(attribution.rows(Kind.HOST_RANGE).any()) and not attribution.on_device,
        gradient_all_reduces=sum(count for key, count in by_backward.items() if key not in activations),
        activation_all_reduces=sum(by_backward[key] for key in activations),
        other_all_reduces=sum(elsewhere.values()),
    )


def _asked_for(events: EventTable) -> tuple[Counter[_Alike], Counter[_Alike]]:
    """All-reduces by (group, bytes): those that an autograd node or autograd's own thread asked for, and the others."""
    rows = _all_reduce_rows(events)
    if not len(rows):
        return Counter(), Counter()
    node_names = np.array([name.startswith(_NODE) for name in events.names], dtype=bool)
    nodes = events.is_category(Category.CPU_OP) & events.has_name(node_names)
    in_node = innermost(events, rows, nodes) >= 0
    step_threads = np.unique(events.thread[named_annotations(events, "ProfilerStep#")])
    own_threads = np.setdiff1d(np.unique(events.thread[nodes]), step_threads)
    backward = in_node | np.isin(events.thread[rows], own_threads)
    found: tuple[Counter[_Alike], Counter[_Alike]] = (Counter(), Counter())
    for row, by_backward in zip(rows.tolist(), backward.tolist(), strict=True):
        args = events.communication.get(row, CommunicationArgs())
        found[0 if by_backward else 1][args.group, buffer_bytes(args, "all_reduce", args.group_size)] += 1
    return found


def _all_reduce_rows(events: EventTable) -> IntColumn:
    """One event for each all-reduce asked for: its record where these name what they record, its operator, or its range."""
    recorded = [
        row
        for row in np.flatnonzero(_named(events, events.is_category(Category.CPU_OP), _RECORD)).tolist()
        if collective_kind(events.communication.get(row, CommunicationArgs()).collective_name or "") == "all_reduce"
    ]
    if recorded:
        return np.array(recorded, dtype=np.int64)
    operators = np.flatnonzero(_named(events, events.is_category(Category.CPU_OP), _OPERATOR))
    if len(operators):
        return operators
    return np.flatnonzero(_named(events, events.is_category(Category.USER_ANNOTATION), _RANGE))


def _named(events: EventTable, among: BoolColumn, pattern: re.Pattern[str]) -> BoolColumn:
    """Events of all-reduces by their names, or of any collective where the name is `record_param_comms`."""
    wanted = [
        bool(pattern.match(name)) and (pattern is _RECORD or collective_kind(name) == "all_reduce")
        for name in events.names
    ]
    return among & events.has_name(np.array(wanted, dtype=bool))


def parallelism_finding(evidence: Sequence[ParallelismEvidence], collectives: pd.DataFrame) -> list[Finding]:
    """An info finding that names the parallelism and what it was told from; none where nothing communicates."""
    named = _name(evidence, collectives)
    if named is None:
        return []
    return [
        Finding(
            severity="info",
            code="parallelism",
            message=f"{named}; seen in {len(evidence)} trace{'s' if len(evidence) > 1 else ''}: {_seen(evidence, collectives)}",
            next_step="told from names and launches alone: say it otherwise if you know better",
        )
    ]


def _name(evidence: Sequence[ParallelismEvidence], collectives: pd.DataFrame) -> str | None:
    if any(one.data_parallel for one in evidence):
        return "DataParallel: one process drives several devices and replicates, gathers and reduces between them"
    if any(one.stand_in for one in evidence):
        return "dp-host: replicas on threads of one process, copies within the host"
    kinds = set(collectives["kind"].dropna()) if len(collectives) else set()
    if not kinds:
        return None
    gradients, activations, others = _all_reduce_counts(evidence)
    if {"all_gather", "reduce_scatter"} <= kinds:
        reduced = ", with all-reduces of gradients in the backward pass" if gradients else ""
        return "sharded (FSDP- or ZeRO-like)" + reduced + (_ACTIVATIONS if activations else "")
    if gradients:
        shared = ", with all-to-alls (as of sharded embeddings or experts)" if "all_to_all" in kinds else ""
        return "DDP-like" + shared + (_ACTIVATIONS if activations else "")
    if activations:
        return "not DDP: its backward pass all-reduces what others do too, and no gradients of parameters (tensor-parallel)"
    if "all_reduce" in kinds and not others:
        return "not told: nothing in the trace asks for its all-reduces (replayed graphs have no operators)"
    if "all_reduce" in kinds:
        return "not DDP: its all-reduces are not launched by the backward pass (tensor-parallel or metrics)"
    messages = ", but sends and receives (pipeline-like)" if kinds & _MESSAGES else ""
    return f"not DDP: it all-reduces no gradients{messages}"


def _all_reduce_counts(evidence: Sequence[ParallelismEvidence]) -> tuple[int, int, int]:
    """All-reduces of gradients, of activations in the backward pass, and others."""
    return (
        sum(one.gradient_all_reduces for one in evidence),
        sum(one.activation_all_reduces for one in evidence),
        sum(one.other_all_reduces for one in evidence),
    )


def _seen(evidence: Sequence[ParallelismEvidence], collectives: pd.DataFrame) -> str:
    counts = collectives["kind"].value_counts() if len(collectives) else pd.Series(dtype=int)
    parts = [f"{count} {kind}" for kind, count in sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))]
    gradients, activations, _ = _all_reduce_counts(evidence)
    if gradients:
        parts.append(f"{gradients} all-reduces asked for by the backward pass alone")
    if activations:
        parts.append(f"{activations} all-reduces of the backward pass like others outside of it")
    groups = collectives["group"].nunique() if len(collectives) else 0
    if groups > 1:
        parts.append(f"{groups} process groups")
    if devices := max((one.devices for one in evidence), default=0):
        parts.append(f"{devices} device{'s' if devices > 1 else ''} per process")
    return ", ".join(parts) or "its ranges alone"
