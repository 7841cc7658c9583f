"""Scaling laws fitted to the sound speedups of a table, and what Amdahl's law says where a share of added time is put into it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dpscope.analysis.epoch_times.estimates import EpochEstimate
from dpscope.analysis.epoch_times.table import EpochTime, listed
from dpscope.analysis.stats.scaling_laws import (
    FARTHEST_FACTOR,
    Scaling,
    amdahl_speedup,
    fit_scaling,
    predicted_speedup,
)

_MISUSE_OFF = 0.05


class EpochLaw(NamedTuple):
    """The law that the speedups of one series allow, and its speedup on twice the largest measured count.

    `misuse` holds by device count what Amdahl's law gives with the share of added time as its serial fraction. That share is a
    cost of every step on several devices and no work that one device must do alone, so the value is wrong.
    """

    study: str | None
    run: str | None
    strategy: str
    batch_size: int
    scaling: Scaling
    law: str
    parameters: Mapping[str, float]
    speedups: Mapping[int, float]  # as measured, by device count
    worst_relative_error: float
    predicted_devices: int
    predicted_speedup: float | None
    note: str  # why nothing is predicted, or how far the law is extrapolated
    misuse: Mapping[int, float]


def law_fits(rows: Sequence[EpochTime], found: Sequence[EpochEstimate]) -> list[EpochLaw]:
    """A law for every series of one study, run, strategy and batch_size with a sound speedup."""
    methods: dict[str | None, Scaling] = {"global": "strong", "per_device": "weak"}
    row_of = {(row.study, row.run, row.strategy, row.batch_size, row.devices): row for row in rows}
    series: dict[tuple[str | None, str | None, str, int, Scaling], dict[int, float]] = {}
    shares: dict[tuple[object, ...], float] = {}
    for one in found:
        row, value = row_of[one[:5]], one.value
        scaling = methods.get(row.batch_size_is)
        if value is None or not one.sound or scaling is None:
            continue
        if (one.quantity, one.method) == ("speedup", scaling):
            series.setdefault((*one[:4], scaling), {})[one.devices] = value
        elif (one.quantity, one.method) == ("communication_seconds", "same_local_batch") and row.epoch_seconds:
            shares[one[:5]] = value / row.epoch_seconds
    return [
        _law(key, speedups, {n: share for n in speedups if (share := shares.get((*key[:4], n))) is not None})
        for key, speedups in series.items()
    ]


def _law(
    key: tuple[str | None, str | None, str, int, Scaling], speedups: Mapping[int, float], shares: Mapping[int, float]
) -> EpochLaw:
    fit = fit_scaling(speedups, key[4])
    assert fit is not None
    farthest = FARTHEST_FACTOR * fit.largest_devices
    prediction = predicted_speedup(fit, farthest)
    return EpochLaw(
        *key,
        law=fit.law,
        parameters={name: one.value for name, one in fit.parameters.items() if one.value is not None},
        speedups=dict(sorted(speedups.items())),
        worst_relative_error=fit.worst_relative_error,
        predicted_devices=farthest,
        predicted_speedup=prediction.speedup.value,
        note=prediction.note,
        misuse={devices: amdahl_speedup(share, devices) for devices, share in sorted(shares.items()) if 0 < share < 1},
    )


def misuse_sentence(laws: Sequence[EpochLaw]) -> str:
    """How far off Amdahl's law is with the share of added time as its serial fraction; empty where it is close."""
    off = [
        f"{value:.2f}x on {devices} for a measured {law.speedups[devices]:.2f}x (batch_size {law.batch_size})"
        for law in laws
        for devices, value in law.misuse.items()
        if abs(value / law.speedups[devices] - 1) > _MISUSE_OFF
    ]
    if not off:
        return ""
    return (
        "The share of added time is no serial fraction: it is a cost of every step on several devices, not work that one device "
        f"does alone. Put into Amdahl's law, it would give {listed(off)}."
    )
