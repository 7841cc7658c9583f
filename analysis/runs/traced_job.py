"""A job known only by its traces: its size and strategy, and the rank that it waits for, unless that may be chance."""

import math
from dataclasses import dataclass, field
from typing import Literal

from dpscope.analysis.traces.ranks.exposed_parts import Straggler, find_straggler, waits_by_pair
from dpscope.analysis.traces.ranks.parallelism import traced_strategy
from dpscope.analysis.traces.ranks.trace_analysis import TraceAnalysis
from dpscope.analysis.traces.reading.table import Groups, Table
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.run import CellOptions
from dpscope.profiling.records.strategies import CellStrategy, StrategyTraits, traits_of

LEAST_SHARE = 0.8  # of all waiting, caused by one rank (of two, one causes half of it by chance)...
LEAST_STEPS = 0.9  # ...last in nearly every step...
LEAST_LATENESS = 0.05  # ...late by this share of the step...
MOST_CHANCE = 0.05  # ...and this improbable if all ranks were alike
SMALL_BROADCAST = 1 << 20  # bytes: buffers of a model, whose transfer time is negligible next to a wait


def with_broadcast_waits(collectives: Table) -> Table:
    """The collectives of whole steps, with waits for small broadcasts.

    Broadcasts have no wait by definition, since a root need not wait for others. But where one rank is late to a broadcast of
    a few bytes, the durations of the others beyond the shortest are waiting: there is nothing to transfer in that time. Under DDP
    the lateness of a rank whose loader is slow shows in the broadcasts of buffers, and not in the all-reduces.
    """
    small = collectives.words("kind").isin("broadcast") & collectives.known("match") if len(collectives) else None
    if small is not None:
        small &= (collectives["bytes"] <= SMALL_BROADCAST) & collectives.known("bytes")
    if small is None or not small.any():
        return collectives
    broadcasts = collectives.take(small)
    groups = _by_repeat(broadcasts, "match")
    wait_us = collectives["wait_us"].copy()
    wait_us[small] = broadcasts["duration_us"] - groups.least(broadcasts["duration_us"])[groups.code]
    return collectives.assign(wait_us=wait_us)


def _by_repeat(table: Table, *keys: str) -> Groups:
    """Rows grouped by the keys, in each repeat where there are several."""
    return table.group(*(("repeat",) if "repeat" in table else ()), *keys)


def straggler_of(collectives: Table, step_us: float) -> Straggler | None:
    """The straggler, from the rows of `with_broadcast_waits` and the mean traced step; None if no rank stands out everywhere."""
    found = [find_straggler(collectives.take(rows)) for rows in _by_repeat(collectives).rows()]
    named = [
        one
        for one in found
        if one is not None
        and one.shares[0] >= LEAST_SHARE
        and one.steps >= LEAST_STEPS * one.of_steps
        and one.lateness_us >= LEAST_LATENESS * step_us
    ]
    if not named or len(named) < len(found) or len({one.rank for one in named}) > 1:
        return None
    steps, of_steps = sum(one.steps for one in named), sum(one.of_steps for one in named)
    chance = chance_of_some_rank(len(collectives.group("rank")), steps, of_steps)
    lateness_us, shares = sum(one.lateness_us for one in named) / len(named), tuple(one.shares[0] for one in named)
    return Straggler(named[0].rank, lateness_us, shares, steps, of_steps, chance) if chance <= MOST_CHANCE else None


def broadcast_waits_us(collectives: Table) -> float:
    """What a rank waits in small broadcasts, microseconds per step, from the rows of `with_broadcast_waits`."""
    broadcasts = collectives.take(collectives.words("kind").isin("broadcast")) if len(collectives) else collectives
    if not len(broadcasts):
        return 0.0
    lost_us = sum(waits_by_pair(broadcasts.take(rows))["wait_us"].sum() for rows in _by_repeat(broadcasts).rows())
    return float(lost_us) / len(_by_repeat(collectives, "rank", "step"))


def chance_of_some_rank(ranks: int, steps: int, of_steps: int) -> float:
    """Probability that some rank of `ranks` is last in at least `steps` of `of_steps` steps, if all are equally often last.

    At most ranks x P(Binomial(of_steps, 1/ranks) >= steps), the bound of Boole's inequality; exact if no two ranks can both
    be last so often. Assumption: steps are independent.
    """
    share = 1 / ranks
    tail = sum(
        math.comb(of_steps, count) * share**count * (1 - share) ** (of_steps - count)
        for count in range(steps, of_steps + 1)
    )
    return min(1.0, ranks * tail)


JobStrategy = CellStrategy | Literal["other"]


@dataclass(frozen=True)
class TracedJob:
    """A job known only by its traces; `strategy` is "other" if they show none of dpscope's strategies.

    `devices` and `processes` count the whole job, also where traces of some ranks are missing. The batch size is unknown: check
    `knows_batch` before reading it.
    """

    name: str
    strategy: JobStrategy
    devices: int
    processes: int
    options: CellOptions = field(default_factory=CellOptions)
    variant: str = ""
    device_name: str | None = field(default=None, compare=False)

    @property
    def traits(self) -> StrategyTraits:
        return traits_of(self.strategy)

    @property
    def batch_size(self) -> int:
        raise AssertionError("traces do not record the batch")

    @property
    def global_batch_size(self) -> int:
        raise AssertionError("traces do not record the batch")


def traced_job(analysis: TraceAnalysis) -> TracedJob:
    """Ranks and devices as the traces show them; a trace that shows neither is of one process."""
    evidence, collectives = [one.parallelism for one in analysis.summaries], analysis.tables.collectives
    ranks = [one.rank for one in analysis.summaries if one.rank is not None]
    sizes = [one.world_size for one in evidence if one.world_size is not None]
    groups, read = collectives["group_size"].tolist() if len(collectives) else [], len(evidence)
    processes = max([read, *sizes, *(rank + 1 for rank in ranks), *groups])
    ranks_read = counted(read, "rank") if processes == read else f"{read} of {counted(processes, 'rank')}"
    return TracedJob(
        name=f"traces of {ranks_read}" if processes > 1 else "trace of one process",
        strategy=traced_strategy(evidence, collectives),
        devices=max(processes, *(one.devices for one in evidence)),
        processes=processes,
        device_name=next((one.device_name for one in analysis.summaries if one.device_name is not None), None),
    )
