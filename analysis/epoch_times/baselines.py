"""The single-device row of a table to compare each multi-device row with."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain

from dpscope.analysis.epoch_times.epoch_time import EpochTime
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.strategies import traits_of

_COMMON = ("run", "model", "dataset", "samples_per_epoch")
"""Columns in which a row and its single-device row agree, except for the rules of `Baselines.find`."""


class Baselines:
    """The one-device rows of a table, by what a multi-device row that is compared with them has in common with them."""

    def __init__(self, rows: Iterable[EpochTime]) -> None:
        self._alike: dict[tuple[object, ...], list[EpochTime]] = defaultdict(list)
        self._measured: dict[str | None, set[str | None]] = defaultdict(set)  # by study: runs with one-device rows
        several: dict[str | None, set[str | None]] = defaultdict(set)
        for one in rows:
            if one.devices == 1:
                self._alike[self._key(one, one.run, one.batch_size)].append(one)
            (self._measured if one.devices == 1 else several)[one.study].add(one.run)
        self._single_only = {study: runs - several[study] for study, runs in self._measured.items()}

    @staticmethod
    def _key(row: EpochTime, run: str | None, batch_size: int) -> tuple[object, ...]:
        return (row.study, run, row.model, row.dataset, batch_size)

    def find(self, row: EpochTime, batch_size: int, *, sweep_first: bool) -> tuple[EpochTime | None, str]:
        """The timed one-device row at `batch_size` to compare `row` with, and its origin; else None and the reason.

        It has the same study, model and data set, a known ratio of samples per epoch, and strategy `single`, or else the row's
        strategy on one device. Rows of the same hardware come first ("1x L4" also serves "4x L4").

        A run uses its own rows, or those of a run with the suffix `_sweep`, which has only one-device rows. A ratio prefers the
        run's own row, so that both times come from one run. A subtraction prefers the sweep: it compares times across batch
        sizes, which the sweep measured together. A run without one-device rows uses the study's only run that has nothing else.
        """
        measured, single_only = self._measured.get(row.study, set()), self._single_only.get(row.study, set())
        runs, sweep = [row.run], f"{row.run}_sweep"
        if row.run and sweep in single_only:
            runs = [sweep, row.run] if sweep_first else [row.run, sweep]
        if measured.isdisjoint(runs) and len(single_only) == 1:
            runs = list(single_only)
        for run in runs:
            alike = self._alike.get(self._key(row, run, batch_size), [])
            same = [one for one in alike if one.samples_per_epoch == row.samples_per_epoch]
            alike = same or [one for one in alike if row.samples_over(one) is not None]
            found = [one for one in alike if traits_of(one.strategy).baseline]
            found = found or [one for one in alike if one.strategy == row.strategy]
            found = [one for one in found if one.hardware == row.hardware] or found
            if len(found) > 1:
                return None, f"{len(found)} different single-device times at batch {batch_size}: name one run for each"
            for one in found:
                where = "" if one.run == row.run else f" of run {one.run}"
                if one.epoch_seconds is None:
                    return None, f"the single device ran out of memory at batch {batch_size}{where}"
                return one, f"T_1 at batch {batch_size}{where}"
        return None, self._missing(row, batch_size)

    def out_of_memory(self, row: EpochTime, batch_size: int) -> bool:
        """Whether a single device ran out of memory at that batch."""
        alike = chain.from_iterable(self._alike.values())
        setting = (row.study, row.model, batch_size)
        return any((one.study, one.model, one.batch_size) == setting and one.epoch_seconds is None for one in alike)

    def _missing(self, row: EpochTime, batch_size: int) -> str:
        """Why no single-device time at `batch_size` is compared with the row: there is none, or what it differs in."""
        for other in chain.from_iterable(self._alike.values()):
            if (other.study, other.batch_size) == (row.study, batch_size):
                differing = [name for name in _COMMON if getattr(other, name) != getattr(row, name)]
                if differing:
                    names = ", ".join(f"{name} {getattr(other, name) or 'empty'}" for name in differing)
                    return f"no single-device time at batch {batch_size} is comparable: the table's has {names}"
        return f"no single-device time at {counted(batch_size, 'sample')} per device"
