"""Who arrives last at the collectives: who waits for whom, which rank is late, by how much, and
whether that may be chance.

Every output asks `last_rank`. It compares no clocks: of a matched collective the rank with the
shortest duration arrived last, and what the others take longer is their wait for it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.analysis.traces.reading.event_table import BoolColumn, FloatColumn, IntColumn
from dpscope.analysis.traces.reading.table import UNKNOWN, Groups, Table
from dpscope.analysis.traces.steps.intervals import reached_before
from dpscope.profiling.records.finding import counted

# the probability, were all ranks alike, from which on a late rank is not significant
MOST_CHANCE = 0.05
# bytes: buffers of a model, whose transfer time is negligible next to a wait
SMALL_BROADCAST = 1 << 20
_NOTABLE_LATENESS = 0.05  # of a step
_FEWEST_MARGINS = 3  # steps, from which on how much their margins differ is judged
_LEAST_SPREAD = 0.01  # of the mean margin: no smaller spread is believed
_NAMED = 3  # ranks that take turns, in a message


def _by_repeat(table: Table, *keys: str) -> Groups:
    """Rows grouped by the keys, in each repeat where there are several."""
    return table.group(*table.present("repeat"), *keys)


PAIR_COLUMNS = (
    "late_rank",
    "waiting_rank",
    "collectives",
    "steps",
    "wait_us",
    "wait_per_step_us",
    "wait_share",
)


def waits_by_pair(table: Table) -> Table:
    """From `match_tables`' table: a row per (late rank, waiting rank), PAIR_COLUMNS, the longest
    wait first; empty without waits.

    The last rank to arrive at a collective is the one whose duration is the transfer itself; the
    others wait for it. `wait_us` adds up, over steps, the length of the union of such waits
    (collectives that wait at the same time lose the time once), `wait_per_step_us` divides it by
    the steps in which all ranks were matched, `wait_share` by the sum of the table: of all waiting,
    exposed or behind compute. Microseconds of the
    waiting rank's clock.
    """
    matched = _matched(table)
    steps = len(matched.group("job_step"))
    waiting = _waiting(matched)
    lost_us = lost_once(waiting, ("late_rank", "rank", "step"))
    pairs = waiting.group("late_rank", "rank", in_order=True)
    first = waiting.take(pairs.first)
    wait_us = pairs.sums(lost_us)
    by_pair = Table.of(
        late_rank=first["late_rank"],
        waiting_rank=first["rank"],
        collectives=pairs.sizes,
        steps=pairs.different(waiting.group("job_step").code),
        wait_us=wait_us,
        wait_per_step_us=wait_us / max(steps, 1),
        wait_share=wait_us / wait_us.sum() if len(wait_us) else wait_us,
    )
    return by_pair.take(np.argsort(-wait_us, kind="stable"))


def late_ranks(table: Table) -> IntColumn:
    """For each row the rank that arrived last at its collective: the one whose duration is the
    transfer itself.
    """
    late = np.full(len(table), UNKNOWN)
    rows = np.flatnonzero(_is_matched(table))
    matched = table.take(rows)
    matches = _by_repeat(matched, "match")
    duration_us = matched["duration_us"]
    is_shortest = duration_us == matches.least(duration_us)[matches.code]
    shortest = np.flatnonzero(is_shortest)[::-1]
    last = np.zeros(len(matches), dtype=np.int64)
    last[matches.code[shortest]] = matched["rank"][shortest]  # of equals the first
    late[rows] = last[matches.code]
    return late


def _is_matched(table: Table) -> BoolColumn:
    if "match" not in table:
        return np.zeros(len(table), dtype=bool)
    return table.known("wait_us") & table.known("match")


def _matched(table: Table) -> Table:
    """The rows whose wait is known, each with its `late_rank` and `job_step`.

    Ranks may count their steps from different values: `job_step` is the lowest label that a
    collective's ranks give its step.
    """
    matched = table.take(_is_matched(table))
    matches = _by_repeat(matched, "match")
    lowest = matches.least(matched.real("step"))
    job_step = np.where(np.isnan(lowest), UNKNOWN, np.nan_to_num(lowest)).astype(np.int64)
    return matched.assign(late_rank=late_ranks(matched), job_step=job_step[matches.code])


def _waiting(matched: Table) -> Table:
    """The rows of `_matched` that waited for another rank."""
    return matched.take((matched["late_rank"] != matched["rank"]) & (matched["wait_us"] > 0))


def lost_once(waiting: Table, keys: Sequence[str]) -> FloatColumn:
    """The part of each wait that no earlier wait with the same keys covers; their sum is the length
    of the union.
    """
    starts = waiting["start_us"]
    ends = starts + waiting["wait_us"]
    moves = waiting.group(*keys).moved_apart(starts, ends)
    starts = starts + moves
    ends = ends + moves
    order = np.argsort(starts, kind="stable")
    covered = reached_before(ends[order])
    begins = np.maximum(starts[order], covered)
    lost = np.zeros(len(order))
    lost[order] = np.maximum(ends[order] - begins, 0.0)
    return lost


def with_broadcast_waits(collectives: Table) -> Table:
    """The collectives of whole steps, with waits for small broadcasts.

    Broadcasts have no wait by definition, since a root need not wait for others. But where one rank
    is late to a broadcast of a few bytes, the durations of the others beyond the shortest are
    waiting: there is nothing to transfer in that time. Under DDP the lateness of a rank whose
    loader is slow shows in the broadcasts of buffers, and not in the all-reduces.
    """
    small = collectives.words("kind").isin("broadcast") & collectives.known("match")
    small &= (collectives["bytes"] <= SMALL_BROADCAST) & collectives.known("bytes")
    broadcasts = collectives.take(small)
    matches = _by_repeat(broadcasts, "match")
    duration_us = broadcasts["duration_us"]
    wait_us = collectives["wait_us"].copy()
    wait_us[small] = duration_us - matches.least(duration_us)[matches.code]
    return collectives.assign(wait_us=wait_us)


def broadcast_waits_us(collectives: Table) -> float:
    """What a rank waits in small broadcasts, microseconds per step: mean over ranks and steps."""
    broadcasts = with_broadcast_waits(collectives).having("kind", "broadcast")
    waiting = _waiting(_matched(broadcasts))
    lost_us = lost_once(waiting, (*waiting.present("repeat"), "late_rank", "rank", "step"))
    return float(lost_us.sum()) / max(len(_by_repeat(collectives, "rank", "step")), 1)


@dataclass(frozen=True)
class LastRank:
    """The rank that arrives last in most steps. In each step that is one rank: the one for which
    the others lose most time.

    `others` are the other ranks that were last in a step, each with its number of steps, most
    first.
    """

    rank: int
    ranks: int
    steps: int  # in which it arrives last, out of...
    of_steps: int
    # what another rank waits for it in a step: mean over the other ranks and over steps
    lateness_us: float
    share: float = 1.0  # of all waiting, 0..1
    in_every_repeat: bool = True  # whether no other rank is last more often in any of them
    others: tuple[tuple[int, int], ...] = ()
    # `chance_of_margins`; None where the number of its steps alone can decide
    margin_chance: float | None = None

    @property
    def stands_out(self) -> bool:
        """Whether the ranks do not take turns: its part of the steps is nearer to all of them than
        to an even one.

        In no repeat may another rank be last more often.
        """
        return self.in_every_repeat and mostly_last(self.steps, self.of_steps, self.ranks)

    @property
    def chance(self) -> float:
        """That of some rank to be last in so many steps, or so evenly, if all ranks were alike."""
        if self.margin_chance is not None:
            return self.margin_chance
        return chance_of_some_rank(self.ranks, self.steps, self.of_steps)

    @property
    def significant(self) -> bool:
        return self.chance <= MOST_CHANCE

    @property
    def doubt(self) -> str | None:
        """Why its being last may be chance; None if that is improbable."""
        return None if self.significant else f"{self.counts}: too few to exclude chance"

    @property
    def counts(self) -> str:
        return f"last in {self.steps} of {counted(self.of_steps, 'traced step')}"

    @property
    def turns(self) -> str:
        """In how many steps it and the next ranks arrive last, in brackets after a sentence about
        being late.
        """
        named = [f"rank {self.rank} in {self.steps} of {counted(self.of_steps, 'step')}"]
        named += [f"rank {rank} in {steps}" for rank, steps in self.others[: _NAMED - 1]]
        return ", ".join(named)


def mostly_last(times: int, of_times: int, ranks: int) -> bool:
    """Whether a rank that is last in so many steps or collectives does not merely take its turn: its
    part is nearer to all of them than to an even one (of two ranks 75%, of eight 56%).
    """
    return times >= (1 + 1 / ranks) / 2 * of_times


def chance_of_some_rank(ranks: int, steps: int, of_steps: int) -> float:
    """Probability that some rank of `ranks` is last in at least `steps` of `of_steps` steps, if all
    are equally often last.

    At most ranks x P(Binomial(of_steps, 1/ranks) >= steps), the bound of Boole's inequality; exact
    if no two ranks can both be last so often. Assumption: steps are independent.
    """
    share = 1 / ranks
    tail = sum(
        math.comb(of_steps, count) * share**count * (1 - share) ** (of_steps - count)
        for count in range(steps, of_steps + 1)
    )
    return min(1.0, ranks * tail)


def chance_of_margins(margins_us: FloatColumn, ranks: int) -> float:
    """Probability that some rank of `ranks` is late by so much, and so evenly, if all are alike.

    A margin is what a rank costs each other one in a step, minus what another one costs on average.
    One-sided t-test of their mean, times `ranks` (Boole's inequality). Assumption: margins of steps
    are independent and normal. 1 with fewer than _FEWEST_MARGINS steps.
    """
    steps = len(margins_us)
    if steps < _FEWEST_MARGINS:
        return 1.0
    from scipy.special import stdtr  # here, since its import takes 0.1 s

    mean_us = float(margins_us.mean())
    spread_us = max(float(margins_us.std(ddof=1)), _LEAST_SPREAD * abs(mean_us))
    t = mean_us / spread_us * math.sqrt(steps) if spread_us else 0.0
    return min(1.0, ranks * float(stdtr(steps - 1, -t)))


def last_rank(collectives: Table) -> LastRank | None:
    """From the matched collectives of whole steps; None if no rank waited for another.

    The sign test behind it counts steps, not collectives, since what delays a rank may delay it at
    all collectives of a step. Its chance falls with each further step in which the same rank is
    last.
    """
    matched, lost = _lost_in_steps(collectives)
    return _most_often_last(matched, lost, len(matched.group("rank"))) if len(lost) else None


def last_place(collectives: Table, place_of: Mapping[int, int]) -> LastRank | None:
    """The same of places, such as hosts, by the number of each rank's place: its `rank` and
    `others` are places.
    """
    matched, lost = _lost_in_steps(collectives)
    if not len(lost):
        return None
    places = [place_of.get(rank, UNKNOWN) for rank in lost["late_rank"].tolist()]
    return _most_often_last(matched, lost.assign(late_rank=places), len(set(place_of.values())))


def _lost_in_steps(collectives: Table) -> tuple[Table, Table]:
    """The matched collectives, and a row per step and late rank: `wait_us` is what all other ranks
    lost to it.
    """
    in_steps = collectives.with_known("step")
    matched = _matched(with_broadcast_waits(in_steps))
    waiting = _waiting(matched)
    waiting = waiting.assign(
        wait_us=lost_once(waiting, (*waiting.present("repeat"), "late_rank", "rank", "step"))
    )
    caused = _by_repeat(waiting, "job_step", "late_rank")
    return matched, waiting.take(caused.first).assign(wait_us=caused.sums(waiting["wait_us"]))


def _most_often_last(matched: Table, lost: Table, ranks: int) -> LastRank:
    """From the rows of `_lost_in_steps`: of each step the late rank to which most was lost is the
    last one.
    """
    in_steps = _by_repeat(lost, "job_step", "late_rank")
    lost = lost.take(in_steps.first).assign(wait_us=in_steps.sums(lost["wait_us"]))
    steps = _by_repeat(lost, "job_step")
    order = np.lexsort((-lost["wait_us"], steps.code))
    first_of_step = np.searchsorted(steps.code[order], np.arange(len(steps)))
    # counted below: 1 for each step
    last = lost.take(order[first_of_step]).assign(wait_us=1.0)
    lost_us, times = _sums(lost), _sums(last)
    rank, *others = sorted(times, key=lambda one: (-times[one], -round(lost_us[one]), one))
    in_every_repeat = True
    for rows in _by_repeat(last).rows():
        times_here = _sums(last.take(rows))
        in_every_repeat &= times_here.get(rank, 0.0) == max(times_here.values(), default=0.0)
    of_steps = len(_by_repeat(matched, "job_step"))
    margin_chance = None
    # where even a rank that is last in all steps might be so by chance
    if chance_of_some_rank(ranks, of_steps, of_steps) > MOST_CHANCE:
        of_others = -1.0 / max(ranks - 1, 1)
        signs = np.where(lost["late_rank"] == rank, 1.0, of_others)
        by_step_us = steps.sums(signs * lost["wait_us"])
        # those in which nobody waited have no row
        margins_us = np.zeros(of_steps)
        margins_us[: len(steps)] = by_step_us
        margin_chance = chance_of_margins(margins_us, ranks)
    return LastRank(
        rank=rank,
        ranks=ranks,
        steps=int(times[rank]),
        of_steps=of_steps,
        lateness_us=lost_us[rank] / of_steps / max(ranks - 1, 1),
        share=lost_us[rank] / sum(lost_us.values()),
        in_every_repeat=in_every_repeat,
        others=tuple((other, int(times[other])) for other in others),
        margin_chance=margin_chance,
    )


def _sums(lost: Table) -> dict[int, float]:
    """`wait_us` by late rank."""
    late = lost.group("late_rank")
    ranks = lost["late_rank"][late.first].tolist()
    return dict(zip(ranks, late.sums(lost["wait_us"]).tolist(), strict=True))


@dataclass(frozen=True)
class LateRank:
    """What the rank that arrives last costs: means over whole traced steps, microseconds.

    `wait_us` is the exposed waiting for it as a mean over all ranks, itself included, with
    broadcasts if it is significantly late; `share` is its part of all exposed waiting.
    `lateness_us` is what each other rank loses, `exposed_us` is what those ranks expose.
    `idle_us` is its own idle time, `unlaunched_us` the part of it in which nothing was launched
    for its device; `compute_us` is its own compute, `others_compute_us` that of each other rank.
    None is unknown.
    """

    last: LastRank
    wait_us: float
    share: float
    lateness_us: float
    exposed_us: float
    idle_us: float | None = None
    unlaunched_us: float | None = None
    compute_us: float | None = None
    others_compute_us: float | None = None

    @property
    def computes_longer(self) -> bool:
        """Whether longer compute explains most of its lateness."""
        if self.compute_us is None or self.others_compute_us is None:
            return False
        return self.compute_us - self.others_compute_us > self.lateness_us / 2

    @property
    def rank(self) -> int:
        return self.last.rank

    def is_notable(self, step_us: float) -> bool:
        """Whether each other rank loses a notable part of its step to it."""
        return self.lateness_us >= _NOTABLE_LATENESS * step_us

    @property
    def significant(self) -> bool:
        return self.last.significant


def late_rank(windows: Table, last: LastRank | None, ledger: Ledger | None) -> LateRank | None:
    """The cost of the rank that stands out; None if ranks take turns, or if waiting is unknown.

    `windows` are the whole traced steps, `ledger` is theirs.
    """
    if last is None or not last.stands_out or ledger is None or not ledger.is_split:
        return None
    is_last = windows["rank"] == last.rank
    of_rank, of_others = windows.take(is_last), windows.take(~is_last)
    if not len(of_others):
        return None
    wait_us = ledger.wait_by_rank_us.get(last.rank, 0.0)
    total_us = ledger.exposed_wait_us or 0.0
    # Broadcasts have no wait by definition, but with a rank that is late their exposed time is
    # waiting for it.
    broadcasts_us = ledger.other_by_kind_us.get("broadcast", 0.0) if last.significant else 0.0
    own_us = wait_us + broadcasts_us
    return LateRank(
        last=last,
        wait_us=own_us,
        share=wait_us / total_us if total_us else 1.0,
        lateness_us=own_us * len(windows) / len(of_others),
        exposed_us=of_others.mean("exposed_us") or 0.0,
        idle_us=of_rank.mean("idle_us"),
        unlaunched_us=of_rank.mean("unlaunched_us"),
        compute_us=of_rank.mean("compute_us"),
        others_compute_us=of_others.mean("compute_us"),
    )
