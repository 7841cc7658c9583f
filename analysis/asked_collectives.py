"""The collectives that a program asked for, by operators and records on its threads, and whether its backward pass did."""

import re
from collections import Counter

import numpy as np

from dpscope.analysis.traces.reading.event_table import BoolColumn, Category, CommunicationArgs, EventTable, IntColumn
from dpscope.analysis.traces.steps.enclosing_ranges import innermost
from dpscope.analysis.traces.steps.event_kind import collective_kind, named_annotations

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
