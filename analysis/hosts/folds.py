"""Many ranks told in few numbers: medians and ends over ranks, waiting folded by host, local rank and switch."""

from dataclasses import dataclass

import numpy as np

from dpscope.analysis.traces.ranks.ledger import whole_steps
from dpscope.analysis.traces.ranks.trace_analysis import TraceAnalysis
from dpscope.analysis.traces.reading.event_table import FloatColumn
from dpscope.analysis.traces.reading.table import Table

QUANTITIES = (
    "step_us", "compute_us", "communication_us", "exposed_us", "wait_us", "exposed_wait_us", "idle_us", "lateness_us",
)  # fmt: skip
"""Means over a rank's whole steps; `lateness_us` is what another rank waits for it in a step, mean over the others."""

FOLDS = ("host", "local_rank", "switch")
_FAR = 6.0  # median absolute deviations above the median, from which on a rank stands out


@dataclass(frozen=True)
class RankSpread:
    """One quantity over ranks, microseconds; `far` counts the ranks above the median by _FAR median absolute deviations."""

    quantity: str
    ranks: int
    median_us: float
    low_us: float  # 5%
    high_us: float  # 95%
    worst_us: float
    worst_rank: int
    far: int


def rank_means(analysis: TraceAnalysis) -> Table:
    """`rank` and QUANTITIES of each known rank: means over whole windows, or all where no other was traced."""
    steps = analysis.tables.steps_with_waits
    chosen = whole_steps(steps.take(steps.known("rank")))
    ranks = chosen.group("rank", in_order=True)
    names = [name for name in QUANTITIES if name in chosen]
    means = chosen.take(ranks.first).select(("rank",)).assign(**{name: ranks.means(chosen[name]) for name in names})
    if not analysis.tables.collectives.known("wait_us").any():
        return means.assign(lateness_us=None)
    lateness_us = _of_late_ranks(analysis.tables.waits_caused, "wait_per_step_us", means)
    return means.assign(lateness_us=lateness_us / max(len(means) - 1, 1))


def caused_shares(caused: Table, ranks: Table) -> FloatColumn:
    """For each row of `ranks` the share of all waiting that is for its rank."""
    return _of_late_ranks(caused, "share", ranks)


def _of_late_ranks(caused: Table, column: str, ranks: Table) -> FloatColumn:
    late = caused.group("late_rank")
    found = Table.of(rank=caused["late_rank"][late.first])
    return np.append(late.sums(caused[column]), 0.0)[ranks.places_in(found, ("rank",))]


def spreads(means: Table) -> list[RankSpread]:
    """Of `rank_means`: each quantity that is known of a rank."""
    found = []
    for name in QUANTITIES:
        known = means.take(means.known(name))
        if not len(known):
            continue
        values = known[name]
        median = float(np.median(values))
        far = values > median + _FAR * float(np.median(np.abs(values - median)))
        low, high = np.quantile(values, (0.05, 0.95))
        found.append(
            RankSpread(
                quantity=name,
                ranks=len(values),
                median_us=median,
                low_us=float(low),
                high_us=float(high),
                worst_us=float(values.max()),
                worst_rank=int(known["rank"][values.argmax()]),
                far=int(far.sum()),
            )
        )
    return found


def fold(analysis: TraceAnalysis, means: Table, places: Table, by: str) -> Table:
    """Waiting by one of FOLDS, a row each, who causes most first: `ranks`, `wait_us`, `caused_share`.

    `wait_us` is the mean of its ranks' wait in a step, `caused_share` the part of all waiting that is for its ranks, 0..1.
    Empty where the place of no rank is known, or nobody waited.
    """
    known, caused = places.take(places.known(by)), analysis.tables.waits_caused
    if not len(caused):
        known = known.take(np.zeros(len(known), dtype=bool))
    groups = known.group(by, in_order=True)
    wait_us = np.append(means["wait_us"], np.nan)[known.places_in(means, ("rank",))]
    found = known.take(groups.first).select((by,))
    found = found.assign(
        ranks=groups.sizes, wait_us=groups.means(wait_us), caused_share=groups.sums(caused_shares(caused, known))
    )
    return found.take(np.argsort(-found["caused_share"], kind="stable"))
