"""How fast and how small is reading a trace? Ratios against peers and against a floor, each in a
separate process.

    python benchmarks/trace_reading.py [--runs 5] [--copies 8] [--hta-python PATH] [--gib]

Candidates: `dpscope` (read, breakdown, collectives), `floor` (inflate and decode, nothing else),
`hta` (HolisticTraceAnalysis 0.5.0: load and get_comm_comp_overlap), `tb` (torch_tb_profiler's
loader). In process: imports are not timed. Whole process: from the command to its end, imports and
output included, for dpscope `dpscope analyze TRACE`. Memory is the whole process's peak. Runs are
paired: every candidate once per round, and a ratio is taken within a round.
"""

import argparse
import gzip
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from whole_process import DPSCOPE, Process, ratio_text, run_process

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "tests" / "data" / "a100x2_ddp_resnet50_rank0.json.gz"
PERIOD_US = 700_000  # the source's length: copies follow one another


def make_trace(copies: int, path: Path, rank: int = 0, ranks: int = 2) -> int:
    """Repeat the A100 trace's steps `copies` times, times and ids shifted; returns the number of
    events.

    `rank` and `ranks` relabel it, as one of a larger job: the same times, another name.
    """
    head, rest = gzip.decompress(SOURCE.read_bytes()).decode().split('"traceEvents": [', 1)
    end = rest.index("\n  ],")
    body, tail = rest[:end], rest[end:]
    if (rank, ranks) != (0, 2):
        everyone = str(list(range(ranks)))
        head = head.replace(
            '"rank": 0, "world_size": 2,', f'"rank": {rank}, "world_size": {ranks},'
        )
        body = body.replace('"[0, 1]"', f'"{everyone}"').replace(
            '"Group size": 2', f'"Group size": {ranks}'
        )
    with gzip.open(path, "wt", compresslevel=4) as file:
        file.write(head + '"traceEvents": [')
        for copy in range(copies):
            file.write(("," if copy else "") + _shifted(body, copy))
        file.write(tail)
    return copies * len(re.findall(r'\n    "ph": ', body))


def _shifted(body: str, copy: int) -> str:
    text = re.sub(
        r'("ts": )([\d.]+)', lambda m: f"{m[1]}{float(m[2]) + PERIOD_US * copy:.3f}", body
    )
    text = re.sub(
        r'("(?:correlation|External id|id)": )(\d+)',
        lambda m: f"{m[1]}{int(m[2]) + 1_000_000 * copy}",
        text,
    )
    return re.sub(r"ProfilerStep#(\d+)", lambda m: f"ProfilerStep#{int(m[1]) + 3 * copy}", text)


def _dpscope() -> Callable[[str], Any]:
    from dpscope.analysis.traces.reading.reader import read_trace
    from dpscope.analysis.traces.steps.attribution import attribute
    from dpscope.analysis.traces.steps.breakdown import step_table
    from dpscope.analysis.traces.steps.collectives import collective_table

    def run(path: str) -> Any:
        attribution = attribute(read_trace(path))
        return step_table(attribution), collective_table(attribution)

    return run


def _floor() -> Callable[[str], Any]:
    import msgspec
    from isal import igzip

    class Args(msgspec.Struct, gc=False):
        stream: int | None = None
        device: int | None = None
        correlation: int | None = None
        external_id: int | None = msgspec.field(default=None, name="External id")
        collective_name: str | None = msgspec.field(default=None, name="Collective name")
        elements: int | None = msgspec.field(default=None, name="In msg nelems")
        dtype: str | None = None

    class Event(msgspec.Struct, gc=False):
        ph: str = ""
        cat: str = ""
        name: str = ""
        pid: int | str = 0
        tid: int | str = 0
        ts: float = 0.0
        dur: float = 0.0
        args: Args | None = None

    class Whole(msgspec.Struct, gc=False):
        traceEvents: list[Event]  # noqa: N815 - Kineto's name

    # Local annotations are looked up in these scopes only when given.
    decoder = msgspec.json.Decoder(Whole)

    def run(path: str) -> Any:
        with open(path, "rb") as file:
            return decoder.decode(igzip.decompress(file.read()))

    return run


def _hta() -> Callable[[str], Any]:
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    return lambda path: TraceAnalysis(trace_files={0: path}).get_comm_comp_overlap(visualize=False)


def _tb() -> Callable[[str], Any]:
    from torch_tb_profiler.profiler.data import RunProfileData  # type: ignore[import-untyped]

    return lambda path: RunProfileData.parse("node_0", None, path, tempfile.gettempdir())


CANDIDATES = {"dpscope": _dpscope, "floor": _floor, "hta": _hta, "tb": _tb}


def measure_here(candidate: str, path: str) -> None:
    """In a separate process: time one candidate, print seconds and peak memory."""
    run = CANDIDATES[candidate]()
    start = time.perf_counter()
    kept = run(path)
    seconds = time.perf_counter() - start
    del kept
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sys.stdout.write(f"\nMEASURED {json.dumps({'seconds': seconds, 'peak_bytes': peak_bytes})}\n")


