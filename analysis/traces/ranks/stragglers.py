"""Which rank made which other rank wait, and how long; the rank that most waiting was for."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.traces.reading.event_table import FloatColumn, IntColumn
from dpscope.analysis.traces.reading.table import UNKNOWN, Table

COLUMNS = ("late_rank", "waiting_rank", "collectives", "steps", "wait_us", "wait_per_step_us", "share")


def waits_by_pair(table: Table) -> Table:
    """From `match_tables`' table: a row per (late rank, waiting rank), COLUMNS, the longest wait first.

    The last rank to arrive at a collective is the one whose duration is the transfer itself; the others wait for it. `wait_us`
    adds up, over steps, the length of the union of such waits (collectives that wait at the same time lose the time once),
    `wait_per_step_us` divides it by the steps in which all ranks were matched, `share` by the sum of the table. Empty if nothing
    is matched or no rank waited. Microseconds of the waiting rank's clock.
    """
    waiting, steps = _waiting(table)
    lost_us = lost_once(waiting, ("late_rank", "rank", "step"))
    pairs = waiting.group("late_rank", "rank", in_order=True)
    first, wait_us = waiting.take(pairs.first), pairs.sums(lost_us)
    found = Table.of(
        late_rank=first["late_rank"],
        waiting_rank=first["rank"],
        collectives=pairs.sizes,
        steps=pairs.different(waiting.group("job_step").code),
        wait_us=wait_us,
        wait_per_step_us=wait_us / max(steps, 1),
        share=wait_us / wait_us.sum() if len(wait_us) else wait_us,
    )
    return found.take(np.argsort(-wait_us, kind="stable"))


def late_ranks(table: Table) -> IntColumn:
    """For each row the rank that arrived last at its collective: the one whose duration is the transfer itself."""
    late = np.full(len(table), UNKNOWN)
    known = np.flatnonzero(table.known("wait_us") & table.known("match"))
    own = table.take(known)
    matches = own.group("match")
    order = np.lexsort((own["duration_us"], matches.code))
    shortest = order[np.searchsorted(matches.code[order], np.arange(len(matches)))]
    late[known] = np.asarray(own["rank"])[shortest][matches.code]
    return late


@dataclass(frozen=True)
class Straggler:
    """The rank that most waiting was for, from the rows of `waits_by_pair` that name it late."""

    rank: int
    lateness_us: float  # what another rank waits for it in a step: mean over the other ranks and over steps
    share: float  # of all waiting, 0..1: the sum of its rows' shares
    steps: int  # in which another rank waited for it, out of...
    of_steps: int


def find_straggler(table: Table) -> Straggler | None:
    """The rank that made the others wait longest; None if no rank waited or nothing is matched in a step."""
    in_steps = table.take(table.known("step")) if len(table) else table
    caused = waits_by_pair(in_steps)
    if not len(caused):
        return None
    late = caused.group("late_rank", in_order=True)
    rank = int(caused["late_rank"][late.first[late.sums(caused["share"]).argmax()]])
    own = caused.take(caused["late_rank"] == rank)
    waiting, of_steps = _waiting(in_steps)
    return Straggler(
        rank=rank,
        lateness_us=float(own["wait_per_step_us"].sum()) / (len(in_steps.group("rank")) - 1),
        share=float(own["share"].sum()),
        steps=len(waiting.take(waiting["late_rank"] == rank).group("job_step")),
        of_steps=of_steps,
    )


def _waiting(table: Table) -> tuple[Table, int]:
    """The rows that waited, each with its `late_rank` and `job_step`, and in how many steps collectives were matched.

    Step numbers are labels of a rank, which ranks may count from different values: `job_step` is the lowest label that the ranks
    of a collective give its step.
    """
    known = table.take(table.known("wait_us") & table.known("match"))
    matches, none = known.group("match"), np.iinfo(np.int64).max
    lowest = np.full(len(matches), none)
    np.minimum.at(lowest, matches.code, np.where(known.known("step"), known["step"], none))
    lowest = np.where(lowest == none, UNKNOWN, lowest)
    waiting = known.assign(late_rank=late_ranks(known), job_step=lowest[matches.code])
    waited = (waiting["late_rank"] != waiting["rank"]) & (waiting["wait_us"] > 0)
    return waiting.take(waited), len(waiting.group("job_step"))


def lost_once(waiting: Table, keys: Sequence[str]) -> FloatColumn:
    """The part of each wait that no earlier wait with the same keys covers; their sum is the length of the union."""
    starts, ends = waiting["start_us"], waiting["start_us"] + waiting["wait_us"]
    lost = np.zeros(len(starts))
    if not len(starts):
        return lost
    groups = waiting.group(*keys)
    origin = groups.least(starts)[groups.code]  # each group has a stretch of one axis to itself, so that none overlap
    moved = groups.code * (float((ends - origin).max()) + 1.0) - origin
    order = np.argsort(starts + moved, kind="stable")
    begins, ends = (starts + moved)[order], (ends + moved)[order]
    covered = np.concatenate(([-np.inf], np.maximum.accumulate(ends)[:-1]))
    lost[order] = np.maximum(ends - np.maximum(begins, covered), 0.0)
    return lost
