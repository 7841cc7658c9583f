"""A cell's row of the comparison: the values of all columns, frozen, each or the reason why it is
missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dpscope.analysis.cells.cell_ledger import contentions_shown, ledger
from dpscope.analysis.cells.columns import columns
from dpscope.analysis.cells.estimated import ring_rates
from dpscope.analysis.cells.identity import (
    batch_size,
    cell,
    devices,
    global_batch_size,
    nodes,
    status,
    strategy,
)
from dpscope.analysis.cells.view import REGISTERED, CellView, Value, if_known, interval_ends
from dpscope.analysis.costs.data_sheet import RingRate
from dpscope.analysis.stats.missing import Missing
from dpscope.analysis.stats.samples import Interval
from dpscope.analysis.traces.ranks.contention import Contentions
from dpscope.analysis.traces.ranks.ledger import Ledger

_WORDS = ("text", "flag")


@dataclass(frozen=True)
class CellRow:
    """One cell of the comparison; an attribute that is no field is the number in the column of that
    name.

    `values` has all other columns that are known, `reasons` why each of the rest is missing;
    `ledger` is where the cell's traced step goes, `contentions` what slows its compute, None where
    no step was traced. `ring_rates` are what the ring formula divides by, one per kind of
    collective.
    """

    cell: str
    strategy: str
    devices: int
    nodes: int = 1
    batch_size: int | None = None
    global_batch_size: int | None = None
    status: str = "ok"
    values: Mapping[str, Value] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    ledger: Ledger | None = None
    contentions: Contentions | None = None
    ring_rates: tuple[RingRate, ...] = ()

    def __getattr__(self, name: str) -> float | None:
        if name not in REGISTERED or REGISTERED[name].quantity in _WORDS:
            raise AttributeError(f"a row has no number {name}")
        return self.number(name)

    def value(self, column: str) -> Value:
        """The value of any column, None where it is missing."""
        assert column in REGISTERED, column
        value: Value = vars(self).get(column, self.values.get(column))
        return value

    def number(self, column: str) -> float | None:
        """The same of a column of numbers; None of any other."""
        value = self.value(column)
        return None if isinstance(value, str | bool) else value

    def text(self, column: str) -> str | None:
        """The same of a column of text."""
        value = self.value(column)
        return value if isinstance(value, str) else None

    def interval(self, column: str) -> Interval | None:
        """The 95% interval of a column's value, None where it is not known."""
        ends = interval_ends(column)
        if not REGISTERED.keys() >= set(ends):
            return None
        low, high = map(self.number, ends)
        return None if low is None or high is None else Interval(low, high)


def row_of(view: CellView) -> CellRow:
    """All columns of a cell."""
    values: dict[str, Value] = {}
    reasons: dict[str, str] = {}
    for column in columns():
        try:
            values[column.name] = column.compute(view)
        except Missing as missing:
            reasons[column.name] = missing.reason
    return CellRow(
        cell=cell(view),
        strategy=strategy(view),
        devices=devices(view),
        nodes=nodes(view),
        batch_size=if_known(batch_size, view),
        global_batch_size=if_known(global_batch_size, view),
        status=status(view),
        values=values,
        reasons=reasons,
        ledger=if_known(ledger, view),
        contentions=if_known(contentions_shown, view),
        ring_rates=if_known(ring_rates, view) or (),
    )


def minus(first: float | None, second: float | None) -> float | None:
    """Difference of two values, unknown if one of them is."""
    return first - second if first is not None and second is not None else None


def ratio(first: float | None, second: float | None) -> float | None:
    """Quotient of two values, unknown if one of them is or the second is not positive."""
    return first / second if first is not None and second is not None and second > 0 else None
