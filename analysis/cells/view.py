"""How a column is declared: a function of a cell's view, with heading, quantity and meaning. And
the view itself.

    @ESTIMATES.column("t_N(b)-t_1(G)", "time", "Negative once parallel training pays off")
    def same_total_us(cell: CellView) -> float:
        return cell.step_us - single_at_global_batch(cell).step_us

A function that lacks something raises `Missing(reason)`, and the reason is the column's. Columns
ask other columns of the view by name; each is computed once for each cell, in whatever order they
are asked.

`needs` is a function that raises what several columns lack; `interval` gives the ends of a
column's 95% interval, which are columns too; what several columns share is a function with `@once`.
The mean of a measure of traces over a cell's steps is `mean(cell, name, reason)` (traced.py). A new
group is a module and a name in GROUPS (columns.py); tables show a column by a `view_of`
(report/comparison_tables.py). `python -m tests.analysis.goldens` adds its values. A measure of
traces that is new begins in traces/steps/breakdown.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar, cast, get_args

from dpscope.analysis.costs.costs import Costs
from dpscope.analysis.runs.spreads import RunSpreads
from dpscope.analysis.stats.missing import Missing, known
from dpscope.analysis.text.units import Quantity, plain
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.training.data import TrainingData
from dpscope.profiling.machine.gpu_speed import StatedFlops
from dpscope.profiling.records.config import Workload
from dpscope.profiling.records.strategies import StrategyTraits
from dpscope.profiling.records.typed_text import choose_from, nearest
from dpscope.profiling.store.errors import DpscopeError, error_line

T = TypeVar("T")
Value = str | float | bool | None
CpuPeaks = Mapping[tuple[str, int], float]
"""The largest measured rate of matrix products in TFLOP/s, by dtype and threads."""


def if_known(compute: Callable[["CellView"], T], cell: "CellView") -> T | None:
    """What a function says of a cell, None where it lacks something."""
    try:
        return compute(cell)
    except Missing:
        return None


def quotient(first: float, second: float, reason: str) -> float:
    """`first` / `second`. Raises Missing unless the second is above 0."""
    if second <= 0:
        raise Missing(reason)
    return first / second


@dataclass(eq=False)
class CellView:
    """A cell with all that its columns are computed from; an attribute that is no field is the
    column of that name.
    """

    data: Job
    costs: Costs = field(default_factory=Costs)  # of collectives, on the machine
    spreads: RunSpreads = field(default_factory=RunSpreads)  # of all cells of the run
    singles: dict[int, "CellView"] = field(default_factory=dict)
    """The single-device cells that it is compared with, by batch size, also unmeasured ones."""
    peaks: CpuPeaks = field(default_factory=dict)  # of all cells of the run
    flops: StatedFlops | None = None  # as a user states them of a cell that did not count them
    workload: Workload | None = None  # of the run; None for traces
    training: TrainingData | None = None  # in the run's folder
    _results: dict[object, Any] = field(default_factory=dict)
    _running: list[Callable[["CellView"], object]] = field(default_factory=list)

    @property
    def devices(self) -> int:
        """Devices that its step runs on."""
        return self.data.devices

    @property
    def traits(self) -> StrategyTraits:
        """What its strategy is like."""
        return self.data.traits

    def __getattr__(self, name: str) -> float:
        """A column's number. Raises Missing where it is not known."""
        if name not in REGISTERED:
            meant = nearest(name, REGISTERED)
            advice = f" (did you mean {meant[0]}?)" if meant else ""
            raise AttributeError(f"a cell has no column {name}{advice}")
        return cast("float", REGISTERED[name].compute(self))

    def once(self, compute: Callable[["CellView"], T]) -> T:
        """The result of a function of this view, computed when it is first asked for; what it lacks
        is kept as well.
        """
        if compute in self._running:
            names = (function.__name__ for function in (*self._running, compute))
            raise RecursionError(f"these columns ask each other in a circle: {' -> '.join(names)}")
        if compute not in self._results:
            self._running.append(compute)
            try:
                self._results[compute] = compute(self)
            except Missing as missing:
                self._results[compute] = missing
            finally:
                self._running.pop()
        result: T | Missing = self._results[compute]
        if isinstance(result, Missing):
            raise Missing(result.reason)
        return result


def once(compute: Callable[[CellView], T]) -> Callable[[CellView], T]:
    """Decorates a function of a view that several columns share: it is computed once for each
    cell.
    """

    @wraps(compute)
    def kept(cell: CellView) -> T:
        return cell.once(compute)

    return kept


