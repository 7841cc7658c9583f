"""Who asked for a trace's collectives: its backward pass, what comes before that, or what comes after."""

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.traces.reading.event_table import BoolColumn, Category, CommunicationArgs, EventTable, IntColumn
from dpscope.analysis.traces.steps.attribution import StepRanges
from dpscope.analysis.traces.steps.enclosing_ranges import innermost
from dpscope.analysis.traces.steps.event_kind import collective_kind, named_annotations

_NODE = "autograd::engine::evaluate_function: "
_RECORD = re.compile(r"^record_param_comms$")
_OPERATOR = re.compile(r"^c10d::")
_FUNCTIONAL = re.compile(r"^_c10d_functional::")
_RANGE = re.compile(r"^(?:nccl|gloo):")
_NO_ARGS = CommunicationArgs()
_FEW = 256  # elements: a loss, an accuracy, counts of classes; gradients of a model are more

Alike = tuple[str | None, int | None]
"""Group, and elements of the input (bytes where only these are recorded); None where not recorded."""


@dataclass(frozen=True)
class Requests:
    """How many collectives of one kind each part of the steps asked for.

    Tensor parallelism reduces activations in the forward pass and their gradients, which are as large, in the backward
    pass; gradients of parameters are reduced once a step, in the backward pass alone. So one that the backward pass asks
    for is of activations if the forward pass asks for at least half as many like it, in group and size. Where sizes are not
    recorded it is untold then. What like gradients comes right after the backward pass is of gradients too: its last
    bucket is reduced when the pass has ended.
    """

    gradients: int = 0
    activations: int = 0
    untold: int = 0
    forward: int = 0
    after: int = 0  # and unlike gradients
    large_after: int = 0  # of these, of more elements than metrics have
    seen: int = 0  # in all


def has_autograd(events: EventTable) -> bool:
    """Whether the trace shows autograd's nodes, the only evidence of a backward pass."""
    return bool((events.is_category(Category.CPU_OP) & _beginning(events, _NODE)).any())


def asked_kinds(events: EventTable) -> frozenset[str]:
    """Kinds of all `c10d` operators: gloo carries some out by others, as a reduce-scatter by an all-reduce."""
    operators = events.is_category(Category.CPU_OP) & (_matching(events, _OPERATOR) | _matching(events, _FUNCTIONAL))
    kinds = {collective_kind(events.names[code]) for code in np.unique(events.name[operators])}
    return frozenset(kind for kind in kinds if kind is not None)


def requests(events: EventTable, steps: StepRanges, kind: str) -> Requests:
    """Who asked for a trace's collectives of one kind."""
    rows = _asked_for(events, kind)
    backward, after = _places(events, steps, rows)
    by_backward, by_forward, by_rest = Counter[Alike](), Counter[Alike](), Counter[Alike]()
    for row, in_backward, is_after in zip(rows.tolist(), backward.tolist(), after.tolist(), strict=True):
        args = events.communication.get(row, _NO_ARGS)
        size = args.input_elements if args.input_elements is not None else args.input_bytes
        (by_backward if in_backward else by_rest if is_after else by_forward)[args.group, size] += 1
    mirrored = {key for key, count in by_backward.items() if 2 * by_forward[key] >= count}
    gradients = {key for key in by_backward if key not in mirrored}
    rest = {key: count for key, count in by_rest.items() if key not in gradients}
    return Requests(
        gradients=sum(by_backward[key] + by_rest[key] for key in gradients),
        activations=sum(by_backward[key] for key in mirrored if key[1] is not None),
        untold=sum(by_backward[key] for key in mirrored if key[1] is None),
        forward=sum(by_forward.values()),
        after=sum(rest.values()),
        large_after=sum(count for (_, size), count in rest.items() if size is not None and size > _FEW),
        seen=len(rows),
    )


def _places(events: EventTable, steps: StepRanges, rows: IntColumn) -> tuple[BoolColumn, BoolColumn]:
    """Which of the rows an autograd node or autograd's own thread asked for, and which come after all of their step's."""
    nodes = np.flatnonzero(events.is_category(Category.CPU_OP) & _beginning(events, _NODE))
    step_threads = np.unique(events.thread[named_annotations(events, "ProfilerStep#")])
    own_threads = np.setdiff1d(np.unique(events.thread[nodes]), step_threads)
    is_node = np.zeros(len(events), dtype=bool)
    is_node[nodes] = True
    backward = (innermost(events, rows, is_node) >= 0) | np.isin(events.thread[rows], own_threads)
    node_steps = steps.index_at(events.start_us[nodes])
    last = np.full(len(steps), np.inf)  # a step without nodes has no after
    known = node_steps >= 0
    last[np.unique(node_steps[known])] = -np.inf
    np.maximum.at(last, node_steps[known], events.end_us[nodes[known]])
    step = steps.index_at(events.start_us[rows])
    after = (step >= 0) & (events.start_us[rows] >= last[np.maximum(step, 0)]) & ~backward
    return np.asarray(backward, dtype=bool), np.asarray(after, dtype=bool)


def _asked_for(events: EventTable, kind: str) -> IntColumn:
    """One event for each: its record where records name what they record, else its operator, else its range."""
    host = events.is_category(Category.CPU_OP)
    records = np.flatnonzero(host & _matching(events, _RECORD)).tolist()
    named = [row for row in records if _recorded_kind(events, row) == kind]
    if named:
        return np.array(named, dtype=np.int64)
    functional = host & _named(events, _FUNCTIONAL, kind)
    plain = np.flatnonzero(host & _named(events, _OPERATOR, kind))
    operators = np.concatenate((np.flatnonzero(functional), plain[innermost(events, plain, functional) < 0]))
    if len(operators):
        return operators
    return np.flatnonzero(events.is_category(Category.USER_ANNOTATION) & _named(events, _RANGE, kind))


def _recorded_kind(events: EventTable, row: int) -> str | None:
    return collective_kind(events.communication.get(row, _NO_ARGS).collective_name or "")


def _named(events: EventTable, pattern: re.Pattern[str], kind: str) -> BoolColumn:
    means = np.array([collective_kind(name) == kind for name in events.names], dtype=bool)
    return _matching(events, pattern) & events.has_name(means)


def _matching(events: EventTable, pattern: re.Pattern[str]) -> BoolColumn:
    return events.has_name(np.array([bool(pattern.match(name)) for name in events.names], dtype=bool))


def _beginning(events: EventTable, prefix: str) -> BoolColumn:
    return events.has_name(np.array([name.startswith(prefix) for name in events.names], dtype=bool))
