"""Predictions from a table of measured step times alone, with a 90% band from the model's errors on the table's own rows.

Every count is predicted from the smaller ones, for each measured count as the largest, and every count but the largest from all
others. Errors grow with the exposed share of the step and with the distance in devices, so half of a band is
k sqrt(s0^2 + (s1 share)^2 + (s2 log2 times)^2) in logarithms of the step. k comes from those errors, weighted by how near their
count and distance are, and from a normal distribution where none is near: small counts say little about large ones. s0, s1 and s2
were chosen on the public T4 series (tests/data/scaling).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpscope.analysis.stats.arrays import Floats
from dpscope.analysis.what_if.prediction import BAND, FARTHEST, NINE_OF_TEN, Prediction
from dpscope.analysis.what_if.step_model import LEVELS, StepModel, fit_steps, level
from dpscope.analysis.what_if.step_table import MeasuredStep, Placement
from dpscope.profiling.records.finding import counted

_STEADY, _BY_SHARE, _BY_DISTANCE = 0.03, 0.17, 0.03
_ASSUMED_COUNTS = 0.3  # counts that the assumed width, 1.645, stands for
_NEAR_COUNT = 4.0  # errors at other counts lose weight by exp(-4) per factor of two
_MANY_ROWS = 10  # at one count, from which on their 90% quantile is used
_FASTER = 0.95  # times t_1: a median step below it is not the same training on more devices
_OTHER_UNIT = 100.0  # times t_1: a step this long suggests another unit
_TO_DEVIATION = 1.4826  # from a median absolute deviation to the standard deviation of a normal distribution
_NAMED = 0.05  # share of the step from which exposed communication is named as what bounds it


@dataclass(frozen=True)
class CountError:
    """One device count predicted without its rows: `times` the largest count fitted (1 in between), 90% of |error| / shape."""

    ranks: int
    times: float
    scaled: float


@dataclass(frozen=True)
class TableFit:
    """The model of a table's rows and its errors; `left_out` are measured rows predicted without their device count."""

    model: StepModel
    errors: tuple[CountError, ...]
    left_out: tuple[tuple[MeasuredStep, Prediction], ...]

    def alone_us(self, batch_size: int) -> float | None:
        """The measured step of one device."""
        return self.model.single.at(batch_size) if self.model.measured_alone else None

    def largest(self, place: Placement) -> int:
        """The largest device count measured over the same kind of link; 0 if none was."""
        counts = [row.placement.ranks for row in self.model.rows if level(row.placement) == level(place)]
        return max((count for count in counts if count > 1), default=0)

    def half_width(self, share: float, ranks: int, times: float) -> float:
        """Half of the 90% band, in logarithms of the step; twice the assumed width where one count leaves its growth unknown."""
        if not self.errors:
            return min(2 * NINE_OF_TEN * float(_shape(np.array([share]), times)[0]), math.log(2))
        weights = [
            math.exp(-_NEAR_COUNT * abs(math.log2(error.ranks / ranks)) - abs(math.log2(error.times / times)))
            for error in self.errors
        ]
        squares = [weight * error.scaled**2 for weight, error in zip(weights, self.errors, strict=True)]
        factor = math.sqrt((_ASSUMED_COUNTS * NINE_OF_TEN**2 + sum(squares)) / (_ASSUMED_COUNTS + sum(weights)))
        return min(factor * float(_shape(np.array([share]), times)[0]), math.log(2))


def _shape(shares: Floats, times: float) -> Floats:
    return np.asarray(np.sqrt(_STEADY**2 + (_BY_SHARE * shares) ** 2 + (_BY_DISTANCE * math.log2(times)) ** 2))


def fit_table(rows: Sequence[MeasuredStep]) -> TableFit | str:
    """The fit of rows that measure one thing, or the reason why there is none."""
    model = fit_steps(rows)
    if model is None:
        return (
            "no two device counts at a batch per device that can be compared; measure one batch per device at two counts, best "
            "on one device, too"
        )
    if model.measured_alone and (reason := _incomparable(model)) is not None:
        return reason
    errors, left_out = [], []
    for kept, held, times in _splits(model.rows):
        without = fit_steps([*kept, *(row for row in rows if row.single)])
        asked = [row for row in held if without is not None and without.single.at(row.batch_size) is not None]
        if without is None or not asked:
            continue
        steps, exposed = without.predict(asked)
        off = np.abs(np.log(steps / np.array([row.step_us for row in asked]))) / _shape(exposed / steps, times)
        many = len(off) >= _MANY_ROWS
        scaled = np.quantile(off, BAND) if many else NINE_OF_TEN * np.sqrt(np.mean(np.minimum(off, 4.0) ** 2))
        errors.append(CountError(held[0].placement.ranks, times, float(scaled)))
        if times == 1 or len(kept) + len(held) == len(model.rows):
            left_out += [
                (row, _prediction(row, step_us=float(step), exposed_us=float(late)))
                for row, step, late in zip(asked, steps, exposed, strict=True)
            ]
    return TableFit(model, tuple(errors), tuple(left_out))


