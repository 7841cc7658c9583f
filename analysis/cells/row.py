"""A row of the comparison table while it is filled: values by column, and why the others are missing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dpscope.analysis.cells.columns import INTERVAL, NAMES, RANK_RANGE
from dpscope.analysis.stats.samples import Estimate, Interval, Range
from dpscope.analysis.text.units import plain
from dpscope.analysis.traces.ranks.contention import Contentions
from dpscope.analysis.traces.ranks.ledger import Ledger

CellValues = Mapping[str, object]
"""One cell's row of the comparison: values by column, None or NA where missing."""


@dataclass
class Row:
    """Values by column name, None where missing; `reasons` has one for every missing value; `ledger` is the cell's."""

    values: dict[str, object] = field(default_factory=lambda: dict.fromkeys(NAMES))
    reasons: dict[str, str] = field(default_factory=dict)
    ledger: Ledger | None = None
    contentions: Contentions | None = None

    def number(self, column: str) -> float | None:
        return number(self.values, column)

    def put(self, reason: str, **values: object) -> None:
        """Set values; None is missing for this reason."""
        for column, value in values.items():
            assert column in self.values, column
            missing = plain(value) is None
            self.values[column] = None if missing else value
            if missing:
                self.reasons[column] = reason
            else:
                self.reasons.pop(column, None)

    def put_interval(self, reason: str, column: str, interval: Estimate | Interval | None) -> None:
        """Set the ends of a column's 95% interval, such as ``step_low_us`` and ``step_high_us``."""
        ends = (None, None) if interval is None else (interval.low, interval.high)
        self.put(reason, **dict(zip(INTERVAL.of(column), ends, strict=True)))

    def put_rank_range(self, reason: str, column: str, found: Range) -> None:
        """Set the smallest and the largest mean of a rank, such as ``exposed_rank_min_us`` and ``exposed_rank_max_us``."""
        self.put(reason, **dict(zip(RANK_RANGE.of(column), (found.smallest, found.largest), strict=True)))

    def clear(self, columns: tuple[str, ...], reason: str) -> None:
        """Mark columns as missing."""
        self.put(reason, **dict.fromkeys(columns))


def minus(first: float | None, second: float | None) -> float | None:
    """Difference of two values, unknown if one of them is."""
    return first - second if first is not None and second is not None else None


def ratio(first: float | None, second: float | None) -> float | None:
    """Quotient of two values, unknown if one of them is or the second is not positive."""
    return first / second if first is not None and second is not None and second > 0 else None


def number(values: CellValues, column: str) -> float | None:
    """A value of a row as a number, None where it is missing."""
    return as_number(values.get(column))


def interval_of(values: CellValues, column: str) -> Interval | None:
    """The 95% interval of a column's value, None where it is not known."""
    low, high = (number(values, end) for end in INTERVAL.of(column))
    return None if low is None or high is None else Interval(low, high)


def as_number(value: object) -> float | None:
    """A table's value as a number, None where it is missing or none; numpy's and pandas' scalars are numbers too."""
    known = plain(value)
    return float(known) if isinstance(known, int | float) and not isinstance(known, bool) else None
