"""How much collectives and computing slow each other, from what a calibration timed: ratios with intervals and counts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpscope.profiling.records.calibration import Calibration, Contention
from dpscope.profiling.records.finding import counted

_RESAMPLES = 300
_TAILS = (0.025, 0.975)


@dataclass(frozen=True)
class Slowdown:
    """How many times as long something takes beside something else: ratio of medians with its 95% interval.

    The interval is a bootstrap over iterations, `count` of them; it tells how well these iterations know the ratio.
    """

    value: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.value:.2f}x ({self.low:.2f} to {self.high:.2f}, {counted(self.count, 'iteration')})"


@dataclass(frozen=True)
class ContentionRatios:
    """Of one device count: two collectives at once over one alone, a collective beside computing, computing beside it."""

    two_in_flight: Slowdown
    beside_compute: Slowdown
    compute: Slowdown
    size_bytes: int

    @property
    def told(self) -> str:
        return f"two in flight take {self.two_in_flight}, one beside computing {self.beside_compute}"


def contention_of(calibration: Calibration | None, devices: int) -> ContentionRatios | None:
    """What was calibrated on so many devices; None where nothing was, as in logs."""
    found = next((one for one in calibration.contention if one.devices == devices), None) if calibration else None
    return contention_ratios(found) if found is not None else None


def contention_ratios(timed: Contention) -> ContentionRatios:
    """Of the samples of one device count."""
    return ContentionRatios(
        two_in_flight=_slowdown(timed.two_in_flight_us, timed.alone_us),
        beside_compute=_slowdown(timed.beside_compute_us, timed.alone_us),
        compute=_slowdown(timed.compute_beside_us, timed.compute_alone_us),
        size_bytes=timed.size_bytes,
    )


def _slowdown(beside_us: Sequence[float], alone_us: Sequence[float]) -> Slowdown:
    generator = np.random.default_rng(0)
    drawn = [
        np.median(generator.choice(beside_us, len(beside_us))) / np.median(generator.choice(alone_us, len(alone_us)))
        for _ in range(_RESAMPLES)
    ]
    low, high = np.quantile(drawn, _TAILS)
    return Slowdown(
        float(np.median(beside_us) / np.median(alone_us)), float(low), float(high), min(len(beside_us), len(alone_us))
    )
