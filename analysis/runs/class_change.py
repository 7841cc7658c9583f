"""Classes of kernels in the traced steps of two runs: what other numbers of calls cost, and what
other durations.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from dpscope.analysis.stats.samples import ALONE, Noise, noise_of, spread_of
from dpscope.analysis.traces.ranks.whole_steps import STEP_KEYS
from dpscope.analysis.traces.reading.event_table import BoolColumn, FloatColumn, IntColumn
from dpscope.analysis.traces.reading.table import Table, joined
from dpscope.analysis.traces.steps.kernel_work import CLASS

Occurrence = Literal["both", "renamed", "new", "gone"]
SIGNIFICANT = 0.05  # of naming any class by chance
_LEAST_SHARE = 0.01  # of the step, on either side: smaller classes are not tested
_FEWEST_REPEATS = 2


@dataclass(frozen=True)
class PartChange:
    """A part of the traced step in both runs, such as waiting for one rank; microseconds a step."""

    part: str
    before_us: float
    after_us: float

    @property
    def change_us(self) -> float:
        return self.after_us - self.before_us


@dataclass(frozen=True)
class ClassChange(PartChange):
    """A class of kernels; `part` is the operator that launched them. Calls and times are per step.

    `count_us` is what other numbers of calls cost, at the mean before; `duration_us` what other
    durations cost, at the calls after. Together they are the change. Of `duration_us`, `alone_us`
    is by what the kernels last without communication next to them, and the rest is contention; None
    where either run has no such kernel.
    """

    kernel: str
    calls_before: float
    calls_after: float
    occurrence: Occurrence
    count_us: float
    duration_us: float
    alone_us: float | None
    critical_change_us: float | None  # on the critical rank
    probability: float | None  # of such a change by chance, corrected for all classes
    sizes_known: bool = True  # of its kernels' inputs

    @property
    def contention_us(self) -> float | None:
        """Of `duration_us`: what communication next to the kernels costs more."""
        return None if self.alone_us is None else self.duration_us - self.alone_us

    @property
    def significant(self) -> bool | None:
        """Whether it changed beyond what repeats differ by; None where that is not known."""
        return None if self.probability is None else self.probability < SIGNIFICANT


@dataclass(frozen=True)
class StepKernels:
    """The windows of whole steps, and the rows of `kernel_work` in them."""

    windows: Table
    rows: Table

    @classmethod
    def of(cls, windows: Table, kernels: Table) -> "StepKernels":
        return cls(windows, kernels.within(windows, STEP_KEYS) if len(kernels) else kernels)

    @property
    def step_us(self) -> float:
        """The mean step."""
        return float(self.windows["step_us"].mean())

    def of_rank(self, rank: int) -> "StepKernels":
        return self._where("rank", rank)

    def of_each_repeat(self) -> "list[StepKernels]":
        return [
            self._where("repeat", repeat) for repeat in np.unique(self.windows["repeat"]).tolist()
        ]

    def _where(self, column: str, value: int) -> "StepKernels":
        return StepKernels(
            self.windows.take(self.windows[column] == value),
            self.rows.take(self.rows[column] == value),
        )

    def per_step(self, column: str, classes: int) -> FloatColumn:
        """The mean of a column over the windows, by class."""
        sums = np.bincount(self.rows["class"], self.rows[column], classes)
        return np.asarray(sums / max(len(self.windows), 1), dtype=np.float64)


def class_changes(
    before: StepKernels, after: StepKernels, critical_rank: int | None = None
) -> list[ClassChange]:
    """Of every class that either run has: their changes add up to the change of compute."""
    classes = _numbered(before.rows, after.rows)
    before = replace(before, rows=classes.before)
    after = replace(after, rows=classes.after)
    count = len(classes.names)
    first, second = (_Means.of(side, count) for side in (before, after))
    critical_us = np.full(count, np.nan)
    if critical_rank is not None:
        earlier, later = (
            side.of_rank(critical_rank).per_step("time_us", count) for side in (before, after)
        )
        critical_us = later - earlier
    probabilities = _probabilities(before, after, count)
    changes = []
    for code, (operator, kernel) in enumerate(classes.names):
        earlier_class, later_class = first.of_class(code), second.of_class(code)
        if not (earlier_class.present or later_class.present):
            continue  # joined with another one
        change_us = later_class.time_us - earlier_class.time_us
        count_us, alone_us = _effects_us(earlier_class, later_class)
        changes.append(
            ClassChange(
                part=operator,
                before_us=earlier_class.time_us,
                after_us=later_class.time_us,
                kernel=kernel,
                calls_before=earlier_class.calls,
                calls_after=later_class.calls,
                occurrence=_occurrence(earlier_class, later_class, bool(classes.renamed[code])),
                count_us=count_us,
                duration_us=change_us - count_us,
                alone_us=alone_us,
                critical_change_us=_known(critical_us[code]),
                probability=_known(probabilities[code]),
                sizes_known=bool(classes.sizes_known[code]),
            )
        )
    return changes


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


class _ClassMeans(NamedTuple):
    """Of one class in one run, per step."""

    calls: float
    time_us: float
    free_calls: float
    free_us: float

    @property
    def present(self) -> bool:
        return self.calls > 0 or self.time_us > 0

    @property
    def each_us(self) -> float:
        """The mean time of a call."""
        return self.time_us / self.calls

    @property
    def each_free_us(self) -> float | None:
        """The mean time of a call next to which no communication runs; None for none."""
        return self.free_us / self.free_calls if self.free_calls else None


class _Means(NamedTuple):
    """The columns of `_ClassMeans`, a value per class."""

    calls: FloatColumn
    time_us: FloatColumn
    free_calls: FloatColumn
    free_us: FloatColumn

    @classmethod
    def of(cls, side: StepKernels, classes: int) -> "_Means":
        return cls(*(side.per_step(column, classes) for column in cls._fields))

    def of_class(self, code: int) -> _ClassMeans:
        return _ClassMeans(*(float(column[code]) for column in self))


def _occurrence(before: _ClassMeans, after: _ClassMeans, renamed: bool) -> Occurrence:
    if not before.present:
        return "new"
    if not after.present:
        return "gone"
    return "renamed" if renamed else "both"


def _effects_us(before: _ClassMeans, after: _ClassMeans) -> tuple[float, float | None]:
    """`count_us` and `alone_us` of a ClassChange; a class that one run lacks changes by its count."""
    if not before.calls or not after.calls:
        return after.time_us - before.time_us, None
    count_us = (after.calls - before.calls) * before.each_us
    if before.each_free_us is None or after.each_free_us is None:
        return count_us, None
    return count_us, after.calls * (after.each_free_us - before.each_free_us)


@dataclass(frozen=True)
class _Numbered:
    """Both runs' rows with a column `class`, an index into `names` (operator, kernel)."""

    before: Table
    after: Table
    names: Sequence[tuple[str, str]]
    sizes_known: BoolColumn
    renamed: BoolColumn  # classes whose kernels have another name in either run


