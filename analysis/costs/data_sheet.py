"""A source of costs: the link's data sheet and the ring formula, a bound that is never reached.

Also the rate that people who use that formula divide by.
"""

from dataclasses import dataclass

from dpscope.analysis.costs.calibration_fit import (
    largest_bus_gb_per_s,
    measured_bus_gb_per_s,
    with_measured,
)
from dpscope.analysis.costs.cost import Basis, Call, Cost, Known, Place, banded
from dpscope.analysis.costs.formulas import bus_factor, moved_as, ring_us
from dpscope.analysis.stats.missing import Missing
from dpscope.analysis.text.units import show_bytes
from dpscope.profiling.records.finding import counted

_BAND = 0.35  # half, in logarithms, upwards


def data_sheet(call: Call, known: Known) -> Cost | None:
    """Never next to a calibration on these devices: what it lacks is to be calibrated."""
    ranks = call.place.devices
    if call.exact and known.calibrated(call.place) is not None:
        raise Missing(f"the calibration holds no {call.kind} on {counted(ranks, 'rank')}")
    link = known.link(call.place)
    if link is None:
        return None
    time_us = ring_us(call.kind, call.size_bytes, ranks, link.gb_per_s)
    if time_us is None:
        raise Missing(f"there is no ring formula of {call.kind}")
    factor = bus_factor(call.kind, ranks)
    size = show_bytes(call.size_bytes)
    formula = f"f × S/B = {factor:.4g} × {size} / {link.gb_per_s:.4g} GB/s (f: bus factor)"
    words = f"{link.name}: specification, so the step is at least this, no latency known, ring"
    cost = banded(0.0, time_us, _BAND, "specification", words, bound=True)
    return cost.computed_by(formula)


@dataclass(frozen=True)
class RingRate:
    """The bandwidth of the ring formula, 1e9 B/s of one direction, and its source."""

    gb_per_s: float
    source: Basis
    # such as "NVLink 4 x18, 450 GB/s: NVML names the link, NVIDIA's data sheet its rate"
    description: str
    kind: str = "all_reduce"  # the collective that was calibrated; a link has one rate for all


def ring_rate(known: Known, kind: str, place: Place) -> RingRate | None:
    """The link's rate, else the fitted bus bandwidth at the largest calibrated size: of the fastest
    rank where that was recorded, since the formula is judged by transfers.
    """
    link = known.link(place)
    if link is None:
        return _calibrated_rate(known, kind, place)
    origin = ", stated with --link"
    if known.stated is None:
        names = "NVML"
        if known.interconnect is None:
            names = "the calibration"
        origin = f": {names} names the link, {link.source} its rate"
    rate = f"{link.gb_per_s:.4g} GB/s one way"
    description = f"{link.name}, {rate}{origin}"
    return RingRate(link.gb_per_s, "specification", description)


def _calibrated_rate(known: Known, kind: str, place: Place) -> RingRate | None:
    calibration = known.calibrated(place)
    fit = known.fit(kind, place, "shortest")
    if calibration is None or fit is None:
        return None
    rate = largest_bus_gb_per_s(fit)
    if rate is None:
        return None
    measured = measured_bus_gb_per_s(calibration, fit)
    by = "the bus bandwidth by"
    if fit.statistic == "shortest":
        by = "the fastest rank's bus bandwidth by"
    if moved_as(kind, calibration.backend) != kind:
        # nccl-tests' bus bandwidth of what gloo moves for a reduce-scatter would be twice the
        # formula's rate
        by = "with which the formula takes as long as"
    size = show_bytes(fit.largest_bytes)
    gb_per_s = f"{rate:.3g} GB/s"
    fitted = f"{gb_per_s}, {by} the calibration's fit at {size}"
    description = f"{with_measured(fitted, measured)} (no link is known)"
    return RingRate(rate, "calibration", description, kind)