def _splits(rows: Sequence[MeasuredStep]) -> Iterator[tuple[list[MeasuredStep], list[MeasuredStep], float]]:
    """Rows to fit, rows of one device count to predict, and how many times the largest fitted count that is."""
    counts = sorted({row.placement.ranks for row in rows if row.placement.ranks > 1})
    for count in counts[:-1]:
        kept = [row for row in rows if row.placement.ranks != count]
        yield kept, _over_known_links(kept, rows, count), 1.0
    for most, larger in ((most, larger) for most in counts for larger in counts if most < larger <= FARTHEST * most):
        kept = [row for row in rows if row.placement.ranks <= most]
        yield kept, _over_known_links(kept, rows, larger), larger / most


def _over_known_links(kept: Sequence[MeasuredStep], rows: Sequence[MeasuredStep], count: int) -> list[MeasuredStep]:
    known = {level(row.placement) for row in kept if row.placement.ranks > 1}
    return [row for row in rows if row.placement.ranks == count and level(row.placement) in known]


def _incomparable(model: StepModel) -> str | None:
    """Why the rows cannot be data-parallel training of what one device ran; None where they may be.

    Each device count is judged by its median, and by how much rows of one count differ, so that noise alone refuses nothing.
    """
    groups: dict[tuple[int, int], list[float]] = {}
    for row in model.rows:
        if row.placement.ranks > 1:
            ratio = math.log(row.step_us / (model.single.at(row.batch_size) or math.nan))
            groups.setdefault((level(row.placement), row.placement.ranks), []).append(ratio)
    apart = [one for group in groups.values() for one in sorted(abs(np.array(group) - np.median(group)))[1:]]
    noise = _TO_DEVIATION * float(np.median(apart)) if apart else 0.0
    for (link, count), group in groups.items():
        middle, what = float(np.median(group)), f"{counted(count, 'device')}{' between nodes' if link else ''}"
        if abs(middle) > math.log(_OTHER_UNIT):
            times = f"{math.exp(middle):,.0f}x" if middle > 0 else f"1/{math.exp(-middle):,.0f} of"
            return f"{what} take {times} the time of one at the same batch per device: check the units"
        if middle < min(math.log(_FASTER), -2 * noise / math.sqrt(len(group))):
            return (
                f"{what} take {math.exp(middle):.2f}x the time of one at the same batch per device: a step that gets faster with "
                "more devices means that something else changed between these rows"
            )
    return None


def _prediction(row: MeasuredStep, **values: float | str | None) -> Prediction:
    place = row.placement
    return replace(Prediction(place.ranks, place.nodes, row.batch_size), **values)  # type: ignore[arg-type]


def predict_step(fit: TableFit, place: Placement, batch_size: int, single: bool | None = None) -> Prediction:
    """The step of one configuration; a refusal carries its reason.

    `single`: without DistributedDataParallel; by default one device is, and several are not.
    """
    asked = MeasuredStep(place, batch_size, 0.0, None, single=place.ranks == 1 if single is None else single)
    if (reason := _refusal(fit, asked)) is not None:
        return _prediction(asked, reason=reason)
    alone = fit.model.single.at(batch_size)
    assert alone is not None
    (step,), (exposed,) = ([float(alone)], [0.0]) if asked.single else fit.model.predict([asked])
    times = max(1.0, place.ranks / largest) if (largest := fit.largest(place)) and place.ranks > 1 else 1.0
    half = fit.half_width(exposed / step, place.ranks, min(times, FARTHEST))
    if times > FARTHEST:
        return _prediction(
            asked,
            low_us=alone,
            high_us=max(step, alone + exposed * times / FARTHEST) * math.exp(half),
            reason=f"{times:.0f}x the largest measured count ({largest}): no number; the range begins at perfect scaling",
        )
    return _prediction(
        asked,
        step_us=float(step),
        low_us=max(step * math.exp(-half), min(step, alone) * math.exp(-fit.half_width(0.0, place.ranks, 1.0))),
        high_us=step * math.exp(half),
        exposed_us=float(exposed),
        efficiency=alone / step if fit.model.measured_alone else None,
        bound_by="communication" if exposed > step - exposed else "compute",
        rests_on=_rests_on(fit, asked),
    )


