"""Predictions from a table of measured step times, with a 90% band from the model's errors on the table itself.

Every count is predicted from the smaller ones, for each measured count as the largest, and every count but the largest from all
others. Errors grow with the exposed share of the step and with the distance in devices, so half of a band is
k sqrt(s0^2 + (s1 share)^2 + (s2 log2 times)^2) in logarithms of the step. k comes from those errors, weighted by how near their
count and distance are, and from a normal distribution where none is near: errors at small counts are no evidence for large ones.
s0, s1 and s2 were chosen on the public T4 series (tests/data/scaling).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dpscope.analysis.stats.samples import Floats
from dpscope.analysis.what_if.prediction import BAND, FARTHEST, NINE_OF_TEN, Prediction
from dpscope.analysis.what_if.step_model import StepModel, fit_steps
from dpscope.analysis.what_if.step_table import LINKS, MeasuredStep
from dpscope.profiling.records.finding import counted

_STEADY, _BY_SHARE, _BY_DISTANCE = 0.03, 0.17, 0.03
_ASSUMED_COUNTS = 0.3  # counts that the assumed width, 1.645, stands for
_NEAR_COUNT = 4.0  # errors at other counts lose weight by exp(-4) per factor of two
_MANY_ROWS = 10  # at one count, from which on their 90% quantile is used
_FASTER = 0.95  # times t_1: a median step below it is not the same training on more devices
_OTHER_UNIT = 100.0  # times t_1: a step this long suggests another unit
_TO_DEVIATION = 1.4826  # from a median absolute deviation to the standard deviation of a normal distribution
_RULES = ("perfect scaling", "nothing changes", "straight line in 1/N")
_NAMED = 0.05  # share of the step from which exposed communication is named as what bounds it


class CountError(NamedTuple):
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

    def largest(self, link: int) -> int:
        """The largest device count measured over a link; 0 if none was."""
        return max((row.ranks for row in self.model.rows if row.link == link and row.ranks > 1), default=0)

    def half_width(self, share: float, ranks: int, times: float) -> float:
        """Half of the 90% band, in logarithms of the step; twice the assumed width where one count leaves its growth unknown."""
        shape = float(_shape(share, times))
        if not self.errors:
            return min(2 * NINE_OF_TEN * shape, math.log(2))
        counts, distances, scaled = np.array(self.errors).T
        weights = np.exp(-_NEAR_COUNT * abs(np.log2(counts / ranks)) - abs(np.log2(distances / times)))
        square = (_ASSUMED_COUNTS * NINE_OF_TEN**2 + weights @ scaled**2) / (_ASSUMED_COUNTS + weights.sum())
        return float(min(math.sqrt(square) * shape, math.log(2)))

    def link_rate_gb_per_s(self, link: int, gradient_bytes: float) -> float | None:
        """The bus bandwidth of the fitted ring over a link; None where compute hides most of what it costs."""
        steps, exposed = self.model.predict([row for row in self.model.rows if row.ranks > 1 and row.link == link])
        hidden = float(np.median(exposed / steps)) < _NAMED
        return None if hidden else gradient_bytes / self.model.wire_us(link) / 1e3


def _shape(shares: Floats | float, times: float) -> Floats:
    return np.asarray(np.sqrt(_STEADY**2 + (_BY_SHARE * shares) ** 2 + (_BY_DISTANCE * math.log2(times)) ** 2))


def fit_table(rows: Sequence[MeasuredStep]) -> TableFit | str:
    """The fit of rows that measure one thing, or the reason why there is none."""
    if (model := fit_steps(rows)) is None:
        return (
            "no two device counts at a batch per device that can be compared; measure one batch per device at two counts, best "
            "on one device, too"
        )
    if model.single.measured and (reason := _incomparable(model)) is not None:
        return reason
    errors, left_out = [], []
    for kept, held, times in _splits(model.rows):
        without = fit_steps([*kept, *(row for row in rows if row.single)])
        held = [row for row in held if without is not None and without.single.at(row.batch_size) is not None]
        if without is None or not held:
            continue
        steps, exposed = without.predict(held)
        off = np.abs(np.log(steps / np.array([row.step_us for row in held]))) / _shape(exposed / steps, times)
        typical = NINE_OF_TEN * np.sqrt(np.mean(np.minimum(off, 4.0) ** 2))
        scaled = np.quantile(off, BAND) if len(off) >= _MANY_ROWS else typical
        errors.append(CountError(held[0].ranks, times, float(scaled)))
        if times == 1 or len(kept) + len(held) == len(model.rows):
            pairs = zip(held, steps.tolist(), exposed.tolist(), strict=True)
            left_out += [(row, replace(row.unanswered, step_us=us, exposed_us=late)) for row, us, late in pairs]
    return TableFit(model, tuple(errors), tuple(left_out))


def _splits(rows: Sequence[MeasuredStep]) -> Iterator[tuple[list[MeasuredStep], list[MeasuredStep], float]]:
    """Rows to fit, rows of one device count to predict, and how many times the largest fitted count that is."""
    counts = sorted({row.ranks for row in rows if row.ranks > 1})
    pairs = [(most, larger) for most in counts for larger in counts if most < larger <= FARTHEST * most]
    for most, count in [*((math.inf, count) for count in counts[:-1]), *pairs]:
        kept = [row for row in rows if row.ranks <= most and row.ranks != count]
        links = {row.link for row in kept if row.ranks > 1}
        held = [row for row in rows if row.ranks == count and row.link in links]
        yield kept, held, max(1.0, count / most)


def _incomparable(model: StepModel) -> str | None:
    """Why the rows cannot be data-parallel training of what one device ran; None where they may be.

    Each device count is judged by its median relative to the noise among rows of one count.
    """
    groups: dict[tuple[int, int], list[float]] = {}
    for row in model.rows:
        if row.ranks > 1 and (alone := model.single.at(row.batch_size)):
            groups.setdefault((row.link, row.ranks), []).append(math.log(row.step_us / alone))
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


def predict_step(fit: TableFit | str, row: MeasuredStep) -> Prediction:
    """The step of a row's configuration, whatever its times; a refusal carries its reason."""
    reason = fit if isinstance(fit, str) else _refusal(fit, row)
    if isinstance(fit, str) or reason is not None or (alone := fit.model.single.at(row.batch_size)) is None:
        return replace(row.unanswered, reason=reason)
    (step,), (exposed,) = ([alone], [0.0]) if row.single else (one.tolist() for one in fit.model.predict([row]))
    largest = fit.largest(row.link) or 1
    times = max(1.0, row.ranks / largest)
    half = fit.half_width(exposed / step, row.ranks, min(times, FARTHEST))
    if times > FARTHEST:
        return replace(
            row.unanswered,
            low_us=alone,
            high_us=max(step, alone + exposed * times / FARTHEST) * math.exp(half),
            reason=f"{times:.0f}x the largest measured count ({largest}): no number; the range begins at perfect scaling",
        )
    return replace(
        row.unanswered,
        step_us=step,
        low_us=max(step * math.exp(-half), min(step, alone) * math.exp(-fit.half_width(0.0, row.ranks, 1.0))),
        high_us=step * math.exp(half),
        exposed_us=exposed,
        efficiency=alone / step if fit.model.single.measured else None,
        bound_by="communication" if exposed > step - exposed else "compute",
        rests_on=_rests_on(fit, row),
    )


