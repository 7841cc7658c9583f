"""Predictions from a table of measured step times alone: no trace, no calibration.

Three forecasts are joined by their geometric mean, which errs less than each alone on the public series (Bates and Granger, "The
combination of forecasts", OR 20(4), 1969): the fitted model of step_model.py; the step at the nearest measured count; and a
straight line in 1/N. The last two speak of the same batch and link only, and are left out where that was not measured.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpscope.analysis.stats.arrays import Floats
from dpscope.analysis.text.units import counted
from dpscope.analysis.what_if.bands import FARTHEST, Band, band_of
from dpscope.analysis.what_if.prediction import Prediction
from dpscope.analysis.what_if.step_model import Design, StepModel, fit_step_model
from dpscope.analysis.what_if.step_table import MeasuredStep, Placement

FEWEST_PARALLEL = 2  # rows on several devices: one cannot tell growth from noise
_BATCH_REACH = 2.0  # times the measured batches that t_1 is carried on
_IMPOSSIBLE = 0.97  # a step on several devices below this share of one device's is no data-parallel training of it
_COUNTS = 0.05  # of the step, from which on a part is named as what bounds it


@dataclass(frozen=True)
class SingleDevice:
    """t_1 by batch per device, ascending; rows at one batch are joined to their median."""

    batches: Floats
    step_us: Floats

    def at(self, batch_size: int) -> float | None:
        """Between measured batches linearly, up to twice beyond them by the nearest two; None where it is not known."""
        least, most = self.batches[0], self.batches[-1]
        if len(self.batches) == 1:
            return float(self.step_us[0]) if batch_size == least else None
        if least <= batch_size <= most:
            return float(np.interp(batch_size, self.batches, self.step_us))
        if not least / _BATCH_REACH <= batch_size <= most * _BATCH_REACH:
            return None
        pair = slice(0, 2) if batch_size < least else slice(-2, None)
        slope, start = np.polyfit(self.batches[pair], self.step_us[pair], 1)
        value = float(start + slope * batch_size)
        return value if value > 0 else None


@dataclass(frozen=True)
class LeftOut:
    """One measured row predicted without its device count."""

    row: MeasuredStep
    step_us: float
    exposed_us: float


@dataclass(frozen=True)
class TableFit:
    """What one table tells: its rows of several devices, one device's times, the model, and the method's own errors."""

    rows: tuple[MeasuredStep, ...]
    single: SingleDevice
    model: StepModel
    band: Band
    left_out: tuple[LeftOut, ...]

    @property
    def largest(self) -> int:
        return max(row.placement.ranks for row in self.rows)


def fit_table(rows: Sequence[MeasuredStep]) -> TableFit | str:
    """The fit of rows that measure one thing, or the reason why there is none."""
    single = _single_device(rows)
    if single is None:
        return "no row of one device: without t_1 there is nothing to compare several devices with"
    usable = [row for row in rows if not row.single and single.at(row.batch_size) is not None]
    parallel = [row for row in usable if row.placement.ranks > 1]
    if len(parallel) < FEWEST_PARALLEL:
        return (
            f"{len(parallel)} row on several devices at a batch that was measured on one: {FEWEST_PARALLEL} or more are "
            "needed to tell growth from noise"
        )
    for row in parallel:
        alone = single.at(row.batch_size)
        if alone is not None and row.step_us < _IMPOSSIBLE * alone:
            return (
                f"{row.placement.ranks} devices take {row.step_us / 1e3:.1f} ms where one takes {alone / 1e3:.1f} ms at the same "
                f"batch per device ({row.batch_size}): something else changed between these rows"
            )
    model = _fitted(usable, single)
    left_out = _leave_out(usable, single, model)
    return TableFit(tuple(usable), single, model, _band(left_out), tuple(left_out))


def _single_device(rows: Sequence[MeasuredStep]) -> SingleDevice | None:
    alone: dict[int, list[float]] = {}
    for row in rows:
        if row.single:
            alone.setdefault(row.batch_size, []).append(row.step_us)
    if not alone:
        return None
    batches = sorted(alone)
    return SingleDevice(np.array(batches, dtype=float), np.array([np.median(alone[batch]) for batch in batches]))


def _design(rows: Sequence[MeasuredStep], single: SingleDevice) -> Design:
    alone = [single.at(row.batch_size) for row in rows]
    assert None not in alone
    return Design.of(rows, np.array(alone, dtype=float))


def _fitted(rows: Sequence[MeasuredStep], single: SingleDevice, near: StepModel | None = None) -> StepModel:
    sync = np.array([math.nan if row.sync_us is None else row.sync_us for row in rows])
    return fit_step_model(_design(rows, single), np.array([row.step_us for row in rows]), sync, near)


def _leave_out(rows: Sequence[MeasuredStep], single: SingleDevice, near: StepModel) -> list[LeftOut]:
    """Every device count predicted from the others; counts of several nodes stay unpredicted where no other crosses nodes."""
    found = []
    for count in sorted({row.placement.ranks for row in rows if row.placement.ranks > 1}):
        kept = [row for row in rows if row.placement.ranks != count]
        levels = {_level(row.placement) for row in kept}
        asked = [row for row in rows if row.placement.ranks == count and _level(row.placement) in levels]
        if not asked or sum(row.placement.ranks > 1 for row in kept) < FEWEST_PARALLEL:
            continue
        model = _fitted(kept, single, near)
        found += [LeftOut(row, *_forecast(kept, single, model, row)) for row in asked]
    return found


def _forecast(
    rows: Sequence[MeasuredStep], single: SingleDevice, model: StepModel, asked: MeasuredStep
) -> tuple[float, float]:
    """Step and exposed communication of one configuration, in microseconds, by all forecasts that speak of it."""
    design = _design([asked], single)
    modelled, exposed = float(model.step_us(design)[0]), float(model.exposed_us(design)[0])
    if asked.placement.ranks == 1:
        return modelled, exposed
    level = _level(asked.placement)
    alike = [
        (row.placement.ranks, row.step_us)
        for row in rows
        if row.batch_size == asked.batch_size and _level(row.placement) == level
    ]
    others = [value for value in (_nearest(alike, asked), _line(alike, asked)) if value is not None and value > 0]
    step = math.exp(float(np.mean(np.log([modelled, *others]))))
    return step, max(0.0, exposed + step - modelled)


def _nearest(alike: Sequence[tuple[int, float]], asked: MeasuredStep) -> float | None:
    """The median step at the measured count nearest to the one asked for, as factors go."""
    if not alike:
        return None
    count = min({ranks for ranks, _ in alike}, key=lambda ranks: abs(math.log(ranks / asked.placement.ranks)))
    return float(np.median([step for ranks, step in alike if ranks == count]))


def _line(alike: Sequence[tuple[int, float]], asked: MeasuredStep) -> float | None:
    """A straight line through the measured steps over 1/N; None with fewer than two counts."""
    if len({ranks for ranks, _ in alike}) < 2:
        return None
    slope, start = np.polyfit([1 / ranks for ranks, _ in alike], [step for _, step in alike], 1)
    return float(start + slope / asked.placement.ranks)


def _band(left_out: Sequence[LeftOut]) -> Band:
    errors = np.array([math.log(one.step_us / one.row.step_us) for one in left_out])
    shares = np.array([one.exposed_us / one.step_us for one in left_out])
    return band_of(errors, shares, np.array([one.row.placement.ranks for one in left_out], dtype=float))


def _level(place: Placement) -> str:
    return "one device" if place.ranks == 1 else "between nodes" if place.nodes > 1 else "within a node"


def predict_step(fit: TableFit, place: Placement, batch_size: int) -> Prediction:
    """One configuration from a table's fit; a refusal carries its reason."""
    asked = Prediction(place.ranks, place.nodes, batch_size)
    reason = _refusal(fit, place, batch_size)
    if reason is not None:
        return replace(asked, reason=reason)
    row = MeasuredStep(place, batch_size, 0.0, None, single=False)
    step, exposed = _forecast(fit.rows, fit.single, fit.model, row)
    alone = fit.single.at(batch_size)
    assert alone is not None
    times = max(1.0, place.ranks / fit.largest)
    half = float(fit.band.half_width(np.array([exposed / step]), np.array([min(times, FARTHEST)]))[0])
    if times > FARTHEST:
        return replace(
            asked,
            low_us=alone,
            high_us=max(step, alone + exposed * times / FARTHEST) * math.exp(half),
            reason=f"{times:.0f}x the largest measured count ({fit.largest}): no number; the range begins at perfect scaling",
        )
    return replace(
        asked,
        step_us=step,
        low_us=max(step * math.exp(-half), min(step, alone) * math.exp(-fit.band.steady)),
        high_us=step * math.exp(half),
        exposed_us=exposed,
        efficiency=alone / step,
        bound_by="communication" if exposed > _COUNTS * step else "compute",
        rests_on=_rests_on(fit, place, batch_size),
    )


def _refusal(fit: TableFit, place: Placement, batch_size: int) -> str | None:
    if fit.single.at(batch_size) is None:
        known = ", ".join(f"{batch:.0f}" for batch in fit.single.batches)
        return f"batch {batch_size} is too far from what one device was measured at ({known})"
    level = _level(place)
    if level != "one device" and not any(_level(row.placement) == level for row in fit.rows):
        return f"no row {level} was measured: what that link costs is not known"
    return None


def _rests_on(fit: TableFit, place: Placement, batch_size: int) -> str:
    level = _level(place)
    alike = [row for row in fit.rows if _level(row.placement) == level] if level != "one device" else list(fit.rows)
    counts = sorted({row.placement.ranks for row in alike})
    span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    said = f"{counted(len(alike), 'row')} {level}, {span} devices"
    if batch_size not in fit.single.batches:
        said += "; t_1 between measured batches" if _inside(fit.single, batch_size) else "; t_1 beyond measured batches"
    if not fit.band.rows:
        said += "; band assumed, as there are few rows"
    return said


def _inside(single: SingleDevice, batch_size: int) -> bool:
    return bool(single.batches[0] <= batch_size <= single.batches[-1])
