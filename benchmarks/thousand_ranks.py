"""What do the traces of a thousand ranks cost? Partials of generated ranks analysed, in time and
memory, against their bars.

    python benchmarks/thousand_ranks.py [--runs 3] [--small]

Each analysis is a separate process, imports included, and its peak is the kernel's; its time on a
core shows how far other programs of the machine made it longer. Reducing is compared with reading
alone, on copies of the A100 trace; the partial's size is of these. Killed: `dpscope reduce` is
ended by SIGKILL at moments spread over its time and run again, and what it then holds is compared
with an undisturbed call. --small shows that it works, in seconds.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

# for the generator of ranks, which tests use too
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from trace_reading import make_trace, say

from dpscope.analysis.traces.ranks.partial import read_partial
from dpscope.analysis.traces.ranks.process_pool import read_file
from dpscope.analysis.traces.ranks.reduce import reduce_traces
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS
from tests.helpers.many_ranks import PER_NODE, equal_ranks, write_partials

_LIMIT_S = 300.0
_ANALYZE = """
import json, resource, sys, time
start = time.perf_counter()
from dpscope.analysis.output.trace_tables import fold_ranks, placed
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
found, places = placed(analyze_traces(sys.argv[1]))
fold_ranks(found, places)
messages = [one.message for one in found.findings if one.code == "waiting_for_node"]
peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([time.perf_counter() - start, peak_mb, len(found.tables.collectives), messages, time.process_time()]))
"""


@dataclass(frozen=True)
class Job:
    """Generated ranks and the bars of their analysis."""

    ranks: int
    partials: int
    steps: int
    per_step: int
    most_s: float
    most_mb: float


JOBS = (
    Job(1024, 128, 10, 7, 5.0, 400.0),
    Job(8192, 1024, 10, 7, 25.0, 1000.0),
    Job(256, 32, 3, 2000, 30.0, 1500.0),
)
SMALL = (Job(64, 8, 2, 3, 5.0, 400.0),)


def analyze(job: Job, runs: int, folder: Path) -> bool:
    """Whether it stays below its bars, by the median of runs."""
    bad = job.ranks // 2 + 3
    write_partials(
        folder, job.ranks, -(-job.ranks // job.partials), job.steps, job.per_step, bad_rank=bad
    )
    size_kb = sum(path.stat().st_size for path in folder.iterdir()) / 1e3 / job.ranks
    found = []
    for _ in range(runs):
        done = subprocess.run(
            [sys.executable, "-c", _ANALYZE, str(folder)],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=True,
        )
        found.append(json.loads(done.stdout))
    seconds, peak_mb = statistics.median(one[0] for one in found), max(one[1] for one in found)
    core_s = statistics.median(one[4] for one in found)
    named = any(f"node n{bad // PER_NODE:04d} causes" in one for one in found[0][3])
    below = seconds <= job.most_s and peak_mb <= job.most_mb and named
    say(
        f"{job.ranks:,} ranks, {found[0][2]:,} collectives, {job.partials:,} partials of {size_kb:.1f} kB a rank: "
        f"{seconds:.1f} s (bar {job.most_s:g}; of a core {core_s:.1f} s), {peak_mb:.0f} MB (bar {job.most_mb:g}), bad node "
        f"{'named' if named else 'NOT named'}: {'passed' if below else 'FAILED'}"
    )
    return below


def reduce(copies: int, runs: int, folder: Path) -> bool:
    """Reducing a node's eight ranks against reading them, in one process; and the size of what is
    written.
    """
    paths = [folder / f"0_{rank}.pt.trace.json.gz" for rank in range(PER_NODE)]
    for rank, path in enumerate(paths):
        make_trace(copies, path, rank, PER_NODE)
    ratios = []
    for number in range(runs):
        start = time.perf_counter()
        for path in paths:
            read_file(path, DEFAULT_LIMITS)
        read_s = time.perf_counter() - start
        start = time.perf_counter()
        made = reduce_traces(paths, folder / f"{number}.dpscope", jobs=1)
        ratios.append((time.perf_counter() - start) / read_s)
    ratio, size_kb = statistics.median(ratios), made.path.stat().st_size / 1e3 / PER_NODE
    say(
        f"reduce / read: {ratio:.2f} (bar 1.2); partial of a rank of {copies} times three steps: {size_kb:.1f} kB (bar 15)"
    )
    return ratio <= 1.2 and (size_kb <= 15 or copies > 1)


def killed(moments: int, folder: Path) -> bool:
    """Calls ended by SIGKILL leave no partial or a whole one, and run again hold what an undisturbed
    call holds.
    """
    traces = folder / "traces"
    traces.mkdir()
    for rank in range(PER_NODE):
        # reading them outlasts the start
        make_trace(5, traces / f"0_{rank}.pt.trace.json.gz", rank, PER_NODE)
    start = time.perf_counter()
    whole = read_partial(_reduce(traces, folder / "whole.dpscope", None))
    length_s = time.perf_counter() - start
    sound, unfinished = True, 0
    for number in range(moments):
        place = folder / f"{number}.dpscope"
        _reduce(traces, place, length_s * (number + 0.5) / moments)
        finished = place.exists()
        unfinished += not finished
        again = reduce_traces(traces, place)
        sound &= equal_ranks(read_partial(place), whole)
        sound &= again.kept == (PER_NODE if finished else 0)
    sound &= unfinished > 0  # else no call was ended while it read, and nothing is shown
    say(
        f"killed at {moments} moments, {unfinished} before the end: {'equal' if sound else 'FAILED'}"
    )
    return sound


def _reduce(traces: Path, place: Path, after_s: float | None) -> Path:
    """A process that reduces, ended after so long, or whole."""
    command = [
        sys.executable,
        "-m",
        "dpscope.launch.cli",
        "reduce",
        str(traces),
        "-o",
        str(place),
        "--jobs",
        "1",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(_LIMIT_S if after_s is None else after_s)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    return place


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="few ranks, and five moments")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / str(index) for index in range(len(JOBS) + 3)]
        for folder in folders:
            folder.mkdir()
        jobs = SMALL if arguments.small else JOBS
        passed = [
            analyze(job, arguments.runs, folder) for job, folder in zip(jobs, folders, strict=False)
        ]
        passed.append(reduce(1, arguments.runs, folders[-3]))
        if not arguments.small:
            passed.append(reduce(20, arguments.runs, folders[-2]))
        passed.append(killed(5 if arguments.small else 20, folders[-1]))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
