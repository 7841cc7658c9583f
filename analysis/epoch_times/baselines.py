"""The single-device time to compare a multi-device epoch time with, and values with bounds.

Words: b is the batch per device, G = N b the global batch; T is an epoch time, t a step time.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from dpscope.analysis.epoch_times.table import EpochTime
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.strategies import traits_of

SWEEP_SUFFIX = "_sweep"


class Bounded(NamedTuple):
    """`low <= value <= high`; `high` is infinite if a denominator may be zero.

    Interval arithmetic (Moore, Interval Analysis, 1966) on independent inputs: strict bounds, not standard errors.
    """

    value: float
    low: float
    high: float

    @classmethod
    def clock_reading(cls, seconds: float, resolution_s: float | None) -> "Bounded":
        """A time read from a clock or a printout with this resolution: `seconds` +- `resolution_s`.

        A rounded value errs by half a resolution, a truncated one by up to one to one side, and a difference of two
        truncated readings by up to one to either side. A table does not state which, so the widest is used. Without a
        resolution the time is exact.
        """
        margin_s = resolution_s or 0.0
        return cls(seconds, max(0.0, seconds - margin_s), seconds + margin_s)

    def minus(self, other: "Bounded") -> "Bounded":
        return Bounded(self.value - other.value, self.low - other.high, self.high - other.low)

    def times(self, factor: float) -> "Bounded":
        """The product with an exact, positive factor."""
        assert factor > 0
        return Bounded(self.value * factor, self.low * factor, self.high * factor)

    def per(self, other: "Bounded") -> "Bounded":
        """The quotient of two non-negative values; `other.value` is positive."""
        assert self.low >= 0
        assert other.low >= 0
        assert other.value > 0
        high = self.high / other.low if other.low > 0 else math.inf
        return Bounded(self.value / other.value, self.low / other.high, high)

    def straddles(self, level: float) -> bool:
        """Whether the bounds include `level`; False for an exact value."""
        return self.low < self.high and self.low <= level <= self.high


class Baseline(NamedTuple):
    """A single-device epoch time, or the reason why there is none."""

    seconds: Bounded | None
    note: str  # its origin, or the reason


class Baselines:
    """The one-device rows of a table, looked up for its multi-device rows.

    A baseline has the same study, model, data set and samples per epoch, and strategy `single`, or else the row's strategy on
    one device. Rows of the same hardware come first ("1x L4" also serves "4x L4").

    A run uses its own rows, or those of a run with the suffix `_sweep`, which has only one-device rows. A ratio prefers the
    run's own row, so that both times come from one run. A subtraction prefers the sweep: it compares times across batch sizes,
    which the sweep measured together. A run without one-device rows uses the study's only run that has nothing else.
    """

    def __init__(self, rows: Sequence[EpochTime]) -> None:
        self._single = [row for row in rows if row.devices == 1]
        several = {(row.study, row.run) for row in rows if row.devices > 1}
        self._single_only = {(row.study, row.run) for row in self._single} - several

    def find(self, row: EpochTime, batch_size: int, *, sweep_first: bool) -> Baseline:
        """The single-device time at `batch_size` for a multi-device row."""
        for run in self._runs(row, sweep_first):
            found = self._rows_at(row, run, batch_size)
            if len(found) > 1:
                note = f"{len(found)} different single-device times at batch {batch_size}: name one run for each"
                return Baseline(None, note)
            if found:
                return _baseline(found[0], row)
        return Baseline(None, f"no single-device time at {counted(batch_size, 'sample')} per device")

    def _runs(self, row: EpochTime, sweep_first: bool) -> list[str | None]:
        sweep = f"{row.run}{SWEEP_SUFFIX}" if row.run else None
        runs = [row.run]
        if sweep and (row.study, sweep) in self._single_only:
            runs = [sweep, row.run] if sweep_first else [row.run, sweep]
        if not any((one.study, one.run) == (row.study, run) for run in runs for one in self._single):
            others = sorted({run or "" for study, run in self._single_only if study == row.study})
            if len(others) == 1:
                runs = [others[0] or None]
        return runs

    def _rows_at(self, row: EpochTime, run: str | None, batch_size: int) -> list[EpochTime]:
        found = [
            one
            for one in self._single
            if (one.study, one.run, one.model) == (row.study, run, row.model)
            and (one.dataset, one.samples_per_epoch) == (row.dataset, row.samples_per_epoch)
            and one.batch_size == batch_size
        ]
        baselines = [one for one in found if traits_of(one.strategy).baseline]
        for of_strategy in (baselines, [one for one in found if one.strategy == row.strategy]):
            if of_strategy:
                same_hardware = [one for one in of_strategy if one.hardware == row.hardware]
                return same_hardware or of_strategy
        return []


def epoch_bounds(row: EpochTime) -> Bounded | None:
    """A row's epoch time within its clock's bounds; None if it ran out of memory."""
    if row.epoch_seconds is None:
        return None
    return Bounded.clock_reading(row.epoch_seconds, row.resolution_s)


def local_batch(row: EpochTime) -> int | None:
    """b, the samples per device in one step; None if unknown or not the same on all devices."""
    if row.batch_size_is == "per_device" or row.devices == 1:
        return row.batch_size
    if row.batch_size_is == "global" and row.batch_size % row.devices == 0:
        return row.batch_size // row.devices
    return None


def global_batch(row: EpochTime) -> int | None:
    """G, the samples of all devices in one step; None if the table does not state what its batch is."""
    if row.batch_size_is == "global" or row.devices == 1:
        return row.batch_size
    return row.batch_size * row.devices if row.batch_size_is == "per_device" else None


def steps_in_epoch(row: EpochTime) -> int | None:
    """The stated steps, or else ceil(samples / G); None if unknown."""
    size = global_batch(row)
    if row.steps_per_epoch is not None:
        return row.steps_per_epoch
    if size is None or row.samples_per_epoch is None:
        return None
    return -(-row.samples_per_epoch // size)


def _baseline(one: EpochTime, row: EpochTime) -> Baseline:
    where = "" if one.run == row.run else f" of run {one.run}"
    seconds = epoch_bounds(one)
    if seconds is None:
        return Baseline(None, f"the single device ran out of memory at batch {one.batch_size}{where}")
    return Baseline(seconds, f"T_1 at batch {one.batch_size}{where}")
