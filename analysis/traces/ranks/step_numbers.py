"""Step numbers and step times of a job's ranks: whether ranks number and time the same steps alike."""

from collections.abc import Hashable, Mapping

import pandas as pd

from dpscope.analysis.text.units import as_ranges, show_time
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.trace_codes import TraceCode

FAR_APART = 100.0  # ratio of two ranks' median steps: ranks of one job wait for each other, so their units differ
_NAMED = 8  # ranks in a message

_Series = list[list[tuple[Hashable, Hashable]]]


def number_steps_alike(table: pd.DataFrame) -> tuple["pd.Series[int]", list[Finding]]:
    """The step of each collective as the first rank numbers it, and a finding where ranks number their steps differently.

    Step numbers are labels of a rank. A rank that shares no number with the reference but runs the same series of collectives
    (kinds, sizes) in as many steps is given the reference's numbers, in order; any other keeps its own.
    """
    steps = table["step"]
    ends = table.groupby("rank", dropna=False)["step"].agg(["min", "max"])
    if len(ends) < 2 or len(ends.drop_duplicates()) == 1:
        return steps, []
    numbered = table[steps.notna()]
    of_rank = dict(iter(numbered.groupby("rank")))
    labels = {rank: sorted(own["step"].unique().tolist()) for rank, own in of_rank.items()}
    if len(labels) < 2:
        return steps, []
    reference = next(iter(labels))
    expected = _series(of_rank[reference])
    steps, changed = steps.copy(), {}
    for rank, own in of_rank.items():
        same_count = len(labels[rank]) == len(labels[reference])
        if same_count and not set(labels[rank]) & set(labels[reference]) and _series(own) == expected:
            number = dict(zip(labels[rank], labels[reference], strict=True))
            steps.loc[own.index] = own["step"].map(number).astype(steps.dtype)
            changed[rank] = labels[rank]
    if not changed:
        return steps, []
    return steps, [_numbered_differently({reference: labels[reference]} | changed)]


def _series(own: pd.DataFrame) -> _Series:
    """Kinds and sizes of a rank's collectives, step by step; an all-to-all may send another amount on each rank."""
    sizes = own["bytes"].where(~own["kind"].eq("all_to_all").fillna(False)).fillna(-1)
    pairs = pd.Series(list(zip(own["kind"].fillna(""), sizes, strict=True)), index=own.index)
    return [step.tolist() for _, step in pairs.groupby(own["step"], sort=True)]


def _numbered_differently(labels: Mapping[Hashable, list[int]]) -> Finding:
    named = [f"rank {rank} {as_ranges(numbers)}" for rank, numbers in list(labels.items())[:_NAMED]]
    more = f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
    return TraceCode.STEPS_NUMBERED_DIFFERENTLY.finding(
        f"the ranks number their steps differently: {', '.join(named)}{more}; their series of collectives are equal, so "
        "steps were matched in order"
    )


def step_times_apart(steps: pd.DataFrame) -> list[Finding]:
    """An error where median steps of ranks are FAR_APART; `steps` are rows of `step_breakdown`."""
    marked = steps[steps["step"].notna() & steps["step_us"].notna()]
    if marked.empty:
        return []
    medians = marked.groupby("rank")["step_us"].median().astype(float)
    if len(medians) < 2 or medians.max() <= FAR_APART * medians.min():
        return []
    typical = float(medians.median())
    far = medians[(medians > FAR_APART**0.5 * typical) | (medians < typical / FAR_APART**0.5)]
    named = ", ".join(f"rank {rank} {show_time(float(value))}" for rank, value in list(far.items())[:_NAMED])
    return [
        TraceCode.STEP_TIMES_APART.finding(
            f"steps of ranks of one job are more than {FAR_APART:.0f}x apart: {named}, against a median of {show_time(typical)}; "
            "no waiting and no cost is given"
        )
    ]
