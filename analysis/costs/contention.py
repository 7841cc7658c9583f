"""How collectives and computing slow each other, as a calibration's samples show."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpscope.profiling.records.calibration import Calibration, Contention
from dpscope.profiling.records.finding import counted

_RESAMPLES = 300
_TAILS = (0.025, 0.975)


@dataclass(frozen=True)
class Slowdown:
    """How many times as long something takes next to something else: ratio of medians with its 95%
    interval.

    The interval is a bootstrap over iterations, `count` of them; it shows how well these iterations
    determine the ratio.
    """

    value: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.value:.2f}x ({self.low:.2f} to {self.high:.2f}, {counted(self.count, 'iteration')})"


@dataclass(frozen=True)
class ContentionRatios:
    """Of one device count: two collectives at once over one alone, a collective next to computing,
    computing next to it.
    """

    two_in_flight: Slowdown
    beside_compute: Slowdown
    compute: Slowdown
    size_bytes: int

    @property
    def summary(self) -> str:
        """The slowdown of two in flight and of one next to computing, with intervals."""
        return (
            f"two in flight take {self.two_in_flight}, one next to computing {self.beside_compute}"
        )


def contention_of(calibration: Calibration | None, devices: int) -> ContentionRatios | None:
    """The ratios on this many devices; None if they were not timed, as in logs."""
    timed = (
        [measured for measured in calibration.contention if measured.devices == devices]
        if calibration is not None
        else ()
    )
    return contention_ratios(timed[0]) if timed else None


def contention_ratios(timed: Contention) -> ContentionRatios:
    """Ratios from the samples of one device count."""
    return ContentionRatios(
        two_in_flight=_slowdown(timed.two_in_flight_us, timed.alone_us),
        beside_compute=_slowdown(timed.beside_compute_us, timed.alone_us),
        compute=_slowdown(timed.compute_beside_us, timed.compute_alone_us),
        size_bytes=timed.size_bytes,
    )


def _slowdown(beside_us: Sequence[float], alone_us: Sequence[float]) -> Slowdown:
    choice = np.random.default_rng(0).choice
    drawn = [
        np.median(choice(beside_us, len(beside_us))) / np.median(choice(alone_us, len(alone_us)))
        for _ in range(_RESAMPLES)
    ]
    low, high = np.quantile(drawn, _TAILS).tolist()
    return Slowdown(
        float(np.median(beside_us) / np.median(alone_us)),
        low,
        high,
        min(len(beside_us), len(alone_us)),
    )
