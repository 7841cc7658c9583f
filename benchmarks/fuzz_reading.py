"""Does reading survive any file? Mutations of traces, each analyzed within 10 s of processor time and 1 GiB of memory.

    python benchmarks/fuzz_reading.py [--cases 10000] [--first 0] [--jobs 1] [--keep FOLDER]

A case is a number: it chooses a file (on one line, in Kineto's layout, fused, without a GPU, with times since 1970), some
mutations of its text (bytes, brackets, quotes, nesting, huge strings, numbers, whole events) and of its compressed bytes, and
bombs in head, body, tail and between events. It fails with a traceback, past a limit, or where an invariant is broken: step =
compute + exposed + idle; communication = hidden + exposed; no union longer than its step; no time negative. Failures are
listed with their numbers; `--first N --cases 1` runs one again, and exit status 1 says that there are some.
"""

import argparse
import gzip
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # for the generated traces
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # Arrow's own sets a GiB aside, as if it were used

SECONDS = 10
MEMORY_BYTES = 1 << 30
BOMB_BYTES = 96 << 20  # what a small file expands to
TOLERANCE_US = 1e-3
STRUCTURE = [b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\n", b"\x00", b"\xff", b"},", b"],", b"]}", b'{"', b'","',
             b"\n  },\n", b"\n  ]"]  # fmt: skip
NUMBERS = [b"-1", b"0", b"-0.0", b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-1e308", b"2147483648", b"9" * 19, b"9" * 400,
           b"9" * 5000, b"0.1", b"null", b"true", b'"7"', b'"rank"', b"[]", b"{}", b"1694128201226418.650"]  # fmt: skip
NUMBERED = ["ts", "dur", "pid", "tid", "device", "correlation", "rank", "world_size", "stream", "Group size", "In msg nelems",
            "Seq", "bytes", "baseTimeNanoseconds", "Input Dims"]  # fmt: skip
FILLINGS = [b"x", b" ", b"\n", b'\\"', b"\xff", b"{", b"[", b"}", b"1", b'{"a": ', b'{"a": [{"b": 1}, ', b'}], {"a": nul',
            b'{"a": 1}, ',
            b'{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1, "name": "', b"rank 1 ", b'"ts": ', b"[[],", b"},\n  {"]  # fmt: skip
WRAPPED = [
    b"%s",
    b'"%s"',
    b', "y": "%s"',
    b'"y": [%s], ',
    b'{"args": {"x": [%s]}},',
    b'{"ph": "X", "name": "%s"},',
    b"},%s{",
]
BOMBS = [
    b" ",
    b"\0",
    b"x",
    b"[",
    b"{}, ",
    b'{"": 0}, ',
    b'"a": {}, ',
    b"1, ",
    b"],[",
    b'{"a": [{"b": 1}, ',
    b'], "a": [',
    b"}, \n",
]
NAMES = [
    "0_0.pt.trace.json",
    "0_99999999999.pt.trace.json",
    "rank_99999999999.json",
    "rank-3.json",
    "rank3_rank4.json",
    "x.json",
]
Mutation = Callable[[random.Random, bytes], bytes]


@cache
def sources() -> tuple[bytes, ...]:
    """The sound files' texts."""
    from tests.generated_traces.fusing import Marking, fused_trace
    from tests.generated_traces.generator import DdpOptions, ddp_trace, dp_trace, gloo_trace, trace_text

    ranks = [ddp_trace(rank, 2, DdpOptions(straggler=1)).trace for rank in range(2)]
    one = ddp_trace(0, 4, DdpOptions(lag=True)).trace
    since_1970 = {**one, "traceEvents": [_moved(event, 1_694_128_201_226_418.25) for event in one["traceEvents"]]}
    markings: tuple[Marking, ...] = ("args_rank", "label", "plain", "same_launches")
    texts = [
        trace_text(one),
        trace_text(one, "one_line"),
        trace_text(since_1970, "one_line"),
        json.dumps(one["traceEvents"]),
        *(trace_text(fused_trace(ranks, marking), "one_line") for marking in markings),
        trace_text(fused_trace(ranks, "device_label")),
        trace_text(gloo_trace(0, 2).trace),
        trace_text(dp_trace(devices=2).trace, "one_line"),
    ]
    return tuple(text.encode() for text in texts)


def _moved(event: dict[str, Any], zero_us: float) -> dict[str, Any]:
    return {**event, "ts": zero_us + event["ts"] % 1e6} if isinstance(event.get("ts"), float) else event


def _bytes(rng: random.Random, text: bytes) -> bytes:
    changed = bytearray(text)
    for _ in range(rng.choice((1, 1, 3, 30))):
        place = rng.randrange(len(changed))
        changed[place : place + rng.choice((0, 1, 1, 5))] = rng.randbytes(rng.choice((0, 1, 3)))
    return bytes(changed)


def _structure(rng: random.Random, text: bytes) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 20))):
        place = rng.randrange(len(text))
        text = text[:place] + rng.choice(STRUCTURE) * rng.choice((1, 1, 1, 3)) + text[place + rng.choice((0, 0, 1)) :]
    return text


def _without_structure(rng: random.Random, text: bytes) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 20))):
        place = text.find(rng.choice(STRUCTURE[:7]), rng.randrange(len(text)))
        text = text[:place] + text[place + 1 :] if place >= 0 else text
    return text