def _refusal(fit: TableFit, asked: MeasuredStep) -> str | None:
    known = ", ".join(f"{batch:.0f}" for batch in fit.model.single.batches)
    what = "one device was measured at" if fit.model.measured_alone else "was measured"
    if fit.model.single.at(asked.batch_size) is None:
        if known == "0":
            return f"the table has no batch_per_rank, so that it may not be of batch {asked.batch_size}"
        if asked.batch_size == 0:
            return f"no batch is given, and the step depends on it; {what}: samples {known}"
        return f"batch {asked.batch_size} is too far from what {what} ({known})"
    if asked.placement.ranks == 1 and not fit.model.measured_alone:
        return "no row of one device"
    if asked.placement.ranks > 1 and not fit.largest(asked.placement):
        return f"no row {LEVELS[level(asked.placement)]} was measured: the cost of that link is not known"
    return None


def _rests_on(fit: TableFit, asked: MeasuredStep) -> str:
    batches, batch = fit.model.single.batches, asked.batch_size
    if asked.single:
        return f"t_1, measured at {', '.join(f'{one:.0f}' for one in batches)} samples per device"
    alike = [row for row in fit.model.rows if level(row.placement) == level(asked.placement)]
    counts = sorted({row.placement.ranks for row in alike})
    span = "-".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    text = f"{counted(len(alike), 'row')} {LEVELS[level(asked.placement)]}, {span} devices"
    if not fit.model.measured_alone:
        text += "; t_1 was not measured and is part of the fit"
    if batch not in batches:
        text += f"; t_1 {'between' if batches[0] <= batch <= batches[-1] else 'beyond'} measured batches"
    return text if fit.errors else f"{text}; the band is assumed, because one device count shows no error"


def link_rate_gb_per_s(fit: TableFit, place: Placement, gradient_bytes: float) -> float | None:
    """The bus bandwidth of the fitted ring over the link of a placement; None where compute hides most of what it costs."""
    rows = [row for row in fit.model.rows if row.placement.ranks > 1 and level(row.placement) == level(place)]
    if not rows:
        return None
    steps, exposed = fit.model.predict(rows)
    hidden = float(np.median(exposed / steps)) < _NAMED
    return None if hidden else gradient_bytes / fit.model.wire_us(place.nodes > 1) / 1e3


@dataclass(frozen=True)
class Score:
    """Medians over the predicted rows; errors are shares. None where nothing of the kind was predicted.

    `overhead_error` is |predicted - measured| / (measured - t_1), which is 1 for perfect scaling. `skill` is 1 minus the ratio of
    the step's median error to that of perfect scaling. `inside` is the share of truths in the 90% bands; `rules` has the step's
    median error by each simple rule, on the same rows.
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
    rules: dict[str, float | None]


def score(fit: TableFit, predictions: Sequence[Prediction], truths: Sequence[MeasuredStep]) -> Score:
    """`predictions` of one fit against `truths`, in the same order."""
    pairs = [(one, truth) for one, truth in zip(predictions, truths, strict=True) if one.step_us is not None]
    step_errors, overhead, exposed, inside, widths = [], [], [], [], []
    rules: dict[str, list[float]] = {"perfect scaling": [], "nothing changes": [], "straight line in 1/N": []}
    for one, truth in pairs:
        assert one.step_us is not None
        off, alone = abs(one.step_us / truth.step_us - 1), fit.alone_us(truth.batch_size)
        step_errors.append(off)
        if alone is not None and truth.step_us > alone:
            overhead.append(off * truth.step_us / (truth.step_us - alone))
        if truth.sync_us is not None and one.exposed_us is not None and truth.sync_us > _NAMED * truth.step_us:
            exposed.append(abs(one.exposed_us / truth.sync_us - 1))
        if one.low_us is not None and one.high_us is not None:
            inside.append(one.low_us <= truth.step_us <= one.high_us)
            widths.append((one.high_us - one.low_us) / 2 / one.step_us)
        for rule, value in zip(rules, (alone, *_simple_rules(fit, truth)), strict=True):
            if value is not None:
                rules[rule].append(abs(value / truth.step_us - 1))
    by_rule = {rule: _median(values) for rule, values in rules.items()}
    ours, perfect = _median(step_errors), by_rule["perfect scaling"]
    return Score(
        rows=len(truths),
        declined=len(truths) - len(pairs),
        step_error=ours,
        worst_step_error=max(step_errors, default=None),
        overhead_error=_median(overhead),
        exposed_error=_median(exposed),
        skill=1 - ours / perfect if ours is not None and perfect else None,
        inside=float(np.mean(inside)) if inside else None,
        half_width=_median(widths),
        rules=by_rule,
    )


def _simple_rules(fit: TableFit, truth: MeasuredStep) -> tuple[float | None, float | None]:
    """The step at the largest count of the same batch, and on a straight line through its counts over 1/N."""
    points = [(row.placement.ranks, row.step_us) for row in fit.model.rows if row.batch_size == truth.batch_size]
    if not points:
        return None, None
    counts, steps = np.array(points).T
    line = None
    if len(set(counts)) > 1:
        slope, start = np.polyfit(1 / counts, steps, 1)
        line = float(start + slope / truth.placement.ranks)
    return float(np.median(steps[counts == counts.max()])), line


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None
