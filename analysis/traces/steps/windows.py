"""The window of each step on a process's devices: from the end of the step before to the end of its own latest event."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpscope.analysis.traces.reading.event_table import BoolColumn, EventTable, FloatColumn, IntColumn, is_among
from dpscope.analysis.traces.steps.event_kind import COPY_KINDS, DEVICE_KINDS

NO_STEP = -1


@dataclass(frozen=True)
class Windows:
    """A step that launched nothing has no window: NaN. One whose work all ended before an earlier step's is hidden: NaN too.

    `whole` tells which have a start of their own; the first runs from its own first event.
    """

    start_us: FloatColumn
    end_us: FloatColumn
    whole: BoolColumn
    hidden: BoolColumn
    outlasting: IntColumn  # rows of copies that end after a later step does, and bound no window

    def index_of(self, ends_us: FloatColumn) -> IntColumn:
        """The window in which each event ends, NO_STEP for those before the first and after the last."""
        known = np.flatnonzero(np.isfinite(self.end_us))
        if not len(known):
            return np.full(len(ends_us), NO_STEP, dtype=np.int64)
        place = np.searchsorted(self.end_us[known], ends_us, side="left")
        inside = (place < len(known)) & (ends_us > self.start_us[known[0]])
        return np.where(inside, known[np.minimum(place, len(known) - 1)], NO_STEP)


def windows_of(events: EventTable, kind: npt.NDArray[np.uint8], step: IntColumn, count: int) -> Windows:
    """Windows of `count` steps, from the device events that each of them launched (`step`, NO_STEP for none)."""
    rows = np.flatnonzero(is_among(kind, DEVICE_KINDS) & (step >= 0))
    ends = _latest(step[rows], events.end_us[rows], count)
    outlasting: IntColumn = np.empty(0, dtype=np.int64)
    if _hidden(ends).any():  # a checkpoint's copy on a stream of its own may last for steps, and holds none of them up
        outlasting = _outlasting(events, rows[is_among(kind[rows], COPY_KINDS)], step, ends)
        rows = rows[~np.isin(rows, outlasting)]
        ends = _latest(step[rows], events.end_us[rows], count)
    first = np.full(count, np.inf)
    np.minimum.at(first, step[rows], events.start_us[rows])
    hidden = _hidden(ends)
    reach = np.maximum.accumulate(ends) if count else ends
    starts = np.concatenate(([-np.inf], reach[:-1])) if count else ends
    whole = np.isfinite(starts)
    has_window = np.isfinite(ends) & ~hidden
    starts = np.where(whole, starts, first)
    return Windows(np.where(has_window, starts, np.nan), np.where(has_window, reach, np.nan), whole, hidden, outlasting)


def _latest(step: IntColumn, ends_us: FloatColumn, count: int) -> FloatColumn:
    latest = np.full(count, -np.inf)
    np.maximum.at(latest, step, ends_us)
    return latest


def _hidden(ends: FloatColumn) -> BoolColumn:
    """Steps that launched something, all of which had ended when an earlier step's work did."""
    before = np.concatenate(([-np.inf], np.maximum.accumulate(ends)[:-1])) if len(ends) else ends
    return np.isfinite(ends) & (ends <= before)


def _outlasting(events: EventTable, copies: IntColumn, step: IntColumn, ends: FloatColumn) -> IntColumn:
    """Of the copies those that end after a later step which they hide."""
    hidden_ends = np.where(_hidden(ends), ends, np.inf)
    later = np.concatenate((np.minimum.accumulate(hidden_ends[::-1])[::-1][1:], [np.inf]))
    return copies[events.end_us[copies] >= later[step[copies]]]