def _refusal(fit: TableFit, row: MeasuredStep) -> str | None:
    single = fit.model.single
    if single.at(row.batch_size) is None:
        known = ", ".join(f"{batch:.0f}" for batch in single.batches)
        measured = "one device was measured at" if single.measured else "was measured"
        if known == "0":
            return f"the table has no batch_per_rank, so that it may not be of batch {row.batch_size}"
        if row.batch_size == 0:
            return f"no batch is given, and the step depends on it; {measured}: samples {known}"
        return f"batch {row.batch_size} is too far from what {measured} ({known})"
    if row.ranks == 1:
        return None if single.measured else "no row of one device"
    return (
        None if fit.largest(row.link) else f"no row {LINKS[row.link]} was measured: the cost of that link is not known"
    )


def _rests_on(fit: TableFit, row: MeasuredStep) -> str:
    batches = fit.model.single.batches
    if row.single:
        return f"t_1, measured at {', '.join(f'{one:.0f}' for one in batches)} samples per device"
    counts = sorted(other.ranks for other in fit.model.rows if other.link == row.link)
    span = "-".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    where = "between" if batches[0] <= row.batch_size <= batches[-1] else "beyond"
    clauses = {
        f"{counted(len(counts), 'row')} {LINKS[row.link]}, {span} devices": True,
        "t_1 was not measured and is part of the fit": not fit.model.single.measured,
        f"t_1 {where} measured batches": row.batch_size not in batches,
        "the band is assumed, because one device count shows no error": not fit.errors,
    }
    return "; ".join(clause for clause, applies in clauses.items() if applies)


