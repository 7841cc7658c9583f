"""Predictions from a table of measured step times alone: no trace, no calibration.

The forecasts of forecasts.py, joined; a band from how wrong they are on the table's own rows (bands.py); or the reason why the
table does not tell.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpscope.analysis.what_if.bands import FARTHEST, Bands, Errors
from dpscope.analysis.what_if.forecasts import LINKS, MODEL, Hindcast, Trust, combined_us, disagreement, level, trust_of
from dpscope.analysis.what_if.hindcasts import FittedRows, design_of, from_fewer, leave_out
from dpscope.analysis.what_if.prediction import Prediction
from dpscope.analysis.what_if.single_device import SingleDevice, single_device
from dpscope.analysis.what_if.step_table import MeasuredStep, Placement
from dpscope.profiling.records.finding import counted

_IMPOSSIBLE = 0.95  # a step on several devices below this share of one device's is no data-parallel training of it
_OTHER_UNIT = 100.0  # times one device's step: rather another unit than communication
_TO_DEVIATION = 1.4826  # from a median absolute deviation to a normal distribution's standard deviation
_COUNTS = 0.05  # of the step, from which on a part is named as what bounds it


@dataclass(frozen=True)
class LeftOut:
    """One measured row predicted without its device count."""

    row: MeasuredStep
    step_us: float
    exposed_us: float


@dataclass(frozen=True)
class TableFit:
    """What one table tells: its rows with what is fitted to them, and the method's own errors."""

    fitted: FittedRows
    trust: Mapping[str, Trust]  # of each forecast, by link
    band: Bands
    left_out: tuple[LeftOut, ...]

    @property
    def rows(self) -> tuple[MeasuredStep, ...]:
        return self.fitted.rows

    @property
    def single(self) -> SingleDevice:
        return self.fitted.single

    def largest(self, link: str) -> int:
        """The most devices that were measured over this kind of link."""
        return max((row.placement.ranks for row in self.rows if level(row.placement) == link), default=1)


def fit_table(rows: Sequence[MeasuredStep]) -> TableFit | str:
    """The fit of rows that measure one thing, or the reason why there is none."""
    single = single_device(rows)
    if single is None:
        return "no row of one device: without t_1 there is nothing to compare several devices with"
    usable = [row for row in rows if not row.single and single.at(row.batch_size) is not None]
    if not any(row.placement.ranks > 1 for row in usable):
        known = ", ".join(f"{batch:.0f}" for batch in single.batches)
        return f"no row of several devices at a batch per device that one device was measured at ({known})"
    if (why := _incomparable(usable, single)) is not None:
        return why
    fitted = FittedRows.of(usable, single)
    without, forward = leave_out(usable, single), from_fewer(usable, single)
    trust = {link: trust_of(forward or without, link, _steep(fitted, link)) for link in LINKS}
    left_out = tuple(_left_out(one, trust) for one in without)
    return TableFit(fitted, trust, Bands(_errors(without, trust), _errors(forward, trust)), left_out)


def _steep(fitted: FittedRows, link: str) -> bool:
    return link in fitted.growths and fitted.growths[link].steep


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
    apart: list[float] = []
    for group in ratios.values():  # the least one is left out: it is the median itself, or half of a pair
        apart += sorted(abs(one - float(np.median(group))) for one in group)[1:]
    noise = _TO_DEVIATION * float(np.median(apart)) if apart else 0.0
    for (link, count), group in ratios.items():
        middle, told = float(np.median(group)), f"{count} devices {link if link == 'between nodes' else ''}".strip()
        if abs(middle) > math.log(_OTHER_UNIT):
            times = f"{math.exp(middle):,.0f}x" if middle > 0 else f"1/{math.exp(-middle):,.0f} of"
            return f"{told} take {times} the time of one at the same batch per device: check the units"
        if middle < min(math.log(_IMPOSSIBLE), -2 * noise / math.sqrt(len(group))):
            return (
                f"{told} take {math.exp(middle):.2f}x the time of one at the same batch per device: a step that gets faster with "
                "more devices means that something else changed between these rows"
            )
    return None


def _left_out(one: Hindcast, trust: Mapping[str, Trust]) -> LeftOut:
    step = combined_us(one.forecasts, trust[level(one.row.placement)])
    modelled = one.forecasts[MODEL]
    return LeftOut(one.row, step, max(0.0, one.exposed_share * modelled + step - modelled))


def _errors(hindcasts: Sequence[Hindcast], trust: Mapping[str, Trust]) -> Errors:
    trusts = [trust[level(one.row.placement)] for one in hindcasts]
    steps = [combined_us(one.forecasts, own) for one, own in zip(hindcasts, trusts, strict=True)]
    return Errors(
        logs=np.array([math.log(step / one.row.step_us) for step, one in zip(steps, hindcasts, strict=True)]),
        shares=np.array([one.exposed_share for one in hindcasts]),
        ranks=np.array([one.row.placement.ranks for one in hindcasts], dtype=float),
        times=np.array([one.times for one in hindcasts]),
        apart=np.array([disagreement(one.forecasts, own) for one, own in zip(hindcasts, trusts, strict=True)]),
    )


def link_rate(fit: TableFit, link: str, gradient_bytes: float) -> float | None:
    """The bus bandwidth, GB/s, that the fitted ring has over a link; None where too little of it is exposed to tell."""
    rows = [row for row in fit.rows if level(row.placement) == link]
    if not rows:
        return None
    design, model = design_of(rows, fit.single), fit.fitted.model
    if float(np.median(model.exposed_us(design) / model.step_us(design))) < _COUNTS:
        return None
    return float(gradient_bytes / np.median(model.wire_us(design)) / 1e3)


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
    ((forecasts, share),) = fit.fitted.forecasts([row])
    trust, alone, largest = fit.trust[level(place)], fit.single.at(batch_size), fit.largest(level(place))
    assert alone is not None
    step = combined_us(forecasts, trust)
    exposed = max(0.0, share * forecasts[MODEL] + step - forecasts[MODEL])
    times = max(1.0, place.ranks / largest)
    band, reach = fit.band.at(place.ranks), min(times, FARTHEST)
    apart = disagreement(forecasts, trust)
    half = float(band.half_width(np.array([exposed / step]), np.array([reach]), np.array([apart]))[0])
    steepest = 0.0
    if times > 1:  # else the measured counts tell how far it goes
        steepest = fit.fitted.growths[level(place)].steepest_us(alone, batch_size, place.ranks) or 0.0
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
        low_us=max(step * math.exp(-half), min(step, alone) * math.exp(-band.steady)),
        high_us=max(step * math.exp(half), steepest),
        exposed_us=exposed,
        efficiency=alone / step,
        bound_by="communication" if exposed > _COUNTS * step else "compute",
        rests_on=_rests_on(fit, place, batch_size),
    )


def _on_one_device(fit: TableFit, asked: Prediction, batch_size: int) -> Prediction:
    alone = fit.single.at(batch_size)
    assert alone is not None
    width = math.exp(fit.band.at(1).steady)
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
    if not fit.band.at(place.ranks).rows:
        said += "; band assumed in part, as there are few rows"
    return said


def _inside(single: SingleDevice, batch_size: int) -> bool:
    return bool(single.batches[0] <= batch_size <= single.batches[-1])
