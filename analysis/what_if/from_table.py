"""Predictions from a table of measured step times alone: no trace, no calibration.

The forecasts of forecasts.py, joined; a band from how wrong they are on the table's own rows (bands.py); or the reason why the
table does not tell.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpscope.analysis.stats.arrays import Floats
from dpscope.analysis.what_if.bands import FARTHEST, Band, Errors, band_of
from dpscope.analysis.what_if.forecasts import (
    LINKS,
    MODEL,
    Hindcast,
    combined_us,
    grown,
    level,
    simple_forecasts,
    weights,
)
from dpscope.analysis.what_if.prediction import Prediction
from dpscope.analysis.what_if.step_model import Design, StepModel, fit_step_model
from dpscope.analysis.what_if.step_table import MeasuredStep, Placement
from dpscope.profiling.records.finding import counted

_BATCH_REACH = 2.0  # times the measured batches that t_1 is carried on
_IMPOSSIBLE = 0.95  # a step on several devices below this share of one device's is no data-parallel training of it
_OTHER_UNIT = 100.0  # times one device's step: rather another unit than communication
_TO_DEVIATION = 1.4826  # from a median absolute deviation to a normal distribution's standard deviation
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
    trust: Mapping[str, Mapping[str, float]]  # of each forecast, by link
    band: Band
    left_out: tuple[LeftOut, ...]

    def largest(self, link: str) -> int:
        """The most devices that were measured over this kind of link."""
        return max((row.placement.ranks for row in self.rows if level(row.placement) == link), default=1)


def fit_table(rows: Sequence[MeasuredStep]) -> TableFit | str:
    """The fit of rows that measure one thing, or the reason why there is none."""
    single = _single_device(rows)
    if single is None:
        return "no row of one device: without t_1 there is nothing to compare several devices with"
    usable = [row for row in rows if not row.single and single.at(row.batch_size) is not None]
    if not any(row.placement.ranks > 1 for row in usable):
        known = ", ".join(f"{batch:.0f}" for batch in single.batches)
        return f"no row of several devices at a batch per device that one device was measured at ({known})"
    if (why := _incomparable(usable, single)) is not None:
        return why
    model = _fitted(usable, single)
    without = _leave_out(usable, single)
    forward = _from_fewer(usable, single)
    trust = {link: weights(forward or without, link) for link in LINKS}
    band = _band(without, forward, trust)
    return TableFit(tuple(usable), single, model, trust, band, tuple(_left_out(one, trust) for one in without))


def _incomparable(rows: Sequence[MeasuredStep], single: SingleDevice) -> str | None:
    """Why the rows are no data-parallel training of what one device ran; None where they may be.

    Judged by the median of each device count, and by what rows of one count differ among themselves: noise alone refuses nothing.
    """
    ratios: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if row.placement.ranks > 1:
            alone = single.at(row.batch_size)
            assert alone is not None
            ratios.setdefault((level(row.placement), row.placement.ranks), []).append(math.log(row.step_us / alone))
    apart = [abs(one - float(np.median(group))) for group in ratios.values() if len(group) > 1 for one in group]
    noise = _TO_DEVIATION * float(np.median(apart)) if apart else 0.0
    for (link, count), group in ratios.items():
        middle, told = float(np.median(group)), f"{count} devices {link if link == 'between nodes' else ''}".strip()
        if middle < min(math.log(_IMPOSSIBLE), -2 * noise / math.sqrt(len(group))):
            return (
                f"{told} take {math.exp(middle):.2f}x the time of one at the same batch per device: a step that gets faster with "
                "more devices means that something else changed between these rows"
            )
        if middle > math.log(_OTHER_UNIT):
            return f"{told} take {math.exp(middle):.0f}x the time of one at the same batch per device: check the units"
    return None


def _single_device(rows: Sequence[MeasuredStep]) -> SingleDevice | None:
    """Rows of one device; of DistributedDataParallel on one device where there are no others."""
    alone: dict[int, list[float]] = {}
    chosen = [row for row in rows if row.single] or [row for row in rows if row.placement.ranks == 1]
    for row in chosen:
        alone.setdefault(row.batch_size, []).append(row.step_us)
    if not alone:
        return None
    batches = sorted(alone)
    return SingleDevice(np.array(batches, dtype=float), np.array([np.median(alone[batch]) for batch in batches]))


def _design(rows: Sequence[MeasuredStep], single: SingleDevice) -> Design:
    alone = [single.at(row.batch_size) for row in rows]
    assert None not in alone
    return Design.of(rows, np.array(alone, dtype=float))


def _fitted(rows: Sequence[MeasuredStep], single: SingleDevice) -> StepModel:
    sync = np.array([math.nan if row.sync_us is None else row.sync_us for row in rows])
    return fit_step_model(_design(rows, single), np.array([row.step_us for row in rows]), sync)


def _leave_out(rows: Sequence[MeasuredStep], single: SingleDevice) -> list[Hindcast]:
    """Every device count forecast from the others; counts of several nodes stay out where no other crosses nodes."""
    found = []
    for count in sorted({row.placement.ranks for row in rows if row.placement.ranks > 1}):
        kept = [row for row in rows if row.placement.ranks != count]
        held = [row for row in rows if row.placement.ranks == count]
        found += _hindcasts(kept, held, single, None)
    return found


def _from_fewer(rows: Sequence[MeasuredStep], single: SingleDevice) -> list[Hindcast]:
    """The rows of more devices forecast from those of fewer, from each measured count on."""
    found = []
    for most in sorted({row.placement.ranks for row in rows if row.placement.ranks > 1})[:-1]:
        kept = [row for row in rows if row.placement.ranks <= most]
        held = [row for row in rows if most < row.placement.ranks <= FARTHEST * most]
        found += _hindcasts(kept, held, single, most)
    return found


def _hindcasts(
    kept: Sequence[MeasuredStep],
    held: Sequence[MeasuredStep],
    single: SingleDevice,
    largest: int | None,
) -> list[Hindcast]:
    links = {level(row.placement) for row in kept}
    asked = [row for row in held if level(row.placement) in links]
    if not asked or not any(row.placement.ranks > 1 for row in kept):
        return []
    model = _fitted(kept, single)
    return [Hindcast(row, *_forecast(kept, single, model, row), largest) for row in asked]


def _forecast(
    rows: Sequence[MeasuredStep], single: SingleDevice, model: StepModel, asked: MeasuredStep
) -> tuple[dict[str, float], float]:
    """Every forecast of one configuration, microseconds, and the share that the model says is exposed."""
    design = _design([asked], single)
    modelled, exposed = float(model.step_us(design)[0]), float(model.exposed_us(design)[0])
    alone = single.at(asked.batch_size)
    assert alone is not None
    others = {} if asked.placement.ranks == 1 else simple_forecasts(rows, alone, asked)
    return {MODEL: modelled, **others}, exposed / modelled


def _left_out(one: Hindcast, trust: Mapping[str, Mapping[str, float]]) -> LeftOut:
    step = combined_us(one.forecasts, trust[level(one.row.placement)])
    modelled = one.forecasts[MODEL]
    return LeftOut(one.row, step, max(0.0, one.exposed_share * modelled + step - modelled))


def _band(without: Sequence[Hindcast], forward: Sequence[Hindcast], trust: Mapping[str, Mapping[str, float]]) -> Band:
    def told(hindcasts: Sequence[Hindcast]) -> Errors:
        steps = [combined_us(one.forecasts, trust[level(one.row.placement)]) for one in hindcasts]
        return Errors(
            np.array([math.log(step / one.row.step_us) for step, one in zip(steps, hindcasts, strict=True)]),
            np.array([one.exposed_share for one in hindcasts]),
            np.array([one.row.placement.ranks for one in hindcasts], dtype=float),
            np.array([one.times for one in hindcasts]),
        )

    return band_of(told(without), told(forward))


def link_rate(fit: TableFit, link: str, gradient_bytes: float) -> float | None:
    """The bus bandwidth, GB/s, that the fitted ring has over a link; None where too little of it is exposed to tell."""
    rows = [row for row in fit.rows if level(row.placement) == link]
    if not rows:
        return None
    design = _design(rows, fit.single)
    if float(np.median(fit.model.exposed_us(design) / fit.model.step_us(design))) < _COUNTS:
        return None
    return float(gradient_bytes / np.median(fit.model.wire_us(design)) / 1e3)


def predict_step(fit: TableFit, place: Placement, batch_size: int, single: bool | None = None) -> Prediction:
    """One configuration from a table's fit; a refusal carries its reason.

    `single`: one device without DistributedDataParallel, which is what one device means where nothing is said.
    """
    asked = Prediction(place.ranks, place.nodes, batch_size)
    reason = _refusal(fit, place, batch_size)
    if reason is not None:
        return replace(asked, reason=reason)
    if single is True or (single is None and place.ranks == 1):
        return _on_one_device(fit, asked, batch_size)
    row = MeasuredStep(place, batch_size, 0.0, None, single=False)
    forecasts, share = _forecast(fit.rows, fit.single, fit.model, row)
    step = combined_us(forecasts, fit.trust[level(place)])
    exposed = max(0.0, share * forecasts[MODEL] + step - forecasts[MODEL])
    alone = fit.single.at(batch_size)
    assert alone is not None
    largest = fit.largest(level(place))
    times = max(1.0, place.ranks / largest)
    half = float(fit.band.half_width(np.array([exposed / step]), np.array([min(times, FARTHEST)]))[0])
    steepest = (grown(fit.rows, alone, row) or 0.0) if times > 1 else 0.0
    if times > FARTHEST:
        return replace(
            asked,
            low_us=alone,
            high_us=max(step, alone + exposed * times / FARTHEST, steepest) * math.exp(half),
            reason=f"{times:.0f}x the largest measured count ({largest}): no number; the range begins at perfect scaling",
        )
    return replace(
        asked,
        step_us=step,
        low_us=max(step * math.exp(-half), min(step, alone) * math.exp(-fit.band.steady)),
        high_us=max(step * math.exp(half), steepest),
        exposed_us=exposed,
        efficiency=alone / step,
        bound_by="communication" if exposed > _COUNTS * step else "compute",
        rests_on=_rests_on(fit, place, batch_size),
    )


def _on_one_device(fit: TableFit, asked: Prediction, batch_size: int) -> Prediction:
    alone = fit.single.at(batch_size)
    assert alone is not None
    width = math.exp(fit.band.steady)
    listed = ", ".join(f"{batch:.0f}" for batch in fit.single.batches)
    return replace(
        asked,
        step_us=alone,
        low_us=alone / width,
        high_us=alone * width,
        exposed_us=0.0,
        efficiency=1.0,
        bound_by="compute",
        rests_on=f"t_1, measured at {listed} samples a device",
    )


def _refusal(fit: TableFit, place: Placement, batch_size: int) -> str | None:
    if fit.single.at(batch_size) is None:
        known = ", ".join(f"{batch:.0f}" for batch in fit.single.batches)
        if known == "0":
            return f"the table has no batch_per_rank, so whether it is of batch {batch_size} is not known"
        if batch_size == 0:
            return f"no batch is given, and one device was measured at {known} samples: each takes another time"
        return f"batch {batch_size} is too far from what one device was measured at ({known})"
    link = level(place)
    if link != "one device" and not any(level(row.placement) == link for row in fit.rows):
        return f"no row {link} was measured: what that link costs is not known"
    return None


def _rests_on(fit: TableFit, place: Placement, batch_size: int) -> str:
    link = level(place)
    alike = [row for row in fit.rows if level(row.placement) == link] if link != "one device" else list(fit.rows)
    counts = sorted({row.placement.ranks for row in alike})
    span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    said = f"{counted(len(alike), 'row')} {link}, {span} devices"
    if batch_size not in fit.single.batches:
        said += "; t_1 between measured batches" if _inside(fit.single, batch_size) else "; t_1 beyond measured batches"
    if not fit.band.rows:
        said += "; band assumed in part, as there are few rows"
    return said


def _inside(single: SingleDevice, batch_size: int) -> bool:
    return bool(single.batches[0] <= batch_size <= single.batches[-1])
