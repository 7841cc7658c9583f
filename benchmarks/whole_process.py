"""How long does a user wait for a command to start? Whole processes, imports included, as ratios to bare imports.

    python benchmarks/whole_process.py [--runs 15] [--run-folder runs/first]

Each command is held against an interpreter that only imports what the command cannot do without. Runs are interleaved:
every process once per round, and a ratio is taken within a round. Ends with status 1 where a median is over its limit.

With a run folder also: a second `analyze` of it, against the first of a copy without tables kept and without its report.
"""

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "tests" / "data"
DPSCOPE = (sys.executable, "-m", "dpscope.launch.cli")
COMMAND_LINE = (sys.executable, "-c", "import typer, rich")
TABLES = (sys.executable, "-c", "import numpy, pandas, msgspec")
AGAIN_LIMIT = 0.25  # of the first


@dataclass(frozen=True)
class Process:
    """What one process took: wall seconds from its start to its end, and its peak memory."""

    seconds: float
    peak_bytes: int
    status: int
    output: str


@dataclass(frozen=True)
class Candidate:
    """A command, what it is held against, and how many times as long it may take."""

    name: str
    command: tuple[str, ...]
    baseline: tuple[str, ...]
    limit: float


CANDIDATES = (
    Candidate("dpscope --version", (*DPSCOPE, "--version"), COMMAND_LINE, 1.5),
    Candidate("dpscope --help", (*DPSCOPE, "--help"), COMMAND_LINE, 1.5),
    Candidate(
        "dpscope analyze, 53 KB", (*DPSCOPE, "analyze", str(DATA / "v100x8_ddp_dlrm" / "rank0.json.gz")), TABLES, 1.8
    ),
)


def run_process(command: Sequence[str]) -> Process:
    """Run a command to its end; its output is caught. Peak memory is that of the process itself, not of its children.

    Modules are kept compiled, as they are where a package is installed.
    """
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    with subprocess.Popen(
        command, env=compiled, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        assert running.stdout is not None
        output = running.stdout.read()
        _, status, used = os.wait4(running.pid, 0)
        seconds = time.perf_counter() - start
        running.returncode = os.waitstatus_to_exitcode(status)
    return Process(seconds, used.ru_maxrss * 1024, running.returncode, output)


def ratio_text(above: Sequence[float], below: Sequence[float]) -> tuple[float, str]:
    """The median of the ratios of paired runs, and as text with its range and count."""
    ratios = [one / other for one, other in zip(above, below, strict=True)]
    median = statistics.median(ratios)
    return median, f"{median:.2f} ({min(ratios):.2f}-{max(ratios):.2f}, n={len(ratios)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--run-folder", type=Path)
    arguments = parser.parse_args()
    runs = arguments.runs
    commands = dict.fromkeys(part for one in CANDIDATES for part in (one.baseline, one.command))
    for command in commands:  # compiled, and in the file cache
        warmed = run_process(command)
        if warmed.status:
            sys.exit(f"{' '.join(command)} ended with {warmed.status}: {warmed.output.strip().splitlines()[-1:]}")
    rounds = [{command: run_process(command).seconds for command in commands} for _ in range(runs)]
    print_line(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}: whole processes")
    over = False
    for one in CANDIDATES:
        taken, bare = ([found[command] for found in rounds] for command in (one.command, one.baseline))
        median, ratio = ratio_text(taken, bare)
        over |= median > one.limit
        print_line(
            f"{one.name:24} {statistics.median(taken):6.3f} s | {ratio} x `{one.baseline[-1]}` "
            f"({statistics.median(bare):.3f} s) | limit {one.limit}: {'OVER' if median > one.limit else 'kept'}"
        )
    if arguments.run_folder is not None:
        over |= analyzed_twice(arguments.run_folder, min(runs, 3))
    sys.exit(int(over))


def analyzed_twice(run: Path, runs: int) -> bool:
    """Print how long a second `analyze` of a run takes beside the first; whether it is over its limit."""
    first, second = [], []
    left_out = shutil.ignore_patterns("*.tables.parquet", "report", "tensorboard")
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copytree(run, Path(folder) / run.name, ignore=left_out)
            for seconds in (first, second):
                seconds.append(run_process((*DPSCOPE, "analyze", str(copy))).seconds)
    median, ratio = ratio_text(second, first)
    print_line(
        f"analyze {run}, again: {statistics.median(second):6.3f} s | {ratio} x the first ({statistics.median(first):.3f} s) | "
        f"limit {AGAIN_LIMIT}: {'OVER' if median > AGAIN_LIMIT else 'kept'}"
    )
    return median > AGAIN_LIMIT


def print_line(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