def _numbers(rng: random.Random, text: bytes) -> bytes:
    for _ in range(rng.choice((1, 2, 10))):
        key, number = b'"%s": ' % rng.choice(NUMBERED).encode(), rng.choice(NUMBERS)
        place = text.find(key, rng.randrange(len(text)))
        if place < 0:
            continue
        start = place + len(key)
        end = min(
            (found for found in (text.find(stop, start) for stop in (b",", b"}", b"\n")) if found >= 0), default=start
        )
        text = text[:start] + number + text[end:]
    return text


def _place(rng: random.Random, text: bytes) -> int:
    """In the head, before or behind an event, inside one, in the tail, or anywhere."""
    begin = text.find(b"[") + 1
    end = max(text.rfind(b"]"), begin)
    between = [text.find(b"},", rng.randrange(len(text))) + 2, text.find(b'{"', rng.randrange(len(text)))]
    return rng.choice([1, max(begin - 2, 0), begin, *between, rng.randrange(begin, end + 1), end, end + 1, len(text)])


def _huge(rng: random.Random, text: bytes) -> bytes:
    place, count = _place(rng, text), rng.choice((1000, 70_000, 1_200_000, 5_000_000))
    filling = rng.choice(FILLINGS)
    filling *= count // len(filling)
    wrapped = rng.choice(WRAPPED)
    return text[:place] + wrapped.replace(b"%s", filling) + text[place:]


def _events(rng: random.Random, text: bytes) -> bytes:
    """Events doubled, moved or left out, and pieces of other files put in."""
    start = rng.randrange(len(text))
    piece = text[start : start + rng.choice((10, 400, 20_000))]
    other = rng.choice(sources())
    place = rng.randrange(len(other))
    what = rng.randrange(4)
    if what == 0:
        return text[:start] + text[start + len(piece) :]
    if what == 1:
        return text[:start] + piece * rng.choice((2, 2, 50)) + text[start:]
    if what == 2:
        return text[:start] + other[place : place + 20_000] + text[start:]
    return text[:start]


MUTATIONS: tuple[Mutation, ...] = (
    _bytes,
    _structure,
    _structure,
    _without_structure,
    _numbers,
    _numbers,
    _huge,
    _events,
)


def case(number: int, bombs: bool = True) -> tuple[str, bytes]:
    """The name and the content of a case's file, the same whenever it is asked."""
    rng = random.Random(number)
    text = rng.choice(sources())
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        text = rng.choice(MUTATIONS)(rng, text)
    name = rng.choice([NAMES[0]] * 5 + NAMES)
    form = rng.random()
    if form < 0.6:
        return name, text
    if bombs and form < 0.64:
        return name + ".gz", _bomb(rng, text)
    packed = bytearray(gzip.compress(text, 1, mtime=0))
    if form < 0.8:
        for _ in range(rng.choice((1, 3))):
            packed[rng.randrange(len(packed))] = rng.randrange(256)
        return name + ".gz", bytes(packed[: rng.choice((len(packed), rng.randrange(1, len(packed))))])
    return name + ".gz", bytes(packed)


def _bomb(rng: random.Random, text: bytes) -> bytes:
    """Gzip members of which one repeats a few bytes many times: in the head, between events, in one, in the tail."""
    place = _place(rng, text)
    unit = rng.choice(BOMBS)
    block = unit * ((1 << 20) // len(unit))
    filling = b"".join([gzip.compress(block, 9, mtime=0)] * (rng.choice((BOMB_BYTES, BOMB_BYTES // 8)) >> 20))
    return gzip.compress(text[:place], 1) + filling + gzip.compress(text[place:], 1)


def wrong(path: Path) -> str | None:
    """What breaks when a file is analyzed, None if nothing does: an error of one line is an answer."""
    from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
    from dpscope.profiling.store.errors import DpscopeError

    try:
        analysis = analyze_traces([path])
        return broken_invariant(analysis.steps, analysis.collectives)
    except DpscopeError as error:
        return "an error of several lines" if "\n" in str(error).replace(str(path), "") else None
    except Exception:  # every other is a failure, and is told with its place
        return traceback.format_exc()


def broken_invariant(steps: Any, collectives: Any) -> str | None:
    """The first sum that does not hold, in a table of steps and one of collectives."""
    measures = ["step_us", "compute_us", "communication_us", "hidden_us", "exposed_us", "host_copy_us", "idle_us"]
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
    """A case in a process of its own, within its limits; what is wrong, None if nothing is."""
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
        resource.RLIMIT_CPU, (int(begun.ru_utime + begun.ru_stime) + SECONDS + 1, resource.RLIM_INFINITY)
    )
    # Of data, what was there when it began beside it: libraries map much that they never touch.
    resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + MEMORY_BYTES, resource.RLIM_INFINITY))
    answer = wrong(path)
    os.write(write, (answer or "").encode(errors="replace")[-4000:])
    os._exit(0)


def _data_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmData")) << 10


def _shared(numbers: list[int]) -> list[tuple[int, str]]:
    with tempfile.TemporaryDirectory() as name:
        return [(number, told) for number in numbers if (told := run_one(number, Path(name)))]


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
            for number, told in failures:
                failed += 1
                sys.stdout.write(f"case {number}: {told}\n")
                sys.stdout.flush()
                if arguments.keep:
                    arguments.keep.mkdir(parents=True, exist_ok=True)
                    file, content = case(number)
                    (arguments.keep / f"{number}-{file}").write_bytes(content)
    sys.stdout.write(f"{len(numbers)} cases, {failed} failed, {time.perf_counter() - begun:.0f} s\n")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
