"""How much faster are many ranks read at once? dpscope's processes against one after another, and
against a pool of forks.

    python benchmarks/many_ranks.py [--runs 5] [--ranks 8] [--copies 5]

All of `analyze_traces` is timed, and the start and end of its processes. Forks import nothing
again, so they are the least that processes can cost; dpscope starts its own afresh, since a fork
copies the caller's threads, locks and handlers. For comparison: what these cores give processes
that share nothing, a loop of pure arithmetic. Ratios are of paired runs.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from trace_reading import make_trace, say
from whole_process import ratio_text

from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces


def compare(copies: int, runs: int, ranks: int, folder: Path) -> None:
    """Paired rounds; every pool is started and ended within its time."""
    paths = [folder / f"0_{rank}.pt.trace.json.gz" for rank in range(ranks)]
    for rank, path in enumerate(paths):
        events = make_trace(copies, path, rank, ranks)

    cores = os.cpu_count() or 1
    pools: dict[str, Callable[[], Executor] | None] = {
        "one by one": partial(ThreadPoolExecutor, 1),
        "dpscope's processes": None,
        "forks": partial(ProcessPoolExecutor, cores, get_context("fork")),
    }

    def seconds(pool: Callable[[], Executor] | None) -> float:
        start = time.perf_counter()
        with nullcontext() if pool is None else pool() as executor:
            analyze_traces(paths, executor=executor)
        return time.perf_counter() - start

    rounds = [{name: seconds(pool) for name, pool in pools.items()} for _ in range(runs)]
    serial, ours, forked = ([one[name] for one in rounds] for name in pools)
    say(
        f"{ranks} ranks of {events:,} events on {cores} cores: one by one {statistics.median(serial):.2f} s, "
        f"processes {statistics.median(ours):.2f} s, forks {statistics.median(forked):.2f} s | "
        f"one by one / processes {ratio_text(serial, ours)[1]} | forks / processes {ratio_text(forked, ours)[1]}"
    )
    given = [_arithmetic_ratio(cores) for _ in range(runs)]
    say(
        f"arithmetic on one core / on {cores}: {statistics.median(given):.2f} ({min(given):.2f}-{max(given):.2f})"
    )


def _arithmetic_ratio(processes: int) -> float:
    """How much faster this many processes are than one at work that shares nothing, not even
    memory.
    """

    def seconds(pool: ProcessPoolExecutor) -> float:
        start = time.perf_counter()
        list(pool.map(_arithmetic, [1_500_000] * 4 * processes))
        return time.perf_counter() - start

    with ProcessPoolExecutor(1) as alone, ProcessPoolExecutor(processes) as together:
        for pool in (alone, together):
            list(pool.map(_arithmetic, [1] * processes))  # its processes have started
        return seconds(alone) / seconds(together)


def _arithmetic(count: int) -> int:
    return sum(number * number for number in range(count))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument(
        "--copies", type=int, default=5, help="of the 40,573-event A100 trace, in each rank's file"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        compare(arguments.copies, arguments.runs, arguments.ranks, Path(name))


if __name__ == "__main__":
    main()
