"""Does reading survive any file? Mutations of traces, each analyzed within 10 s of processor time
and 1 GiB of memory.

    python benchmarks/fuzz_reading.py [--cases 10000] [--first 0] [--jobs 1] [--keep FOLDER]

A case is a number: it chooses a file (on one line, in Kineto's layout, of several ranks, without a GPU, with
times since 1970), some mutations of its text (bytes, brackets, quotes, nesting, huge strings,
numbers, whole events) and of its compressed bytes, and bombs in head, body, tail and between
events. It fails with a traceback, past a limit, or where an invariant is broken: step = compute +
exposed + idle; communication = hidden + exposed; no union longer than its step; no time negative.
Failures are listed with their numbers; `--first N --cases 1` runs one again, and the exit status is
1 if there are some.
"""

import argparse
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

# for the cases, and the traces they are made of
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.fuzz_cases import case, sources

# Arrow's own sets a GiB aside, as if it were used
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

SECONDS = 10
MEMORY_BYTES = 1 << 30
TOLERANCE_US = 1e-3


def wrong(path: Path) -> str | None:
    """What breaks when a file is analyzed, None if nothing does: an error of one line is an
    answer.
    """
    from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
    from dpscope.profiling.store.errors import DpscopeError

    try:
        analysis = analyze_traces([path])
        return broken_invariant(analysis.steps, analysis.collectives)
    except DpscopeError as error:
        return "an error of several lines" if "\n" in str(error).replace(str(path), "") else None
    except Exception:  # every other is a failure, reported with its place
        return traceback.format_exc()


def broken_invariant(steps: Any, collectives: Any) -> str | None:
    """The first sum that does not hold, in a table of steps and one of collectives."""
    measures = [
        "step_us",
        "compute_us",
        "communication_us",
        "hidden_us",
        "exposed_us",
        "host_copy_us",
        "idle_us",
    ]
    steps = steps[measures].astype("Float64")
    parts = steps[["compute_us", "exposed_us", "idle_us"]].sum(axis=1, skipna=False)
    held = {
        "step = compute + exposed + idle": (steps["step_us"] - parts).abs(),
        "communication = hidden + exposed": (
            steps["communication_us"] - steps["hidden_us"] - steps["exposed_us"]
        ).abs(),
        "communication <= step": steps["communication_us"] - steps["step_us"],
        "compute <= step": steps["compute_us"] - steps["step_us"],
        "host copies <= idle": steps["host_copy_us"] - steps["idle_us"],
        "nothing negative": -steps.min(axis=1),
        "collectives last": -collectives["duration_us"],
    }
    longest_us = float(steps["step_us"].dropna().max()) if steps["step_us"].notna().any() else 0.0
    tolerance_us = max(TOLERANCE_US, 1e-12 * longest_us)  # of absurd times a float keeps 15 digits
    for what, excess in held.items():
        if (excess.dropna().astype(float) > tolerance_us).any():
            return f"does not hold: {what}"
    return None


def run_one(number: int, folder: Path) -> str | None:
    """A case in a separate process, within its limits; the failure, None if there is none."""
    name, content = case(number)
    path = folder / str(number) / name
    path.parent.mkdir()
    path.write_bytes(content)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _limited(path, write)
    os.close(write)
    with os.fdopen(read) as answers:
        answer = answers.read()
    _, status = os.waitpid(child, 0)
    path.unlink()
    path.parent.rmdir()
    if os.WIFSIGNALED(status):
        return f"ended by {signal.Signals(os.WTERMSIG(status)).name}: past {SECONDS} s, or crashed"
    return answer or None


def _limited(path: Path, write: int) -> None:
    """In the child: analyze, answer, end."""
    begun = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(
        resource.RLIMIT_CPU,
        (int(begun.ru_utime + begun.ru_stime) + SECONDS + 1, resource.RLIM_INFINITY),
    )
    # On top of the data mapped before: libraries map much that they never touch.
    resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + MEMORY_BYTES, resource.RLIM_INFINITY))
    answer = wrong(path)
    os.write(write, (answer or "").encode(errors="replace")[-4000:])
    os._exit(0)


def _data_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmData")) << 10


def _shared(numbers: list[int]) -> list[tuple[int, str]]:
    with tempfile.TemporaryDirectory() as name:
        return [(number, failure) for number in numbers if (failure := run_one(number, Path(name)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="write the files of failing cases to this folder")
    arguments = parser.parse_args()
    import dpscope.analysis.traces.ranks.trace_analysis  # noqa: F401 - before the children are forked

    sources()
    begun = time.perf_counter()
    numbers = range(arguments.first, arguments.first + arguments.cases)
    shares = [list(numbers[start : start + 50]) for start in range(0, len(numbers), 50)]
    failed = 0
    with multiprocessing.get_context("fork").Pool(arguments.jobs) as pool:
        for failures in pool.imap(_shared, shares):
            for number, failure in failures:
                failed += 1
                sys.stdout.write(f"case {number}: {failure}\n")
                sys.stdout.flush()
                if arguments.keep:
                    arguments.keep.mkdir(parents=True, exist_ok=True)
                    file, content = case(number)
                    (arguments.keep / f"{number}-{file}").write_bytes(content)
    sys.stdout.write(
        f"{len(numbers)} cases, {failed} failed, {time.perf_counter() - begun:.0f} s\n"
    )
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
