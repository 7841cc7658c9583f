"""Which kind of parallelism a trace shows, said only with what was seen of it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dpscope.analysis.attribution import Attribution
from dpscope.analysis.dp_phases import is_data_parallel
from dpscope.analysis.enclosing_ranges import innermost
from dpscope.analysis.event_kind import DEVICE_KINDS, Kind, collective_kind, named_annotations
from dpscope.analysis.event_table import Category
from dpscope.profiling.run_types import Finding

_NODE = "autograd::engine::evaluate_function: "
_CREATES = re.compile(r"^(?:c10d::|_c10d_functional::|nccl:|gloo:)")


@dataclass(frozen=True)
class ParallelismEvidence:
    """What one process's trace shows."""

    devices: int  # that worked in its steps
    data_parallel: bool  # DataParallel's operators or ranges, on several devices
    stand_in: bool  # dp-host's ranges
    backward_all_reduces: int  # launched by the backward pass


def parallelism_evidence(attribution: Attribution) -> ParallelismEvidence:
    """Evidence of one trace."""
    events = attribution.events
    working = attribution.rows(*DEVICE_KINDS) & (attribution.step >= 0)
    return ParallelismEvidence(
        devices=len(np.unique(events.device[working])) if attribution.on_device else 0,
        data_parallel=attribution.on_device and is_data_parallel(attribution),
        stand_in=bool(attribution.rows(Kind.HOST_RANGE).any()) and not attribution.on_device,
        backward_all_reduces=_backward_all_reduces(attribution),
    )


def _backward_all_reduces(attribution: Attribution) -> int:
    """All-reduces that an autograd node asked for, or autograd's own thread."""
    events = attribution.events
    wanted = np.array(
        [bool(_CREATES.match(name)) and collective_kind(name) == "all_reduce" for name in events.names], dtype=bool
    )
    rows = np.flatnonzero(events.is_category(Category.CPU_OP, Category.USER_ANNOTATION) & events.has_name(wanted))
    if not len(rows):
        return 0
    node_names = np.array([name.startswith(_NODE) for name in events.names], dtype=bool)
    nodes = events.is_category(Category.CPU_OP) & events.has_name(node_names)
    in_node = innermost(events, rows, nodes) >= 0
    step_threads = np.unique(events.thread[named_annotations(events, "ProfilerStep#")])
    own_threads = np.setdiff1d(np.unique(events.thread[nodes]), step_threads)
    by_backward = rows[in_node | np.isin(events.thread[rows], own_threads)]
    names = [events.names[code] for code in events.name[by_backward]]
    operators = sum(name.startswith(("c10d::", "_c10d_functional::")) for name in names)
    return operators or len(names)  # a range and its operator are one all-reduce


def parallelism_finding(evidence: Sequence[ParallelismEvidence], collectives: pd.DataFrame) -> list[Finding]:
    """An info finding that names the parallelism and what it was told from; none where nothing communicates."""
    named = _named(evidence, collectives)
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


def _named(evidence: Sequence[ParallelismEvidence], collectives: pd.DataFrame) -> str | None:
    if any(one.data_parallel for one in evidence):
        return "DataParallel: one process drives several devices and replicates, gathers and reduces between them"
    if any(one.stand_in for one in evidence):
        return "dp-host: replicas on threads of one process, copies within the host"
    kinds = set(collectives["kind"].dropna()) if len(collectives) else set()
    if not kinds:
        return None
    reduces = sum(one.backward_all_reduces for one in evidence) > 0
    if {"all_gather", "reduce_scatter"} <= kinds:
        return "sharded (FSDP- or ZeRO-like)" + (", with all-reduces in the backward pass" if reduces else "")
    if reduces:
        return "DDP-like" + (
            ", with all-to-alls (as of sharded embeddings or experts)" if "all_to_all" in kinds else ""
        )
    if "all_reduce" in kinds:
        return "not DDP: its all-reduces are not launched by the backward pass (tensor-parallel or metrics)"
    return "not DDP: it all-reduces no gradients"


def _seen(evidence: Sequence[ParallelismEvidence], collectives: pd.DataFrame) -> str:
    counts = collectives["kind"].value_counts() if len(collectives) else pd.Series(dtype=int)
    parts = [f"{count} {kind}" for kind, count in sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))]
    if reduces := sum(one.backward_all_reduces for one in evidence):
        parts.append(f"{reduces} all-reduces asked for by the backward pass")
    groups = collectives["group"].nunique() if len(collectives) else 0
    if groups > 1:
        parts.append(f"{groups} process groups")
    if devices := max((one.devices for one in evidence), default=0):
        parts.append(f"{devices} device{'s' if devices > 1 else ''} per process")
    return ", ".join(parts) or "its ranges alone"
