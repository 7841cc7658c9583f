"""Step numbers and step times of a job's ranks: whether ranks number and time the same steps alike."""

from collections.abc import Mapping

import numpy as np

from dpscope.analysis.text.units import as_ranges, show_time
from dpscope.analysis.traces.reading.event_table import IntColumn
from dpscope.analysis.traces.reading.table import UNKNOWN, Table
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.trace_codes import TraceCode

FAR_APART = 100.0  # ratio of two ranks' median steps: ranks of one job wait for each other, so their units differ
_NAMED = 8  # ranks in a message

_Series = list[list[tuple[str | None, int]]]


def number_steps_alike(table: Table) -> tuple[IntColumn, list[Finding]]:
    """The step of each collective as the first rank numbers it, and a finding where ranks number their steps differently.

    Step numbers are labels of a rank. A rank that shares no number with the reference but runs the same series of collectives
    (kinds, sizes) in as many steps is given the reference's numbers, in order; any other keeps its own.
    """
    steps = table["step"]
    ranks, numbers = table.group("rank"), table.real("step")
    ends = Table.of(first_us=ranks.least(numbers), last_us=ranks.most(numbers))
    if len(ends) < 2 or len(ends.group("first_us", "last_us")) == 1:
        return steps, []
    numbered = np.flatnonzero(table.known("step") & table.known("rank"))
    own = table.take(numbered)
    of_rank = {int(own["rank"][rows[0]]): rows for rows in own.group("rank", in_order=True).rows()}
    labels = {rank: np.unique(own["step"][rows]).tolist() for rank, rows in of_rank.items()}
    if len(labels) < 2:
        return steps, []
    reference = next(iter(labels))
    expected = _series(own.take(of_rank[reference]))
    steps, changed = steps.copy(), {}
    for rank, rows in of_rank.items():
        same_count = len(labels[rank]) == len(labels[reference])
        if same_count and not set(labels[rank]) & set(labels[reference]) and _series(own.take(rows)) == expected:
            number = np.array(labels[reference], dtype=np.int64)
            steps[numbered[rows]] = number[np.searchsorted(labels[rank], own["step"][rows])]
            changed[rank] = labels[rank]
    if not changed:
        return steps, []
    return steps, [_numbered_differently({reference: labels[reference]} | changed)]


def _series(own: Table) -> _Series:
    """Kinds and sizes of a rank's collectives, step by step; an all-to-all may send another amount on each rank."""
    sizes = np.where(own["kind"] == "all_to_all", UNKNOWN, own["bytes"]).tolist()
    pairs = list(zip(own["kind"].tolist(), sizes, strict=True))
    return [[pairs[row] for row in rows] for rows in own.group("step", in_order=True).rows()]


def _numbered_differently(labels: Mapping[int, list[int]]) -> Finding:
    named = [f"rank {rank} {as_ranges(numbers)}" for rank, numbers in list(labels.items())[:_NAMED]]
    more = f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
    return TraceCode.STEPS_NUMBERED_DIFFERENTLY.finding(
        f"the ranks number their steps differently: {', '.join(named)}{more}; their series of collectives are equal, so "
        "steps were matched in order"
    )


def step_times_apart(steps: Table) -> list[Finding]:
    """An error where median steps of ranks are FAR_APART; `steps` are rows of `step_table`."""
    marked = steps.take(steps.known("step") & steps.known("step_us") & steps.known("rank"))
    ranks = marked.group("rank", in_order=True)
    medians = {int(marked["rank"][rows[0]]): float(np.median(marked["step_us"][rows])) for rows in ranks.rows()}
    if len(medians) < 2 or max(medians.values()) <= FAR_APART * min(medians.values()):
        return []
    typical = float(np.median(list(medians.values())))
    limits = typical / FAR_APART**0.5, typical * FAR_APART**0.5
    far = {rank: median for rank, median in medians.items() if not limits[0] <= median <= limits[1]}
    named = ", ".join(f"rank {rank} {show_time(value)}" for rank, value in list(far.items())[:_NAMED])
    return [
        TraceCode.STEP_TIMES_APART.finding(
            f"steps of ranks of one job are more than {FAR_APART:.0f}x apart: {named}, against a median of {show_time(typical)}; "
            "no waiting and no cost is given"
        )
    ]
