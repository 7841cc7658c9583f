"""The parts of a replayed step, as the ledger of a traced one has them: compute, exposed communication of each kind, idle."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

Span = tuple[float, float]
"""Start and end, microseconds from the step's start."""


class StepParts(NamedTuple):
    """Microseconds; the parts add up to the replayed step. See `Ledger` for what each is."""

    compute: float = 0.0
    exposed_wait: float = 0.0
    exposed_transfer: float = 0.0
    exposed_other: float = 0.0
    idle: float = 0.0


def exposed_split(
    exposed: Sequence[Span], transfers: Sequence[Span], waits: Sequence[Span], others: Sequence[Span]
) -> tuple[float, float, float]:
    """Exposed wait, transfer and other: a moment counts as transfer, else as wait, else as other, else as none of them.

    `exposed` are the stretches in which the device waits for communication.

    >>> exposed_split([(10.0, 50.0)], [(20.0, 30.0)], [(5.0, 25.0)], [(28.0, 40.0)])  # 10-20 waits, 20-30 moves, 30-40 is other
    (10.0, 10.0, 10.0)
    """
    transferring = _union(transfers)
    in_wait = _union([*transferring, *waits])
    in_flight = _union([*in_wait, *others])
    moved, waited, every = (_shared(exposed, spans) for spans in (transferring, in_wait, in_flight))
    return waited - moved, moved, every - waited


def _union(spans: Iterable[Span]) -> list[Span]:
    """The same stretches of time without overlaps, in order."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def _shared(exposed: Sequence[Span], spans: Sequence[Span]) -> float:
    """How long both last; each list is in order and without overlaps."""
    total, place = 0.0, 0
    for start, end in exposed:
        while place < len(spans) and spans[place][1] <= start:
            place += 1
        at = place
        while at < len(spans) and spans[at][0] < end:
            total += min(end, spans[at][1]) - max(start, spans[at][0])
            at += 1
    return total
