"""A cell's row of the comparison: typed and frozen; and what fills it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from dpscope.analysis.cells import columns
from dpscope.analysis.costs.sources import RingRate
from dpscope.analysis.stats.samples import Estimate, Interval, Range
from dpscope.analysis.text.units import plain
from dpscope.analysis.traces.ranks.contention import Contentions
from dpscope.analysis.traces.ranks.ledger import Ledger

if TYPE_CHECKING:
    from dpscope.analysis.cells.predicted import CollectivePrediction

Value = str | float | bool | None
NO_SAME_BATCH = "no single-device cell with the same options at this batch per device"
NO_GLOBAL_BATCH = "no single-device cell with the same options at the global batch"


@dataclass(frozen=True)
class CellRow(columns.Columns):
    """One cell of the comparison: a field for each column, None where missing; `bounds` has the columns that bound others.

    `reasons` has for each missing column why; `ledger` is where the cell's traced step goes, `contentions` what slows its
    compute, None where no step was traced. `ring_rates` are what the ring formula divides by, one per kind of collective.
    """

    bounds: Mapping[str, float | None] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    ledger: Ledger | None = None
    contentions: Contentions | None = None
    ring_rates: tuple[RingRate, ...] = ()

    def value(self, column: str) -> Value:
        """The value of a column named at run time; one that is known beforehand is an attribute."""
        value: Value = getattr(self, column) if column in _TYPES else self.bounds.get(column)
        return value

    def number(self, column: str) -> float | None:
        """The same of a column of numbers; None of any other."""
        value = self.value(column)
        return None if isinstance(value, str | bool) else value

    def interval(self, column: str) -> Interval | None:
        """The 95% interval of a column's value, None where it is not known."""
        low, high = (self.number(end) for end in columns.INTERVAL.of(column))
        return None if low is None or high is None else Interval(low, high)


_TYPES: dict[str, Any] = {
    one.name: float | int | None if one.type == float | None else one.type for one in fields(CellRow)
}


@dataclass
class RowBuilder:
    """A row while it is filled: values by column name, None where missing; `reasons` has one for every missing value."""

    values: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(columns.NAMES))
    reasons: dict[str, str] = field(default_factory=dict)
    ledger: Ledger | None = None
    contentions: Contentions | None = None
    ring_rates: tuple[RingRate, ...] = ()
    predictions: tuple["CollectivePrediction", ...] = ()  # of its collectives

    def row(self) -> CellRow:
        """The row as far as it is filled."""
        own = {name: value for name, value in self.values.items() if name in _TYPES}
        bounds = {name: value for name, value in self.values.items() if name not in _TYPES}
        others = {name: getattr(self, name) for name in ("reasons", "ledger", "contentions", "ring_rates")}
        return CellRow(**own, bounds=bounds, **others)

    def number(self, column: str) -> float | None:
        """A number that was put before."""
        value: float | None = self.values[column]
        return value

    def put(self, reason: str, **values: object) -> None:
        """Set values; None is missing for this reason."""
        for column, value in values.items():
            known = plain(value)
            assert known is None or isinstance(known, _TYPES.get(column, float | int)), (column, value)
            self.values[column] = known
            if known is None:
                self.reasons[column] = reason
            else:
                self.reasons.pop(column, None)

    def put_interval(self, reason: str, column: str, interval: Estimate | Interval | None) -> None:
        """Set the ends of a column's 95% interval, such as ``step_low_us`` and ``step_high_us``."""
        ends = (None, None) if interval is None else (interval.low, interval.high)
        self.put(reason, **dict(zip(columns.INTERVAL.of(column), ends, strict=True)))

    def put_rank_range(self, reason: str, column: str, found: Range) -> None:
        """Set the smallest and the largest mean of a rank, such as ``exposed_rank_min_us`` and ``exposed_rank_max_us``."""
        self.put(reason, **dict(zip(columns.RANK_RANGE.of(column), (found.smallest, found.largest), strict=True)))

    def clear(self, columns: tuple[str, ...], reason: str) -> None:
        """Mark columns as missing."""
        self.put(reason, **dict.fromkeys(columns))


def minus(first: float | None, second: float | None) -> float | None:
    """Difference of two values, unknown if one of them is."""
    return first - second if first is not None and second is not None else None


def ratio(first: float | None, second: float | None) -> float | None:
    """Quotient of two values, unknown if one of them is or the second is not positive."""
    return first / second if first is not None and second is not None and second > 0 else None