@dataclass(frozen=True)
class Score:
    """Medians over the predicted rows; errors are shares. None where nothing of the kind was predicted.

    `overhead_error` is |predicted - measured| / (measured - t_1), which is 1 for perfect scaling. `inside` is the share of
    truths in the 90% bands; `rules` has the step's median error by each simple rule, on the same rows.
    """

    rows: int
    declined: int
    step_error: float | None
    worst_step_error: float | None
    overhead_error: float | None
    exposed_error: float | None
    inside: float | None
    half_width: float | None
    rules: dict[str, float | None]


def score(fit: TableFit, rows: Sequence[tuple[MeasuredStep, Prediction]]) -> Score:
    """How well the predictions of one fit describe measured rows."""
    pairs = [(row, one) for row, one in rows if one.step_us is not None]
    columns = [(one.step_us, one.low_us, one.high_us, one.exposed_us, row.step_us, row.sync_us) for row, one in pairs]
    step, low, high, exposed, true, sync = np.array(columns, dtype=float).reshape(-1, 6).T
    rules = np.array([_simple_rules(fit, row) for row, _ in pairs], dtype=float).reshape(-1, len(_RULES)).T
    off, alone = np.abs(step / true - 1), rules[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        overhead = (off * true / (true - alone))[true > alone]
    long = sync > _NAMED * true
    inside = ((low <= true) & (true <= high))[np.isfinite(low)]
    return Score(
        rows=len(rows),
        declined=len(rows) - len(pairs),
        step_error=_median(off),
        worst_step_error=float(off.max()) if len(off) else None,
        overhead_error=_median(overhead),
        exposed_error=_median(np.abs(exposed[long] / sync[long] - 1)),
        inside=float(inside.mean()) if len(inside) else None,
        half_width=_median((high - low) / 2 / step),
        rules={rule: _median(np.abs(values / true - 1)) for rule, values in zip(_RULES, rules, strict=True)},
    )


def _simple_rules(fit: TableFit, truth: MeasuredStep) -> tuple[float | None, ...]:
    """In the order of _RULES: t_1; the step at the largest count of the same batch; a line through its counts over 1/N."""
    single, unchanged, line = fit.model.single, None, None
    if points := [(row.ranks, row.step_us) for row in fit.model.rows if row.batch_size == truth.batch_size]:
        counts, steps = np.array(points).T
        unchanged = float(np.median(steps[counts == counts.max()]))
        if len(set(counts)) > 1:
            line = float(np.polyval(np.polyfit(1 / counts, steps, 1), 1 / truth.ranks))
    return single.at(truth.batch_size) if single.measured else None, unchanged, line


def _median(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else None