def measure(candidate: str, path: Path, python: str) -> dict[str, float] | None:
    """One run of one candidate; None where it fails or is not installed."""
    finished = subprocess.run(
        [python, __file__, "--candidate", candidate, str(path)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    line = next(
        (line for line in finished.stdout.splitlines() if line.startswith("MEASURED ")), None
    )
    if line is None:
        sys.stderr.write(
            f"{candidate}: {(finished.stderr or finished.stdout).strip().splitlines()[-1:]}\n"
        )
        return None
    found: dict[str, float] = json.loads(line.removeprefix("MEASURED "))
    return found


def interpreters(hta_python: str | None) -> dict[str, str]:
    """The interpreter of each candidate: peers pin other versions of what dpscope uses."""
    return dict.fromkeys(CANDIDATES, sys.executable) | ({"hta": hta_python} if hta_python else {})


def compare_whole(path: Path, runs: int, hta_python: str | None) -> None:
    """The same as a user waits for it: `dpscope analyze TRACE` and the peers' whole processes;
    paired rounds.
    """
    commands = {
        name: (python, __file__, "--candidate", name, str(path))
        for name, python in interpreters(hta_python).items()
        if name in ("hta", "tb")
    }
    ours = (*DPSCOPE, "analyze", str(path))
    run_process(ours)  # compiled, and in the file cache
    rounds = [
        {name: run_process(command) for name, command in {"dpscope": ours, **commands}.items()}
        for _ in range(runs)
    ]
    mine = [one["dpscope"] for one in rounds]
    say(f"whole processes: dpscope analyze {_shown(mine)}")
    for name in commands:
        own = [one[name] for one in rounds]
        if any(process.status or "MEASURED" not in process.output for process in own):
            say(f"{name:8} not measured: {own[0].output.strip().splitlines()[-1:]}")
            continue
        _, slower = ratio_text([one.seconds for one in own], [one.seconds for one in mine])
        _, smaller = ratio_text([one.peak_bytes for one in mine], [one.peak_bytes for one in own])
        say(f"{name:8} {_shown(own)} | time / dpscope's {slower} | dpscope's peak / its {smaller}")


def _shown(processes: list[Process]) -> str:
    seconds = statistics.median(one.seconds for one in processes)
    return f"{seconds:7.3f} s {statistics.median(one.peak_bytes for one in processes) / 1e6:6.0f} MB peak"


def compare(path: Path, runs: int, hta_python: str | None) -> None:
    """Paired rounds; prints medians and the ratios' medians with their range."""
    pythons = interpreters(hta_python)
    rounds = [
        {name: measure(name, path, pythons[name]) for name in CANDIDATES} for _ in range(runs)
    ]
    for name in CANDIDATES:
        own = [found for one in rounds if (found := one[name]) is not None]
        if not own:
            say(f"{name:8} not measured")
            continue
        seconds = statistics.median(found["seconds"] for found in own)
        peak = statistics.median(found["peak_bytes"] for found in own)
        pairs = [
            (found, mine) for one in rounds if (found := one[name]) and (mine := one["dpscope"])
        ]
        slower = [found["seconds"] / mine["seconds"] for found, mine in pairs]
        peaks = [mine["peak_bytes"] / found["peak_bytes"] for found, mine in pairs]
        say(
            f"{name:8} {seconds:7.3f} s {peak / 1e6:6.0f} MB peak | time / dpscope's {statistics.median(slower):6.2f} "
            f"({min(slower):.2f}-{max(slower):.2f}) | dpscope's / its: time {1 / statistics.median(slower):.2f}, "
            f"peak {statistics.median(peaks):.2f} | n={len(own)}"
        )


def linear(copies: int, runs: int, folder: Path) -> None:
    """Time per event at 1x, 4x, 16x and 64x the size: more steps, as a longer trace has."""
    for factor in (1, 4, 16, 64):
        path = folder / f"linear{factor}.json.gz"
        events = make_trace(max(1, copies // 8) * factor, path)
        found = [
            one["seconds"] for _ in range(runs) if (one := measure("dpscope", path, sys.executable))
        ]
        seconds = statistics.median(found)
        say(
            f"{factor:3}x  {events:9,} events  {seconds:7.3f} s  {seconds / events * 1e6:.3f} us/event"
        )
        path.unlink()


def bounded(folder: Path) -> None:
    """Peak memory on a file of 1 GiB uncompressed."""
    path = folder / "gib.json.gz"
    size = len(gzip.decompress(SOURCE.read_bytes()))
    events = make_trace(-(-(1 << 30) // size), path)
    found = measure("dpscope", path, sys.executable)
    if found:
        say(
            f"1 GiB uncompressed, {events:,} events: {found['peak_bytes'] / 2**20:.0f} MiB peak, {found['seconds']:.2f} s"
        )
    path.unlink()


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--copies", type=int, default=8, help="of the 40,573-event A100 trace")
    parser.add_argument(
        "--hta-python",
        default=os.environ.get("HTA_PYTHON"),
        help="an interpreter that has HTA 0.5.0",
    )
    parser.add_argument(
        "--gib", action="store_true", help="also measure the peak memory of a 1 GiB file"
    )
    parser.add_argument("--candidate", nargs=2, metavar=("NAME", "PATH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.candidate:
        measure_here(*arguments.candidate)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "0_0.pt.trace.json.gz"
        events = make_trace(arguments.copies, path)
        say(
            f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        )
        say(
            f"{events:,} events, {path.stat().st_size / 1e6:.1f} MB gzip, medians of {arguments.runs} paired runs"
        )
        compare(path, arguments.runs, arguments.hta_python)
        compare_whole(path, arguments.runs, arguments.hta_python)
        linear(arguments.copies, 3, folder)
        if arguments.gib:
            bounded(folder)


if __name__ == "__main__":
    main()
