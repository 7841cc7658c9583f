"""Scaling laws that the sound speedups of a table support."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dpscope.analysis.epoch_times.epoch_time import EpochTime
from dpscope.analysis.epoch_times.estimates import EpochEstimate
from dpscope.analysis.stats.scaling_laws import Scaling, fit_scaling

_SCALINGS: dict[str | None, Scaling] = {"global": "strong", "per_device": "weak"}


class EpochLaw(NamedTuple):
    """The law that the speedups of one series support.

    `note` states why a value is missing, or where a limit cut the fit off.
    """

    study: str | None
    run: str | None
    strategy: str
    batch_size: int
    scaling: Scaling
    law: str
    parameters: Mapping[str, float]
    speedups: Mapping[int, float]  # as measured, by device count
    worst_relative_error: float | None
    note: str


_Series = tuple[str | None, str | None, str, int, Scaling]


def law_fits(rows: Sequence[EpochTime], estimates: Sequence[EpochEstimate]) -> list[EpochLaw]:
    """A law for every series of one study, run, strategy and batch_size with a sound speedup.

    Of the rows with as many devices, the one on the fewest nodes.
    """
    scalings = {row.setting: _SCALINGS.get(row.batch_size_is) for row in rows}
    series: dict[_Series, dict[int, float]] = {}
    for one in sorted(estimates, key=lambda one: -(one.nodes or 1)):
        scaling = scalings[one.setting]
        if scaling is None or (one.quantity, one.method) != ("speedup", scaling):
            continue
        if one.value is not None and one.sound:
            key = (one.study, one.run, one.strategy, one.batch_size, scaling)
            series.setdefault(key, {})[one.devices] = one.value
    return [_law(key, speedups) for key, speedups in series.items()]


def _law(key: _Series, speedups: Mapping[int, float]) -> EpochLaw:
    *_, scaling = key
    fit = fit_scaling(speedups, scaling)
    assert fit is not None
    parameters = {}
    for name, estimate in fit.parameters.items():
        if estimate.value is not None:
            parameters[name] = estimate.value
    return EpochLaw(
        *key,
        law=fit.law,
        parameters=parameters,
        speedups=dict(sorted(speedups.items())),
        worst_relative_error=fit.worst_relative_error,
        note=fit.note,
    )
