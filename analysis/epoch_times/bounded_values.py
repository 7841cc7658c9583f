"""A value with the bounds its inputs allow, and the four operations estimates need."""

import math
from typing import NamedTuple


class Bounded(NamedTuple):
    """`low <= value <= high`; `high` is infinite where a denominator may be zero.

    Interval arithmetic (Moore, Interval Analysis, 1966) on inputs that vary independently: the bounds hold
    for certain and are no standard errors.
    """

    value: float
    low: float
    high: float

    @classmethod
    def clock_reading(cls, seconds: float, resolution_s: float | None) -> "Bounded":
        """A time that was read off a clock or a print with this resolution: `seconds` +- `resolution_s`.

        A rounded print errs by half a resolution, a truncated one by up to a whole one to one side, and a
        difference of two truncated clock readings by up to a whole one to either side. A table does not say
        which of them it holds, so the widest is taken. Without a resolution all digits are there.
        """
        margin_s = resolution_s or 0.0
        return cls(seconds, max(0.0, seconds - margin_s), seconds + margin_s)

    def minus(self, other: "Bounded") -> "Bounded":
        return Bounded(self.value - other.value, self.low - other.high, self.high - other.low)

    def times(self, factor: float) -> "Bounded":
        """By a factor that is exact and positive."""
        assert factor > 0
        return Bounded(self.value * factor, self.low * factor, self.high * factor)

    def per(self, other: "Bounded") -> "Bounded":
        """Quotient of two values that cannot be negative; `other.value` is positive."""
        assert self.low >= 0
        assert other.low >= 0
        assert other.value > 0
        high = self.high / other.low if other.low > 0 else math.inf
        return Bounded(self.value / other.value, self.low / other.high, high)

    def straddles(self, level: float) -> bool:
        """Whether the bounds leave open on which side of `level` the value lies."""
        return self.low < self.high and self.low <= level <= self.high
