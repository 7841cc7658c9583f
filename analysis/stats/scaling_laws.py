"""Speedup, efficiency, and the laws that describe how they change with the number of devices.

Words: t_N(b) is the time of a step on N devices at b samples per device. Strong scaling fixes the
global batch G = N b, weak scaling fixes b. A speedup is a ratio of step times; on epoch times over
a fixed data set the scaled speedup is T_1/T_N, as the epoch on N devices has 1/N of the steps
already.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpscope.analysis.stats.samples import (
    ALONE,
    Estimate,
    Floats,
    Samples,
    Spread,
    interval,
    joint_draws,
)

Scaling = Literal["strong", "weak"]
Law = Literal["karp_flatt", "amdahl", "gustafson", "usl"]

_USL = ("contention", "coherency")  # its parameters
_ONE_SPEEDUP = "one parameter passes through one speedup, so there is no error to judge it by"
FARTHEST_FACTOR = 2  # a law is not trusted past this many times the largest measured count


@dataclass(frozen=True)
class ScalingFit:
    """A law fitted to speedups.

    `parameters` by name: serial_fraction (Karp-Flatt, Amdahl, Gustafson), or contention and
    coherency (USL). `worst_relative_error` is the largest distance of a measured speedup from the
    law's, over the measured one; None where one parameter passes through one speedup. `draws` holds
    the parameters of every draw, one row each, None without intervals. `note` states why a value is
    missing, or where a limit cut the fit off. A law that cannot describe the speedups has no values.
    """

    law: Law
    scaling: Scaling
    parameters: Mapping[str, Estimate]
    largest_devices: int
    worst_relative_error: float | None
    draws: Floats | None
    note: str


@dataclass(frozen=True)
class LawPrediction:
    """A law's speedup at a number of devices; `note` is empty only where measurements support
    it.
    """

    devices: int
    speedup: Estimate
    note: str


def karp_flatt(speedup: float, devices: int) -> float:
    """Experimentally determined serial fraction, (1/S - 1/N)/(1 - 1/N).

    Source: Karp and Flatt, "Measuring parallel processor performance", CACM 33(5), 1990. It is the
    serial fraction that would give this speedup if nothing but serial work were in the way; if it
    grows with N, something else is, such as communication. Negative when the speedup exceeds N.
    Needs N > 1.
    """
    return (1 / speedup - 1 / devices) / (1 - 1 / devices)


def amdahl_speedup(serial_fraction: float, devices: int) -> float:
    """1/(s + (1 - s)/N): fixed total work, a share s of it on one device only, no cost of
    communication.

    Source: Amdahl, "Validity of the single processor approach", AFIPS 1967.
    """
    return 1 / (serial_fraction + (1 - serial_fraction) / devices)


def gustafson_speedup(serial_fraction: float, devices: int) -> float:
    """N - s(N - 1): work grows with N, a share s of the time on N devices is serial.

    Source: Gustafson, "Reevaluating Amdahl's law", CACM 31(5), 1988.
    """
    return devices - serial_fraction * (devices - 1)


def usl_speedup(contention: float, coherency: float, devices: int) -> float:
    """Universal scalability law, N/(1 + sigma(N - 1) + kappa N(N - 1)).

    Source: Gunther, "Guerrilla Capacity Planning", 2007, chapter 4. sigma (contention) is work that
    queues for something shared, kappa (coherency) exchange between every pair; both >= 0; kappa = 0
    is Amdahl's law.
    """
    return devices / (1 + contention * (devices - 1) + coherency * devices * (devices - 1))


def speedup_draws(
    single: Sequence[Samples],
    several: Mapping[int, Sequence[Samples]],
    scaling: Scaling,
    spread: Spread = ALONE,
) -> dict[int, Samples] | None:
    """Drawn speedups by device count, from step times (one array per repeat) at N = 1 and at each N
    > 1.

    `single` are the steps at the same global batch (strong) or at the same batch per device (weak).
    Each draw uses one t_1 for all counts. `spread` is that of all cells' repeats. None where one of
    the times has no interval.
    """
    counts = sorted(several)
    drawn = joint_draws(single, [several[devices] for devices in counts], spread)
    if drawn is None:
        return None
    times = {devices: devices if scaling == "weak" else 1 for devices in counts}
    return {
        devices: drawn[0] / t_n_us * times[devices]
        for devices, t_n_us in zip(counts, drawn[1:], strict=True)
    }


def fit_scaling(
    speedups: Mapping[int, float], scaling: Scaling, draws: Mapping[int, Samples] | None = None
) -> ScalingFit | None:
    """The richest law that the number of measured counts supports; None without a multi-device one.

    `speedups` by device count, N = 1 is left out as every law passes through it. One count:
    Karp-Flatt only. Two: Amdahl (strong) or Gustafson (weak). Three or more: the universal
    scalability law, clamped at >= 0. `draws`, from `speedup_draws`, gives the parameters their
    intervals. Fits minimise the squared relative error of the time (of the speedup for Gustafson).
    """
    counts = sorted(devices for devices in speedups if devices > 1)
    if not counts:
        return None
    few: dict[int, Law] = {1: "karp_flatt", 2: "amdahl" if scaling == "strong" else "gustafson"}
    law = few.get(len(counts), "usl")
    devices = np.array(counts, dtype=np.float64)
    measured = np.array([speedups[count] for count in counts])
    values, note = _FITS[law](devices, measured)
    drawn = None
    if draws is not None:
        columns = np.column_stack([draws[count] for count in counts])
        drawn = np.array([_FITS[law](devices, row)[0] for row in columns])
    predicted = np.array([_speedup(law, values, count) for count in counts])
    worst = float(np.max(np.abs(predicted / measured - 1)))
    return ScalingFit(
        law=law,
        scaling=scaling,
        parameters=_parameters(law, values, drawn, len(counts), note),
        largest_devices=counts[-1],
        worst_relative_error=worst if law == "usl" or not note else None,
        draws=drawn,
        note=note,
    )


def _parameters(
    law: Law, values: Floats, drawn: Floats | None, count: int, note: str
) -> dict[str, Estimate]:
    """The parameters by name with their intervals; without values where the law cannot describe
    the speedups.
    """
    names = _USL if law == "usl" else ("serial_fraction",)
    if note and law in ("amdahl", "gustafson"):
        return dict.fromkeys(names, Estimate(None, None, None, count))
    ends: Sequence[tuple[float | None, float | None]] = [(None, None)] * len(values)
    if drawn is not None:
        ends = [interval(column) for column in drawn.T]
    return {
        name: Estimate(float(value), *own, count)
        for name, value, own in zip(names, values, ends, strict=True)
    }


def predicted_speedup(fit: ScalingFit, devices: int) -> LawPrediction:
    """The fitted law's speedup; `note` states that a count is beyond twice the largest measured
    one.

    Missing, with the reason in `note`, from a single measured count, or from a law that cannot
    describe what it was fitted to.
    """
    count = next(iter(fit.parameters.values())).count
    reason = fit.note if fit.law in ("amdahl", "gustafson") else ""
    if fit.law == "karp_flatt" and devices not in (1, fit.largest_devices):
        reason = "one measured count gives a serial fraction, but not how it changes: measure another count"
    if reason:
        return LawPrediction(devices, Estimate(None, None, None, count), reason)
    values = np.array([parameter.value for parameter in fit.parameters.values()], dtype=np.float64)
    low = high = None
    if fit.draws is not None:
        low, high = interval(np.array([_speedup(fit.law, row, devices) for row in fit.draws]))
    note = ""
    if devices > FARTHEST_FACTOR * fit.largest_devices:
        note = f"extrapolated past twice the largest measured count ({fit.largest_devices}): no measurement supports it"
    return LawPrediction(
        devices, Estimate(_speedup(fit.law, values, devices), low, high, count), note
    )


def _fit_karp_flatt(devices: Samples, speedups: Samples) -> tuple[Floats, str]:
    fraction = karp_flatt(float(speedups[0]), int(devices[0]))
    if fraction < 0:
        return np.array([fraction]), f"speedup above the number of devices; {_ONE_SPEEDUP}"
    return np.array([fraction]), _ONE_SPEEDUP


def _fit_amdahl(devices: Samples, speedups: Samples) -> tuple[Floats, str]:
    """N/S = 1 + s(N - 1), each equation over its left side."""
    weight = speedups / devices
    return _fraction(weight * (devices - 1), 1 - weight)


def _fit_gustafson(devices: Samples, speedups: Samples) -> tuple[Floats, str]:
    """N - S = s(N - 1), each equation over S."""
    return _fraction((devices - 1) / speedups, (devices - speedups) / speedups)


def _fraction(column: Samples, right: Samples) -> tuple[Floats, str]:
    """The s in 0..1 that solves column s = right by least squares, and whether it was clamped."""
    fraction = float(column @ right / (column @ column))
    within = min(1.0, max(0.0, fraction))
    if within == fraction:
        return np.array([within]), ""
    reason = "speedups above the number of devices" if fraction < 0 else "slower than one device"
    return np.array([within]), f"no serial fraction: {reason}, which this law cannot describe"


def _fit_usl(devices: Samples, speedups: Samples) -> tuple[Floats, str]:
    """N/S = 1 + sigma(N - 1) + kappa N(N - 1), each equation over its left side; non-negative least
    squares.
    """
    # takes longer than reading a small trace: only who fits pays for it
    from scipy.optimize import nnls

    weight = speedups / devices
    design = np.column_stack([weight * (devices - 1), weight * devices * (devices - 1)])
    values, _ = nnls(design, 1 - weight)
    zero = [name for name, value in zip(_USL, values, strict=True) if value == 0]
    return values, f"clamped at 0: {', '.join(zero)}" if zero else ""


_FITS: Mapping[Law, Callable[[Samples, Samples], tuple[Floats, str]]] = {
    "karp_flatt": _fit_karp_flatt,
    "amdahl": _fit_amdahl,
    "gustafson": _fit_gustafson,
    "usl": _fit_usl,
}


def _speedup(law: Law, values: Floats, devices: int) -> float:
    if law == "usl":
        return usl_speedup(float(values[0]), float(values[1]), devices)
    formula = gustafson_speedup if law == "gustafson" else amdahl_speedup
    return formula(float(values[0]), devices)