def _numbered(before: Table, after: Table) -> _Numbered:
    both = joined([before, after])
    is_after = np.arange(len(both)) >= len(before)
    classes = both.group(*CLASS)
    code = _with_renamed(both, classes.code, is_after)
    renamed = np.zeros(len(classes), dtype=bool)
    renamed[code[code != classes.code]] = True
    first = both.take(classes.first).records(("operator", "kernel"))
    return _Numbered(
        before=before.assign(**{"class": code[~is_after]}),
        after=after.assign(**{"class": code[is_after]}),
        sizes_known=both["sizes"][classes.first] >= 0,
        names=[(str(row["operator"]), str(row["kernel"])) for row in first],
        renamed=renamed,
    )


def _with_renamed(both: Table, code: IntColumn, is_after: BoolColumn) -> IntColumn:
    """The classes with those joined that have another name in either run, as where a library chose
    another algorithm: the same operator launched them on inputs of the same, known sizes.
    """
    alone = np.flatnonzero(~_on_both_sides(code, is_after)[code] & (both["sizes"] >= 0))
    if not len(alone):
        return code
    like = both.take(alone).group("operator", "sizes")
    matched = _on_both_sides(like.code, is_after[alone])[like.code]
    found = code.copy()
    found[alone[matched]] = code[alone[like.first]][like.code][matched]
    return found


def _on_both_sides(code: IntColumn, is_after: BoolColumn) -> BoolColumn:
    """Which groups have rows of both runs."""
    rows = np.bincount(code)
    later = np.bincount(code, is_after, len(rows))
    return np.asarray((later > 0) & (later < rows))


def _probabilities(before: StepKernels, after: StepKernels, classes: int) -> FloatColumn:
    """How likely a change as large is by chance, by class, corrected for all that are tested; NaN
    for others.

    Student's t of the logarithms of the repeats' means, whose variance is in part that of the other
    classes, as between cells; with the freedom of two unlike variances (Welch, Biometrika 34, 1947),
    corrected for the number of classes (Holm, Scandinavian Journal of Statistics 6, 1979).
    """
    found = np.full(classes, np.nan)
    sides = [
        np.stack([repeat.per_step("time_us", classes) for repeat in side.of_each_repeat()])
        for side in (before, after)
    ]
    if min(map(len, sides)) < _FEWEST_REPEATS:
        return found
    shares = [
        side.mean(axis=0) / run.step_us for side, run in zip(sides, (before, after), strict=True)
    ]
    always = np.all([(side > 0).all(axis=0) for side in sides], axis=0)
    tested = np.flatnonzero(always & (np.max(shares, axis=0) >= _LEAST_SHARE))
    logs = [np.log(side[:, tested]).T for side in sides]
    differences = np.abs(logs[1].mean(axis=1) - logs[0].mean(axis=1))
    each = [
        _by_chance(difference, *noises)
        for difference, *noises in zip(differences.tolist(), *map(_noises, logs), strict=True)
    ]
    found[tested] = _holm(np.array(each))
    return found


def _noises(logs: FloatColumn) -> list[Noise]:
    """Of each class, a row of its repeats."""
    pool = sum(map(spread_of, logs), ALONE)
    noises = [noise_of(repeats, pool) for repeats in logs]
    return [noise for noise in noises if noise is not None]  # all are: there are two repeats


def _by_chance(difference: float, first: Noise, second: Noise) -> float:
    """How likely means lie so far apart by chance."""
    from scipy.special import stdtr  # here: scipy takes 0.1 s to import

    squares = [noise.variance / noise.repeats for noise in (first, second)]
    if sum(squares) == 0:  # repeats that are equal to the last digit leave no doubt
        return float(difference == 0)
    freedom = sum(squares) ** 2 / sum(
        square**2 / noise.freedom for square, noise in zip(squares, (first, second), strict=True)
    )
    return 2 * float(stdtr(freedom, -difference / math.sqrt(sum(squares))))


def _holm(probabilities: FloatColumn) -> FloatColumn:
    """The same, corrected for being so many."""
    order = np.argsort(probabilities)
    factors = np.arange(len(order), 0, -1)
    corrected = np.minimum(np.maximum.accumulate(factors * probabilities[order]), 1.0)
    found = np.empty_like(corrected)
    found[order] = corrected
    return found
