"""The sentence that decides: what communication itself needs of a step, what is lost waiting, and for whom."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from dpscope.analysis.text.units import show_time
from dpscope.analysis.traces.ranks.critical_device import critical_windows
from dpscope.analysis.traces.ranks.ledger import whole_steps
from dpscope.analysis.traces.ranks.stragglers import find_straggler
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.trace_codes import TraceCode

_WAITING_COUNTS = 0.02  # of a step: ranks that wait less are not named
_MOST = 0.5  # of all waiting, from which on one rank is named for it


@dataclass(frozen=True)
class StepCost:
    """Means over ranks and steps, microseconds; `waits_us` by rank. None where the traces do not tell.

    Of a process with several devices the values are those of its critical device, and `devices_exposed_us` is the mean over all
    of them; None where each process has one. `steps` counts the (rank, device, step) rows behind the means; they are partial
    windows where no other was traced.
    """

    step_us: float
    communication_us: float | None
    exposed_us: float | None
    transfer_us: float | None
    waits_us: dict[int, float]
    steps: int
    late_rank: int | None = None
    late_share: float | None = None  # of all waiting, 0..1
    critical_device: int | None = None
    devices_exposed_us: float | None = None


def step_cost(steps: pd.DataFrame, collectives: pd.DataFrame) -> StepCost | None:
    """From `with_waits`' steps; None where no step was traced or no process communicates with another."""
    if steps["device"].isna().all() and collectives.empty:
        return None  # dp-host: copies within one process are no communication
    every = whole_steps(steps)
    if every.empty:
        return None
    chosen = critical_windows(every)
    own = chosen[chosen["wait_us"].notna()]
    straggler = find_straggler(collectives) if len(own) else None
    by_rank = own.groupby("rank")["wait_us"].mean() if len(own) else pd.Series(dtype=float)
    return StepCost(
        step_us=float(chosen["step_us"].mean()),
        communication_us=_mean(chosen["communication_us"]),
        exposed_us=_mean(chosen["exposed_us"]),
        transfer_us=_mean(own["transfer_us"]) if len(own) else None,
        waits_us={int(str(rank)): float(wait) for rank, wait in by_rank.items()},
        steps=len(chosen),
        late_rank=straggler.rank if straggler and straggler.share >= _MOST else None,
        late_share=straggler.share if straggler and straggler.share >= _MOST else None,
        critical_device=int(chosen["device"].mode().iloc[0]) if len(chosen) < len(every) else None,
        devices_exposed_us=_mean(every["exposed_us"]) if len(chosen) < len(every) else None,
    )


def decisive_findings(cost: StepCost | None, several_ranks: bool) -> list[Finding]:
    """The decisive sentence as a finding; none where the traces show no communication or do not tell it."""
    if cost is None or not cost.communication_us or cost.exposed_us is None:
        return []
    step = show_time(cost.step_us)
    if cost.critical_device is not None and cost.devices_exposed_us is not None and cost.transfer_us is None:
        message = (
            f"communication takes {show_time(cost.communication_us)} of a {step} step on device {cost.critical_device}, which is "
            f"the least idle; {show_time(cost.exposed_us)} of it ({cost.exposed_us / cost.step_us:.0%} of the step) is exposed, "
            f"against {show_time(cost.devices_exposed_us)} in the mean over all devices of the process"
        )
        next_step = (
            "see DataParallel's phases; DistributedDataParallel, a process per device, communicates while it computes"
        )
        return [TraceCode.COMMUNICATION_COST.finding(message, next_step)]
    if cost.transfer_us is None:
        why = "its collectives could not be matched" if several_ranks else "only one process was read"
        message = (
            f"communication takes {show_time(cost.communication_us)} of a {step} step, of which "
            f"{show_time(cost.exposed_us)} ({cost.exposed_us / cost.step_us:.0%} of the step) is exposed; how much of it is "
            f"waiting is unknown, because {why}"
        )
        return [
            TraceCode.COMMUNICATION_COST.finding(message, "read the traces of all ranks to tell waiting from transfer")
        ]
    said = f"communication itself needs {show_time(cost.transfer_us)} of a {step} step"
    waiting = {rank: wait for rank, wait in cost.waits_us.items() if wait >= _WAITING_COUNTS * cost.step_us}
    if not waiting:
        message = (
            f"{said}, {show_time(cost.exposed_us)} of all communication is exposed, and no rank waits long for another"
        )
        return [TraceCode.COMMUNICATION_COST.finding(message)]
    late = "" if cost.late_rank is None else f", {cost.late_share:.0%} of it for rank {cost.late_rank}"
    message = f"{said}; {_ranks(sorted(waiting))} {_lose(list(waiting.values()), len(waiting))} waiting{late}"
    next_step = (
        "see who made whom wait; a faster link does not shorten it"
        if cost.late_rank is None
        else f"see what rank {cost.late_rank} does before its collectives; a faster link does not shorten the waiting"
    )
    return [TraceCode.COMMUNICATION_COST.finding(message, next_step)]


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}" if len(ranks) <= 8 else f"{counted(len(ranks), 'rank')}"


def _lose(waits: Sequence[float], count: int) -> str:
    least, most = show_time(min(waits)), show_time(max(waits))
    span = least if least == most else f"{least} to {most}"
    return f"{'loses' if count == 1 else 'lose'} {span} a step"


def _mean(column: pd.Series) -> float | None:
    known = column.dropna()
    return float(known.mean()) if len(known) else None
