"""Predictions beside what was measured, and beside what simple rules would have said."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.what_if.bands import coverage
from dpscope.analysis.what_if.from_table import TableFit
from dpscope.analysis.what_if.prediction import Prediction
from dpscope.analysis.what_if.step_table import MeasuredStep

_EXPOSED_COUNTS = 0.05  # of the step, from which on the error of exposed communication is told


@dataclass(frozen=True)
class Score:
    """Medians over the predicted rows; errors are shares. None where nothing of the kind was predicted.

    `overhead_error` is |predicted - measured| / (measured - t_1): perfect scaling makes 1 there. `skill` is 1 minus the ratio of
    the step's median error to that of perfect scaling: above 0 beats it. `inside` is the share of truths in the 90% bands.
    """

    rows: int
    declined: int
    step_error: float | None
    worst_step_error: float | None
    overhead_error: float | None
    exposed_error: float | None
    skill: float | None
    inside: float | None
    half_width: float | None
    rules: Mapping[str, float | None]  # the median error of the step by each simple rule, on the same rows


def score(fit: TableFit, predictions: Sequence[Prediction], truths: Sequence[MeasuredStep]) -> Score:
    """`predictions` of one fit beside `truths`, in the same order."""
    pairs = [(said, true) for said, true in zip(predictions, truths, strict=True) if said.step_us is not None]
    rules: dict[str, Callable[[MeasuredStep], float | None]] = {
        "perfect scaling": lambda row: fit.single.at(row.batch_size),
        "nothing changes": lambda row: _largest_alike(fit, row),
        "straight line in 1/N": lambda row: _line(fit, row),
    }
    by_rule = {name: _median([_off(rule(true), true.step_us) for _, true in pairs]) for name, rule in rules.items()}
    steps = [_off(said.step_us, true.step_us) for said, true in pairs]
    perfect, ours = by_rule["perfect scaling"], _median(steps)
    known = [one for one in steps if one is not None]
    return Score(
        rows=len(truths),
        declined=len(truths) - len(pairs),
        step_error=ours,
        worst_step_error=max(known) if known else None,
        overhead_error=_median([_overhead(fit, said, true) for said, true in pairs]),
        exposed_error=_median([_exposed(said, true) for said, true in pairs]),
        skill=1 - ours / perfect if ours is not None and perfect else None,
        inside=coverage(
            [one.low_us for one, _ in pairs], [one.high_us for one, _ in pairs], [t.step_us for _, t in pairs]
        ),
        half_width=_median([_half(said) for said, _ in pairs]),
        rules=by_rule,
    )


def _off(value: float | None, truth: float) -> float | None:
    return None if value is None else abs(value / truth - 1)


def _overhead(fit: TableFit, said: Prediction, true: MeasuredStep) -> float | None:
    alone = fit.single.at(true.batch_size)
    if alone is None or said.step_us is None or true.step_us <= alone:
        return None
    return abs(said.step_us - true.step_us) / (true.step_us - alone)


def _exposed(said: Prediction, true: MeasuredStep) -> float | None:
    if true.sync_us is None or said.exposed_us is None or true.sync_us <= _EXPOSED_COUNTS * true.step_us:
        return None
    return abs(said.exposed_us / true.sync_us - 1)


def _half(said: Prediction) -> float | None:
    if said.low_us is None or said.high_us is None or said.step_us is None:
        return None
    return (said.high_us - said.low_us) / 2 / said.step_us


def _largest_alike(fit: TableFit, row: MeasuredStep) -> float | None:
    """The step at the largest measured count and the same batch."""
    alike = [one for one in fit.rows if one.batch_size == row.batch_size]
    if not alike:
        return None
    most = max(one.placement.ranks for one in alike)
    return float(np.median([one.step_us for one in alike if one.placement.ranks == most]))


def _line(fit: TableFit, row: MeasuredStep) -> float | None:
    """A straight line through the measured steps of the same batch over 1/N."""
    alike = [one for one in fit.rows if one.batch_size == row.batch_size]
    if len({one.placement.ranks for one in alike}) < 2:
        return None
    slope, start = np.polyfit([1 / one.placement.ranks for one in alike], [one.step_us for one in alike], 1)
    return float(start + slope / row.placement.ranks)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None
