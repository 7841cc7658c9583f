"""Cycles of unlike steps: every how many steps a script does the same again, by what each of its
steps did.
"""

from collections import Counter
from collections.abc import Sequence
from operator import eq
from typing import Any, NamedTuple

from torch import distributed

from dpscope.profiling.records.finding import grouped

LONGEST_CYCLE = 20  # steps
# A longer cycle may contain a short pattern twice in a row, so that a short one must repeat more
# often.
_SHORT = 3  # steps
_REPEATS_OF_SHORT = 3
UNSETTLED_STEPS = 2  # at first: DDP rebuilds its buckets, which changes its collectives


class StepEvents(NamedTuple):
    """What a step did, as far as it distinguishes kinds of steps."""

    other_optimizers: int  # steps of optimizers other than the first
    training_calls: int  # of the models
    collectives: int  # of the default process group


class CollectiveCount:
    """Counts the collectives of the default process group, those of DDP too, by the sequence
    numbers that torch gives them.
    """

    def __init__(self) -> None:
        self._last: int | None = None

    def take(self) -> int:
        """The number since the last time; 0 where it is not known."""
        number: int | None = None
        if distributed.is_available() and distributed.is_initialized():
            try:
                # whose stub lacks the method
                group: Any = distributed.distributed_c10d._get_default_group()
                number = group._get_sequence_number_for_group()
            except RuntimeError:  # a backend without numbers
                number = None
        last, self._last = self._last, number
        return number - last if number is not None and last is not None else 0


def without_short(steps: Sequence[StepEvents]) -> list[StepEvents]:
    """The steps without those that call the models less often than most do, as at the end of an
    epoch with accumulation.

    Compared are steps with as many steps of other optimizers; of two numbers of calls that are as
    frequent the larger is usual.
    """
    usual = {}
    for others, alike in grouped(
        (step.other_optimizers, step.training_calls) for step in steps
    ).items():
        counts = Counter(alike)
        usual[others] = max(counts, key=lambda calls: (counts[calls], calls))
    return [step for step in steps if step.training_calls >= usual[step.other_optimizers]]


def cycle_of(steps: Sequence[StepEvents]) -> int | None:
    """The length of the cycle in which steps repeat, 1 if all are alike; None if these steps do not
    show it yet, or never.

    The last steps must repeat it, since the first ones may differ: a generator that is trained in
    every fifth step has its DDP rebuild buckets in the tenth.

    >>> critic, both = StepEvents(0, 2, 1), StepEvents(1, 3, 2)
    >>> cycle_of([critic, critic, both] * 3), cycle_of([critic] * 8), cycle_of([critic, both, both, critic, both])
    (3, 1, None)
    """
    steps = without_short(steps)
    if len(set(steps)) < 2:
        return 1 if len(steps) > 1 else None
    for length in range(2, LONGEST_CYCLE + 1):
        repeats = _REPEATS_OF_SHORT if length <= _SHORT else 2
        recent = steps[-length * repeats :]
        is_whole = len(recent) == length * repeats
        if is_whole and len(set(recent)) > 1 and all(map(eq, recent, recent[length:])):
            return length
    return None
