"""The rank that a cell waits for: named only where chance does not name one as easily."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from dpscope.analysis.runs.run_data import CellData
from dpscope.analysis.text.units import show_time
from dpscope.analysis.traces.ranks.stragglers import Straggler, find_straggler, waits_caused
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run_codes import RunCode

LEAST_SHARE = 0.8  # of all waiting, caused by one rank (of two, one causes half of it by chance)...
LEAST_STEPS = 0.9  # ...last in nearly every step...
LEAST_LATENESS = 0.05  # ...and of the step...
MOST_CHANCE = 0.05  # ...and this improbable if all ranks were alike
SMALL_BROADCAST = 1 << 20  # bytes: buffers of a model, whose transfer takes no time beside a wait


@dataclass(frozen=True)
class CellStraggler:
    """The straggler of every repeat; `lateness_us` a step, mean over the other ranks and steps.

    `chance` is the probability that ranks which are late alike often would show some rank last in so many of the steps.
    """

    rank: int
    lateness_us: float
    steps: int
    of_steps: int
    shares: tuple[float, ...]  # of all waiting, by repeat
    chance: float


def straggler_of(data: CellData) -> CellStraggler | None:
    """A rank that most waiting is for, in every repeat; ranks that take turns being late are noise, no straggler."""
    if data.collectives.empty or data.cell.traits.one_process:
        return None
    windows = data.whole_windows()
    if windows.empty:
        return None
    least_us = LEAST_LATENESS * float(windows["step_us"].mean())
    in_whole_steps = _in_whole_steps(data)
    found = [find_straggler(table) for _, table in in_whole_steps.groupby("repeat")]
    named = [one for one in found if one is not None and _stands_out(one, least_us)]
    if not named or len(named) < len(found) or len({one.rank for one in named}) > 1:
        return None
    steps, of_steps = sum(one.steps for one in named), sum(one.of_steps for one in named)
    chance = chance_of_some_rank(int(in_whole_steps["rank"].nunique()), steps, of_steps)
    if chance > MOST_CHANCE:
        return None
    return CellStraggler(
        rank=named[0].rank,
        lateness_us=sum(one.lateness_us for one in named) / len(named),
        steps=steps,
        of_steps=of_steps,
        shares=tuple(one.share for one in named),
        chance=chance,
    )


def _in_whole_steps(data: CellData) -> pd.DataFrame:
    """The collectives of whole steps, small broadcasts among them with their waits.

    Broadcasts have no wait by definition, since a root need not wait for anybody. But where one rank is late to a broadcast of
    a few bytes, the others' durations beyond the shortest are waiting: there is nothing to transfer in that time. Under DDP
    the lateness of a rank whose loader is slow goes into the buffers' broadcasts, and its all-reduces show none of it.
    """
    steps = data.whole_windows()[["repeat", "rank", "step"]].drop_duplicates()
    table = data.collectives.merge(steps, how="inner")
    small = (table["kind"] == "broadcast") & table["match"].notna() & (table["bytes"] <= SMALL_BROADCAST).fillna(False)
    if not small.any():
        return table
    shortest = table[small].groupby(["repeat", "match"])["duration_us"].transform("min")
    table.loc[small, "wait_us"] = table.loc[small, "duration_us"].astype(float) - shortest.astype(float)
    return table


def waits_in_broadcasts_us(data: CellData) -> float:
    """What a rank waits for others in small broadcasts, microseconds a step: mean over ranks and steps of those side by side."""
    table = _in_whole_steps(data)
    steps = table.groupby(["repeat", "rank", "step"]).ngroups
    broadcasts = table[table["kind"] == "broadcast"]
    if broadcasts.empty or not steps:
        return 0.0
    lost = [float(waits_caused(one)["wait_us"].fillna(0.0).sum()) for _, one in broadcasts.groupby("repeat")]
    return sum(lost) / steps


def _stands_out(one: Straggler, least_us: float) -> bool:
    often = one.steps >= LEAST_STEPS * one.of_steps
    return one.share >= LEAST_SHARE and often and one.lateness_us >= least_us


def chance_of_some_rank(ranks: int, steps: int, of_steps: int) -> float:
    """Probability that some rank of `ranks` is last in at least `steps` of `of_steps` steps, if each is last alike often.

    At most ranks x P(Binomial(of_steps, 1/ranks) >= steps), the bound of Boole's inequality; exact where no two ranks can both
    be last so often. Assumed: steps are independent.
    """
    share = 1 / ranks
    tail = sum(
        math.comb(of_steps, count) * share**count * (1 - share) ** (of_steps - count)
        for count in range(steps, of_steps + 1)
    )
    return min(1.0, ranks * tail)


def straggler_finding(data: CellData) -> list[Finding]:
    """A warning that names the cell's straggler; empty where there is none."""
    named = straggler_of(data)
    if named is None:
        return []
    return [
        RunCode.STRAGGLER.finding(
            f"{data.cell.name}: rank {named.rank} is the straggler: the others wait for it in {named.steps} of "
            f"{named.of_steps} traced steps, {show_time(named.lateness_us)} a step (their mean), {_of_all(named.shares)}; "
            f"chance alone would single out some rank in {named.chance:.1g} of such runs",
            f"see what rank {named.rank} does before its first collective: data, other load, a slower device",
        )
    ]


def _of_all(shares: Sequence[float]) -> str:
    """The part of all waiting that every repeat shows, such as ``at least 93% of all waiting in each repeat``."""
    least = f"{min(shares):.0%}"
    if least == "100%":
        return "all of the waiting"
    return f"{least} of all waiting" if len(shares) == 1 else f"at least {least} of all waiting in each repeat"
