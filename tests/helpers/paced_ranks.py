"""Traces of ranks that compute for given times and then reduce together: who is late, and in which
step, is planted.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.helpers.made_traces import ALL_REDUCE, Event, launch, on_device, step, write

MS = 1e3
UPDATE_MS = 5.0  # the optimizer, after the reduction


def paced(
    folder: Path,
    computes_ms: Sequence[Sequence[float]],
    transfers_ms: Sequence[float] | float = 10.0,
    clocks_us: Sequence[float] = (),
) -> Job:
    """The job in which a rank computes `computes_ms[step][rank]`; its first step is repeated before
    it, in a partial window.

    Each step ends with an all-reduce of 100 MB, which moves data for `transfers_ms` once the last
    rank has arrived, and the optimizer. Each rank's clock is ahead by `clocks_us`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    count, ranks = len(computes_ms), len(computes_ms[0])
    moved = [transfers_ms] * count if isinstance(transfers_ms, float) else list(transfers_ms)
    events: list[list[Event]] = [[] for _ in range(ranks)]
    now = 0.0
    for number, (own, transfer) in enumerate(
        zip([computes_ms[0], *computes_ms], [moved[0], *moved], strict=True)
    ):
        reduced = max(own) + transfer
        length = (reduced + UPDATE_MS) * MS
        for rank, computes in enumerate(own):
            ahead = clocks_us[rank] if clocks_us else 0.0
            events[rank] += [
                event | {"ts": event["ts"] + now + ahead}
                for event in _step(number, computes, reduced, length, ranks)
            ]
        now += length
    for rank, of_rank in enumerate(events):
        write(folder, of_rank, rank, ranks)
    return analyze_traces([folder])


def _step(
    number: int, computes: float, reduced: float, length_us: float, ranks: int
) -> list[Event]:
    """The step of one rank, from 0."""
    first = 3 * number + 1
    collective: dict[str, Any] = {
        "Process Group Name": "0", "Process Group Ranks": str(list(range(ranks))), "Group size": ranks, "Seq": number,
        "Collective name": "allreduce", "In msg nelems": 25_000_000, "Out msg nelems": 25_000_000, "dtype": "Float",
    }  # fmt: skip
    begin_us, end_us = computes * MS, reduced * MS
    return [
        step(number, 0.0, length_us),
        launch(first, 0.1),
        launch(first + 1, 0.2),
        launch(first + 2, 0.3),
        on_device("gemm", 0.5, begin_us - 0.5, first),
        on_device(ALL_REDUCE, begin_us, end_us - begin_us, first + 1, stream=20, **collective),
        on_device("sgd", end_us, length_us - end_us, first + 2),
    ]
