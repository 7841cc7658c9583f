"""The rank that a job waits for: named if it is significant, or if too few steps were traced for a test."""

from dataclasses import dataclass

from dpscope.analysis.runs.straggler import CellStraggler
from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.analysis.traces.reading.table import Table

_MOST = 0.5  # of the exposed waiting (and twice an even share), from which on a rank is named without a test
_FEW_STEPS = 5  # traced: below it chance cannot be excluded


@dataclass(frozen=True)
class LateRank:
    """`wait_us` is the exposed waiting for it per step, broadcasts included; `share` its part of all exposed waiting.

    `shown`: the rank is significant (`CellData.straggler`). `idle_us` is its idle time per step, `unlaunched_us` the part of it
    in which nothing was launched for its device; None is unknown.
    """

    rank: int
    wait_us: float
    share: float
    shown: bool
    steps: int
    idle_us: float | None = None
    unlaunched_us: float | None = None

    @property
    def certainty(self) -> str:
        """Empty if the rank is significant, else the number of traced steps in brackets."""
        return (
            "" if self.shown else f" (of {self.steps} traced step{'s' * (self.steps > 1)}: too few to exclude chance)"
        )


def late_rank(windows: Table, shown: CellStraggler | None, ledger: Ledger | None) -> LateRank | None:
    """The rank that causes most exposed waiting; None if the waiting is spread over ranks, or unknown.

    `windows` are the whole traced steps, `shown` is their significant straggler.
    """
    if ledger is None or not ledger.is_split or not len(windows):
        return None
    numbered = [name for name in ("repeat", "step") if name in windows]
    steps, ranks = len(windows.group(*numbered)), len(windows.group("rank"))
    waits, total = ledger.wait_by_rank_us, ledger.exposed_wait_us or 0.0
    if shown is not None:
        rank = shown.rank
    elif waits and total > 0 and steps < _FEW_STEPS:
        rank = max(waits, key=lambda one: waits[one])
        if waits[rank] < max(_MOST, 2 / ranks) * total:
            return None
    else:
        return None
    broadcasts = ledger.other_by_kind_us.get("broadcast", 0.0) if shown is not None else 0.0
    of_rank = windows.take(windows["rank"] == rank)
    idle, unlaunched = (of_rank[name][of_rank.known(name)] for name in ("idle_us", "unlaunched_us"))
    return LateRank(
        rank=rank,
        wait_us=waits.get(rank, 0.0) + broadcasts,
        share=waits.get(rank, 0.0) / total if total else 1.0,
        shown=shown is not None,
        steps=steps,
        idle_us=float(idle.mean()) if len(idle) else None,
        unlaunched_us=float(unlaunched.mean()) if len(unlaunched) else None,
    )
