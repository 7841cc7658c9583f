"""Which single-device time a multi-device epoch time may be compared with.

Words: b is the batch per device, G = N b the global batch; T is an epoch time, t a step time.
"""

from collections.abc import Sequence
from typing import NamedTuple

from dpscope.analysis.epoch_times.bounded_values import Bounded
from dpscope.analysis.epoch_times.table import EpochTime
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.strategies import traits_of

SWEEP_SUFFIX = "_sweep"


class Baseline(NamedTuple):
    """A single-device epoch time, or why there is none."""

    seconds: Bounded | None
    note: str  # where it comes from, or why it is unknown


class Baselines:
    """The one-device rows of a table, looked up for its multi-device rows.

    A one-device row is a baseline of a row of the same study, model, data set and samples per epoch, of
    strategy `single`, else of the row's own strategy on one device. Rows of the same hardware come first, as
    people also write "1x L4" beside "4x L4".

    Runs: a run's own rows, or those of the run named as it is plus `_sweep`, which holds one-device rows only.
    A ratio takes the run's own first: both of its times then come from one run. A subtraction takes the
    sweep's first: it compares times across batch sizes, and the sweep measured those together. A run without
    one-device rows takes those of the study's only run that holds nothing else.
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
    """A row's epoch time with the bounds its clock leaves; None when it ran out of memory."""
    if row.epoch_seconds is None:
        return None
    return Bounded.clock_reading(row.epoch_seconds, row.resolution_s)


def local_batch(row: EpochTime) -> int | None:
    """b: samples per device in one step; None when unknown or when the devices do not share evenly."""
    if row.batch_size_is == "per_device" or row.devices == 1:
        return row.batch_size
    if row.batch_size_is == "global" and row.batch_size % row.devices == 0:
        return row.batch_size // row.devices
    return None


def global_batch(row: EpochTime) -> int | None:
    """G: samples in one step over all devices; None when the table does not say what its batch is."""
    if row.batch_size_is == "global" or row.devices == 1:
        return row.batch_size
    return row.batch_size * row.devices if row.batch_size_is == "per_device" else None


def steps_in_epoch(row: EpochTime) -> int | None:
    """The steps the table states, else ceil(samples / G); None when the table does not tell."""
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
