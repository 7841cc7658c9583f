"""Which traced steps averages are of: those with a complete window, without the few that take far
longer than the others.
"""

import numpy as np

from dpscope.analysis.traces.reading.event_table import BoolColumn
from dpscope.analysis.traces.reading.table import Table

UNKNOWN_START = "what the device did before it was not recorded, so its start there is unknown"
"""Why the first traced step of a device is partial."""

STEP_KEYS = ("repeat", "rank", "device", "step")
"""What a row of a job's steps is of."""

# as the median step of the same repeat, from which on a step is no usual one...
TIMES_AS_LONG = 3.0
# ...if at most this part of the steps is, or one: more of them are a part of the training
MOST_LONG = 0.25
# collectives of a step over the median of its rank's steps: another kind of step
TIMES_AS_MANY = 2.0
FEWEST_STEPS = 3  # whole windows: of two none is the usual one


def whole_steps(steps: Table) -> Table:
    """Steps with a complete window that are not `far_longer`; all of them if no window is complete."""
    whole = _whole(steps)
    if not whole.any():
        return steps
    return steps.take(whole & ~far_longer(steps))


def far_longer(steps: Table) -> BoolColumn:
    """The rows of whole steps that take more than TIMES_AS_LONG the median, by the longest window
    of each.

    A job's step is far longer as a whole, since its ranks wait for each other. Steps that hold more
    collectives are another kind of step, which belongs to the training as the others do.
    """
    far = np.zeros(len(steps), dtype=bool)
    rows = np.flatnonzero(_whole(steps) & steps.known("step") & steps.known("step_us"))
    windows = steps.take(rows)
    repeats = windows.group(*windows.present("repeat"))
    for of_repeat in repeats.rows():
        far[rows[of_repeat]] = _far_longer(windows.take(of_repeat))
    return far


def far_longer_count(steps: Table) -> int:
    """Steps of all repeats with `far_longer` rows."""
    far = steps.take(far_longer(steps))
    return len(far.group("repeat", "step"))


def _whole(steps: Table) -> BoolColumn:
    return ~steps.truths("partial_window", missing=True)


def _far_longer(windows: Table) -> BoolColumn:
    """The rows of one repeat."""
    numbers = windows.group("step")
    longest_us = numbers.most(windows["step_us"])
    far = longest_us > TIMES_AS_LONG * np.median(longest_us)
    if "collective_count" in windows:
        counts = np.nan_to_num(numbers.most(windows.real("collective_count")))
        usual = float(np.median(counts))
        far &= (counts < TIMES_AS_MANY * usual) | (usual == 0)
    if len(numbers) < FEWEST_STEPS or far.sum() > max(1, MOST_LONG * len(numbers)):
        far[:] = False
    return np.asarray(far[numbers.code], dtype=np.bool_)