def interval_ends(column: str) -> tuple[str, str]:
    """The columns of the ends of a value's 95% interval.

    >>> interval_ends("step_us"), interval_ends("samples_per_s")
    (('step_low_us', 'step_high_us'), ('samples_per_s_low', 'samples_per_s_high'))
    """
    base = column.removesuffix("_us")
    unit = column[len(base) :]
    return f"{base}_low{unit}", f"{base}_high{unit}"


Bounds = Callable[[CellView, float], tuple[float, float]]
"""The 95% interval around a column's value. Raises Missing where it is not known."""


@dataclass(frozen=True)
class Column:
    """`name` carries the unit it is stored in; `heading` is what people read; `meaning` is one
    sentence.
    """

    name: str
    heading: str
    quantity: Quantity
    group: "Group"
    meaning: str
    compute: Callable[[CellView], Value] = field(repr=False)
    """Its value of a cell, as plain Python. Raises Missing where it is not known."""


REGISTERED: dict[str, Column] = {}
"""Every declared column by name."""


def _nothing(cell: CellView) -> None:
    """What a column needs that is known of every cell."""


@dataclass(frozen=True, eq=False)
class Group:
    """Columns that a table of all columns shows together, in the order of their declaration.

    `needs` is asked before each of them: it raises Missing for cells of which none is known. One of
    a `redefinable` group may be declared again, as when a notebook's cell runs twice.
    """

    name: str
    title: str
    needs: Callable[[CellView], object] = _nothing
    columns: list[Column] = field(default_factory=list, repr=False)
    redefinable: bool = False

    def column(
        self,
        heading: str,
        quantity: Quantity,
        meaning: str,
        *,
        needs: Callable[[CellView], object] = _nothing,
        interval: Bounds | None = None,
    ) -> Callable[[Callable[[CellView], T]], Callable[[CellView], T]]:
        """Declares the function below as the column of its name, and two more for the ends of its
        interval. Raises ValueError for a quantity that does not exist.
        """
        if quantity not in get_args(Quantity):
            advice = choose_from(quantity, get_args(Quantity))
            raise ValueError(f"column {heading!r}: there is no quantity {quantity!r}; {advice}")

        def declared(compute: Callable[[CellView], T]) -> Callable[[CellView], T]:
            @wraps(compute)
            def checked(cell: CellView) -> T:
                self.needs(cell)
                needs(cell)
                if self.redefinable:
                    return self._user_value(compute, cell)
                return _plain(compute(cell))

            kept = once(checked)
            name = compute.__name__
            self._add(name, heading, quantity, meaning, kept)
            if interval is not None:
                low, high = interval_ends(name)
                ends = _around(kept, interval)
                self._add(
                    low,
                    f"{heading} low",
                    quantity,
                    "Lower end of its 95% interval",
                    lambda cell: ends(cell)[0],
                )
                self._add(
                    high,
                    f"{heading} high",
                    quantity,
                    "Upper end of its 95% interval",
                    lambda cell: ends(cell)[1],
                )
            return kept

        return declared

    def _user_value(self, compute: Callable[[CellView], T], cell: CellView) -> T:
        """What a user's function gives. A function that fails is no longer declared, so that it
        fails once; raises DpscopeError.
        """
        name = compute.__name__
        try:
            value = plain(compute(cell))
        except (Missing, DpscopeError):
            raise
        except Exception as error:
            self.columns.remove(REGISTERED.pop(name))
            raise DpscopeError(
                f"your column {name} fails for {cell.data.name}: {error_line(error)}; correct and declare it again"
            ) from error
        return cast("T", known(value, f"the function {name} returned {value}"))

    def _add(
        self,
        name: str,
        heading: str,
        quantity: Quantity,
        meaning: str,
        compute: Callable[[CellView], Any],
    ) -> None:
        before = REGISTERED.get(name)
        if before is not None and not (self.redefinable and before.group is self):
            raise ValueError(f"there is a column {name}: choose another name")
        if before is not None:
            self.columns.remove(before)
        REGISTERED[name] = Column(name, heading, quantity, self, meaning, compute)
        self.columns.append(REGISTERED[name])


def _plain(value: T) -> T:
    """Without numpy's types. Raises Missing for a number that is not finite."""
    return cast("T", known(plain(value), "not measured"))


def _around(
    value: Callable[[CellView], Any], bounds: Bounds
) -> Callable[[CellView], tuple[float, float]]:
    """The ends around a column's value; where that is missing, they are for the same reason."""

    def ends(cell: CellView) -> tuple[float, float]:
        low, high = bounds(cell, value(cell))
        return _plain(low), _plain(high)

    return once(ends)
