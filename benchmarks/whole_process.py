"""How long does a user wait for a command to start? Whole processes, imports included, as ratios to
bare imports.

    python benchmarks/whole_process.py [--runs 15] [--run-folder runs/first [--read-only-by nobody]]

Each command is held against an interpreter that only imports what the command cannot do without.
Runs are interleaved: every process once per round, and a ratio is taken within a round. Ends with
status 1 where a median is over its limit.

With a run folder also: a second `analyze` of it, against the first of a copy without tables kept
and without its report. With --read-only-by USER, as root: the same by that user, of a copy that
belongs to root, next to one that the user owns.
"""

import argparse
import os
import platform
import pwd
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
READ_ONLY_LIMIT = 1.1  # of the same analysis of a folder that the user owns


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
        "dpscope analyze, 53 KB",
        (*DPSCOPE, "analyze", str(DATA / "v100x8_ddp_dlrm" / "rank0.json.gz")),
        TABLES,
        1.8,
    ),
)


def run_process(command: Sequence[str]) -> Process:
    """Run a command to its end; its output is caught. Peak memory is that of the process itself,
    not of its children.

    Modules are kept compiled, as they are where a package is installed.
    """
    compiled = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
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
    parser.add_argument("--read-only-by", metavar="USER")
    arguments = parser.parse_args()
    runs = arguments.runs
    commands = dict.fromkeys(part for one in CANDIDATES for part in (one.baseline, one.command))
    for command in commands:  # compiled, and in the file cache
        warmed = run_process(command)
        if warmed.status:
            sys.exit(
                f"{' '.join(command)} ended with {warmed.status}: {warmed.output.strip().splitlines()[-1:]}"
            )
    rounds = [{command: run_process(command).seconds for command in commands} for _ in range(runs)]
    print_line(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}: whole processes"
    )
    over = False
    for one in CANDIDATES:
        taken, bare = (
            [found[command] for found in rounds] for command in (one.command, one.baseline)
        )
        median, ratio = ratio_text(taken, bare)
        over |= median > one.limit
        print_line(
            f"{one.name:24} {statistics.median(taken):6.3f} s | {ratio} x `{one.baseline[-1]}` "
            f"({statistics.median(bare):.3f} s) | limit {one.limit}: {'OVER' if median > one.limit else 'kept'}"
        )
    if arguments.run_folder is not None:
        over |= analyzed_twice(arguments.run_folder, min(runs, 3))
        if arguments.read_only_by is not None:
            over |= analyzed_by_another_user(
                arguments.run_folder, arguments.read_only_by, min(runs, 5)
            )
    sys.exit(int(over))


def analyzed_twice(run: Path, runs: int) -> bool:
    """Print how long a second `analyze` of a run takes against the first; whether it is over its
    limit.
    """
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


def analyzed_by_another_user(run: Path, user: str, runs: int) -> bool:
    """Print how long a user's first and second `analyze` take, of a copy of root's and of the
    user's own; whether one is over.

    With `--format json` the second one reads the kept tables, with `--report` it shows the report
    that stands there.
    """
    taken: dict[tuple[str, str, bool], list[float]] = {}
    with tempfile.TemporaryDirectory() as home:
        _owned_by(user, Path(home))
        for number in range(runs + 1):
            for what in ("--format", "--report"):
                for own in (True, False):
                    pair = _analyzed_by(user, run, what, own, Path(home))
                    if number:  # the first round fills the caches of other libraries
                        for which, seconds in zip(("first", "second"), pair, strict=True):
                            taken.setdefault((what, which, own), []).append(seconds)
    over = False
    for what, which in dict.fromkeys((what, which) for what, which, _ in taken):
        writable, read_only = taken[what, which, True], taken[what, which, False]
        median, ratio = ratio_text(read_only, writable)
        over |= median > READ_ONLY_LIMIT
        print_line(
            f"analyze {what} by {user}, {which} time: read-only {statistics.median(read_only):6.3f} s | {ratio} x writable "
            f"({statistics.median(writable):.3f} s) | limit {READ_ONLY_LIMIT}: {'OVER' if median > READ_ONLY_LIMIT else 'kept'}"
        )
    return over


def _owned_by(user: str, folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        shutil.chown(path, user)


def _analyzed_by(user: str, run: Path, what: str, own: bool, home: Path) -> list[float]:
    """The seconds of two analyses of a copy of the run, which belongs to the user or to root."""
    left_out = shutil.ignore_patterns("*.tables.parquet", "report", "tensorboard")
    with tempfile.TemporaryDirectory() as folder:
        copy, cache, report = (Path(folder) / name for name in (run.name, "cache", "report"))
        shutil.copytree(run, copy, ignore=left_out)
        if own:
            _owned_by(user, copy)
        Path(folder).chmod(0o755)
        for place in (cache, report):
            place.mkdir()
            _owned_by(user, place)
        environment = ("env", f"HOME={home}", f"XDG_CACHE_HOME={home}", f"DPSCOPE_CACHE={cache}")
        account = pwd.getpwnam(user)
        as_user = (
            "setpriv",
            f"--reuid={account.pw_uid}",
            f"--regid={account.pw_gid}",
            "--clear-groups",
        )
        command = (*as_user, *environment, *DPSCOPE, "analyze", str(copy), what)
        seconds = []
        for _ in range(2):
            ended = run_process((*command, "json" if what == "--format" else str(report)))
            if ended.status not in (0, 1):  # 1: the run has findings that are errors
                sys.exit(
                    f"analyze by {user} ended with {ended.status}: {ended.output.strip().splitlines()[-1:]}"
                )
            seconds.append(ended.seconds)
    return seconds


def print_line(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
