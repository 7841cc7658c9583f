"""The cases of fuzz_reading.py: a number chooses a sound trace, some mutations of it and how it is
packed.
"""

import gzip
import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

BOMB_BYTES = 96 << 20  # what a small file expands to
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
    from tests.generated_traces.generator import (
        DdpOptions,
        ddp_trace,
        dp_trace,
        gloo_trace,
        trace_text,
    )

    ranks = [ddp_trace(rank, 2, DdpOptions(straggler=1)).trace for rank in range(2)]
    one = ddp_trace(0, 4, DdpOptions(lag=True)).trace
    since_1970 = {
        **one,
        "traceEvents": [_moved(event, 1_694_128_201_226_418.25) for event in one["traceEvents"]],
    }
    several = {
        **ranks[0],
        "traceEvents": [
            {**event, "pid": 5000 + rank} if event.get("ph") == "X" else event
            for rank, trace in enumerate(ranks)
            for event in trace["traceEvents"]
        ],
    }
    texts = [
        trace_text(one),
        trace_text(one, "one_line"),
        trace_text(since_1970, "one_line"),
        json.dumps(one["traceEvents"]),
        *(trace_text(rank, "one_line") for rank in ranks),
        trace_text(several, "one_line"),
        trace_text(gloo_trace(0, 2).trace),
        trace_text(dp_trace(devices=2).trace, "one_line"),
    ]
    return tuple(text.encode() for text in texts)


def _moved(event: dict[str, Any], zero_us: float) -> dict[str, Any]:
    return (
        {**event, "ts": zero_us + event["ts"] % 1e6}
        if isinstance(event.get("ts"), float)
        else event
    )


def _bytes(rng: random.Random, text: bytes) -> bytes:
    changed = bytearray(text)
    for _ in range(rng.choice((1, 1, 3, 30))):
        place = rng.randrange(len(changed))
        changed[place : place + rng.choice((0, 1, 1, 5))] = rng.randbytes(rng.choice((0, 1, 3)))
    return bytes(changed)


def _structure(rng: random.Random, text: bytes) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 20))):
        place = rng.randrange(len(text))
        text = (
            text[:place]
            + rng.choice(STRUCTURE) * rng.choice((1, 1, 1, 3))
            + text[place + rng.choice((0, 0, 1)) :]
        )
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
            (
                found
                for found in (text.find(stop, start) for stop in (b",", b"}", b"\n"))
                if found >= 0
            ),
            default=start,
        )
        text = text[:start] + number + text[end:]
    return text


def _place(rng: random.Random, text: bytes) -> int:
    """In the head, before or behind an event, inside one, in the tail, or anywhere."""
    begin = text.find(b"[") + 1
    end = max(text.rfind(b"]"), begin)
    between = [
        text.find(b"},", rng.randrange(len(text))) + 2,
        text.find(b'{"', rng.randrange(len(text))),
    ]
    return rng.choice(
        [
            1,
            max(begin - 2, 0),
            begin,
            *between,
            rng.randrange(begin, end + 1),
            end,
            end + 1,
            len(text),
        ]
    )


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
    """The name and the content of a case's file, always the same."""
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
        return name + ".gz", bytes(
            packed[: rng.choice((len(packed), rng.randrange(1, len(packed))))]
        )
    return name + ".gz", bytes(packed)


def _bomb(rng: random.Random, text: bytes) -> bytes:
    """Gzip members of which one repeats a few bytes many times: in the head, between events, in
    one, in the tail.
    """
    place = _place(rng, text)
    unit = rng.choice(BOMBS)
    block = unit * ((1 << 20) // len(unit))
    filling = b"".join(
        [gzip.compress(block, 9, mtime=0)] * (rng.choice((BOMB_BYTES, BOMB_BYTES // 8)) >> 20)
    )
    return gzip.compress(text[:place], 1) + filling + gzip.compress(text[place:], 1)
