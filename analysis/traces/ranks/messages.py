"""Exposed communication by the size of its messages: are there many small ones, bound by latency?"""

from collections.abc import Sequence
from dataclasses import dataclass

from dpscope.analysis.traces.ranks.whole_steps import STEP_KEYS
from dpscope.analysis.traces.reading.event_table import BoolColumn
from dpscope.analysis.traces.reading.table import Table

SMALL = 1 << 18  # bytes of a collective, up to which its latency is most of its time on usual links
MANY = 8  # small collectives of a step


def is_small(collectives: Table) -> BoolColumn:
    """Rows of at most SMALL bytes, broadcasts left out."""
    few = collectives.known("bytes") & (collectives["bytes"] <= SMALL)
    return few & ~collectives.words("kind").isin("broadcast")


@dataclass(frozen=True)
class Messages:
    """Exposed communication without waiting, by the size of its collectives: means over windows,
    microseconds per step.

    Broadcasts are in neither. `small_us` is of collectives of at most SMALL bytes, of which a step
    has `small_count`; `small_transfer_us` is the part of it that could be separated from waiting.
    `large_us` is of the reductions above it.
    """

    small_us: float
    small_transfer_us: float
    small_count: float
    large_us: float

    @property
    def many(self) -> bool:
        """Whether a step has so many small collectives that fewer of them can be sent."""
        return self.small_count >= MANY


def messages_of(
    windows: Table, parts: Table, collectives: Table, reducing: Sequence[str]
) -> Messages:
    """From whole windows, `exposed_parts` and the collectives of these windows."""
    sized = parts.within(windows, STEP_KEYS)
    sized = sized.take(
        sized.known("bytes")
        & ~sized.words("part").isin("wait")
        & ~sized.words("kind").isin("broadcast")
    )
    small, count = is_small(sized), max(len(windows), 1)
    transfer, reduces = sized.words("part").isin("transfer"), sized.words("kind").isin(*reducing)
    small_us, small_transfer_us, large_us = (
        float(sized["time_us"][rows].sum()) / count
        for rows in (small, small & transfer, ~small & reduces)
    )
    return Messages(
        small_us, small_transfer_us, float(is_small(collectives).sum()) / count, large_us
    )
