"""Tables on NumPy columns, for everything computed from a trace; a DataFrame is made of one only
where it is requested.
"""

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from dpscope.analysis.traces.reading.event_table import BoolColumn, FloatColumn, IntColumn

if TYPE_CHECKING:
    import pandas as pd

Rows: TypeAlias = IntColumn | BoolColumn
Kind = Literal["word", "truth", "real", "whole"]
UNKNOWN = int(np.iinfo(np.int64).min)
"""Stands for a missing value in columns of whole numbers and truths; it is NaN in columns of
reals.
"""

# times as many codes as rows, up to which groups are found by counting and not by sorting
_DENSE = 4

_NAMES: dict[Kind, tuple[str, ...]] = {
    "word": (
        "kind",
        "moved_as",
        "group",
        "group_ranks",
        "phase",
        "operator",
        "kernel",
        "part",
        "host",
        "measuring_pass",
    ),
    "truth": ("partial_window", "compute_stream", "overlapped"),
    "real": (
        "step_us",
        "compute_us",
        "communication_us",
        "hidden_us",
        "exposed_us",
        "idle_us",
        "by_time_us",
        "unlaunched_us",
        "host_copy_us",
        "device_copy_us",
        "clipped_us",
        "data_us",
        "data_wait_us",
        "host_to_device_us",
        "forward_us",
        "backward_us",
        "optimizer_us",
        "start_us",
        "end_us",
        "duration_us",
        "queue_us",
        "ready_us",
        "held_us",
        "launch_us",
        "begin_us",
        "compute_done",
        "compiled_share",
        "time_us",
        "overlap_us",
        "pace",
        "transfer_us",
        "wait_us",
        "exposed_transfer_us",
        "exposed_wait_us",
        "exposed_other_us",
        "wait_per_step_us",
        "wait_share",
        "caused_share",
        "exposed_share",
        "lateness_us",
        "cost_us",
        "predicted_us",
        "algbw_gb_per_s",
        "busbw_gb_per_s",
        "lower_bound_gb_per_s",
        "calls",
        "free_calls",
        "free_us",
    ),
    "whole": (
        "repeat",
        "rank",
        "device",
        "step",
        "epoch",
        "samples",
        "replica",
        "sequence",
        "order",
        "bytes",
        "model_bytes",
        "group_size",
        "concurrent",
        "match",
        "late_rank",
        "waiting_rank",
        "collectives",
        "steps",
        "count",
        "kernel_class",
        "place",
        "copied_bytes",
        "collective_count",
        "collective_bytes",
        "local_rank",
        "ranks",
        "sizes",
        "launch",
    ),
}
COLUMN_KINDS: dict[str, Kind] = {name: kind for kind, names in _NAMES.items() for name in names}
"""How the values of each column are stored: a name means the same in every table. A column that is
computed and goes into no file needs no declaration: its array has a type.
"""


def kind_of(name: str, values: object) -> Kind:
    """How a column is stored: as it is declared, else by the type of its array."""
    if name in COLUMN_KINDS:
        return COLUMN_KINDS[name]
    if isinstance(values, Words):
        return "word"
    assert isinstance(values, np.ndarray), f"{name} is not declared in COLUMN_KINDS"
    return "real" if values.dtype.kind == "f" else "whole"


class Words:
    """A column of texts, few of them different: `code` is each row's index into `categories`, -1
    for a missing value.

    Categories are sorted and different, so that codes compare as their words do.
    """

    def __init__(self, code: npt.NDArray[np.int32], categories: Sequence[str]) -> None:
        self.code = code
        self.categories = categories

    @classmethod
    def of(cls, values: Iterable[str | None]) -> "Words":
        """From a value per row."""
        codes: dict[str | None, int] = {}
        code = [codes.setdefault(value, len(codes)) for value in values]
        return cls.coded(np.array(code, dtype=np.int64), list(codes))

    @classmethod
    def coded(cls, code: IntColumn, words: Sequence[str | None]) -> "Words":
        """`words[code]` of each row."""
        categories = sorted({word for word in words if word is not None})
        place: dict[str | None, int] = {word: index for index, word in enumerate(categories)}
        places = np.array([place.get(word, -1) for word in words], dtype=np.int32)
        return cls(places[code], categories)

    @classmethod
    def joined(cls, columns: "Sequence[Words]") -> "Words":
        """Columns one below the other."""
        words: list[str | None] = [None]
        codes = []
        for column in columns:
            codes.append(np.where(column.code < 0, 0, len(words) + column.code))
            words += column.categories
        return cls.coded(np.concatenate(codes), words)

    def __len__(self) -> int:
        return len(self.code)

    def __getitem__(self, rows: Rows) -> "Words":
        return Words(self.code[rows], self.categories)

    def isin(self, *words: str) -> BoolColumn:
        """Rows that hold one of these words."""
        wanted = [word in words for word in self.categories]
        wanted.append(False)  # of a missing word, whose code is -1
        is_wanted = np.array(wanted, dtype=np.bool_)
        return np.asarray(is_wanted[self.code], dtype=np.bool_)

    def where(self, rows: BoolColumn, other: "Words | None" = None) -> "Words":
        """The words of the marked rows; elsewhere those of the other column, or missing values."""
        if other is None:
            return Words(np.where(rows, self.code, np.int32(-1)), self.categories)
        both = Words.joined([self, other])
        here, elsewhere = np.split(both.code, [len(self)])
        return Words(np.where(rows, here, elsewhere), both.categories)

    @property
    def counts(self) -> dict[str, int]:
        """How many rows hold each word; words of no row are left out."""
        known = self.code[self.code >= 0]
        counts = np.bincount(known, minlength=len(self.categories)).tolist()
        by_word = zip(self.categories, counts, strict=True)
        return {word: count for word, count in by_word if count}

    def tolist(self) -> list[str | None]:
        """A value per row, None for missing ones."""
        # a code of -1 is the last
        words = np.array([*self.categories, None], dtype=object)
        values: list[str | None] = words[self.code].tolist()
        return values


Column: TypeAlias = npt.NDArray[Any] | Words


class Table:
    """Columns of equal length by name, each stored as COLUMN_KINDS declares it."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = dict(columns)

    @classmethod
    def of(cls, **columns: object) -> "Table":
        """From sequences, arrays or single values; None is a missing value."""
        lengths = [
            len(cast(Sized, values))
            for values in columns.values()
            if not np.isscalar(values) and values is not None
        ]
        length = max(lengths, default=1)
        stored = {}
        for name, value in columns.items():
            stored[name] = _stored(value, kind_of(name, value), length)
        return cls(stored)

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, object]], names: Sequence[str]) -> "Table":
        """A row per record; names that a record lacks are missing values."""
        rows = list(records)
        columns = {}
        for name in names:
            columns[name] = [row.get(name) for row in rows]
        return cls.of(**columns)

    @classmethod
    def from_frame(cls, frame: "pd.DataFrame") -> "Table":
        """The same rows without their index and other columns than COLUMN_KINDS; None, NaN and
        pandas' NA are missing values.
        """
        columns = {}
        for name in frame.columns:
            if name in COLUMN_KINDS:
                columns[name] = _from_series(frame[name], COLUMN_KINDS[name])
        return cls(columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return Table, (self._columns,)  # without the frame

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, in order."""
        return tuple(self._columns)

    def column(self, name: str) -> Column:
        """Its values; a table without rows has every column."""
        if name not in self._columns and not len(self):
            return _stored([], COLUMN_KINDS.get(name, "whole"), 0)
        return self._columns[name]

    def present(self, *names: str) -> tuple[str, ...]:
        """Those of the names that are columns here, in their order.

        Such as `repeat`, which only tables of several repeats have.
        """
        return tuple(name for name in names if name in self)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        column = self.column(name)
        assert isinstance(column, np.ndarray), f"{name} holds words"
        return column

    def words(self, name: str) -> Words:
        column = self.column(name)
        assert isinstance(column, Words), f"{name} holds numbers"
        return column

    def known(self, name: str) -> BoolColumn:
        """Rows with a value."""
        return is_known(self.column(name))

    def truths(self, name: str, missing: bool = False) -> BoolColumn:
        """A column of truths with `missing` in place of missing values."""
        column = self[name]
        return np.where(column == UNKNOWN, missing, column != 0)

    def real(self, name: str) -> FloatColumn:
        """A column of numbers as floats, NaN where missing."""
        column = self[name]
        if column.dtype == np.float64:
            return column
        return np.where(column == UNKNOWN, np.nan, column)

    def take(self, rows: Rows) -> "Table":
        """The rows that are listed or marked."""
        if rows.dtype == np.bool_:
            if rows.all():
                return self
            rows = np.flatnonzero(rows)
        return Table({name: column[rows] for name, column in self._columns.items()})

    def with_known(self, name: str) -> "Table":
        """The rows with a value in this column."""
        return self.take(self.known(name))

    def having(self, name: str, *words: str) -> "Table":
        """The rows whose column `name` holds one of these words."""
        return self.take(self.words(name).isin(*words))

    def within(self, other: "Table", keys: Sequence[str]) -> "Table":
        """The rows whose keys are those of a row of `other`."""
        return self.take(self.places_in(other, keys) >= 0)

    def mean(self, name: str) -> float | None:
        """Of a column's known values; None for none."""
        known = self.known(name)
        if not known.any():
            return None
        return float(self.real(name)[known].mean())

    def select(self, names: Iterable[str]) -> "Table":
        """These columns, in this order."""
        return Table({name: self.column(name) for name in names})

    def assign(self, **columns: object) -> "Table":
        """With these columns added or replaced; values as in `of`."""
        added = dict(self._columns)
        for name, value in columns.items():
            added[name] = _stored(value, kind_of(name, value), len(self))
        return Table(added)

    def group(self, *keys: str, in_order: bool = False) -> "Groups":
        """Rows with equal keys, missing values being equal: numbered as they first appear, or
        `in_order` of their keys.
        """
        return Groups.by([self.column(key) for key in keys], len(self), in_order)

    def summed(self, keys: Sequence[str], **values: FloatColumn) -> "Table":
        """A row for each different set of keys, in their order, with the sum of each column of
        values over its rows.
        """
        groups = self.group(*keys, in_order=True)
        table = self.take(groups.first).select(keys)
        sums = {name: groups.sums(column) for name, column in values.items()}
        return table.assign(**sums)

    def places_in(self, other: "Table", keys: Sequence[str]) -> IntColumn:
        """For each row the place of the row of `other` with the same keys, -1 for none; the last
        one where several have them.
        """
        columns = []
        for key in keys:
            both = [other.column(key), self.column(key)]
            columns.append(_joined(both))
        groups = Groups.by(columns, len(other) + len(self))
        of_other, own = np.split(groups.code, [len(other)])
        place = np.full(len(groups), -1, dtype=np.int64)
        place[of_other] = np.arange(len(other))
        return place[own]

    def records(self, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Rows as plain Python values, None for missing values and for names without a column."""
        names = self.names if names is None else names
        lists = []
        for name in names:
            values: list[Any] = [None] * len(self)
            if name in self:
                column = self.column(name)
                values = _values(column, kind_of(name, column))
            lists.append(values)
        return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]

    @cached_property
    def frame(self) -> "pd.DataFrame":
        """As a DataFrame with pandas' nullable types."""
        import pandas as pd

        series = {}
        for name, column in self._columns.items():
            series[name] = _series(column, kind_of(name, column))
        return pd.DataFrame(series)


class FrameOf:
    """An attribute of the same name as one of the owner's `tables`: that table as a DataFrame."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, holder: Any, owner: type) -> "pd.DataFrame":
        table: Table = getattr(holder.tables, self._name)
        return table.frame


def without_rows(columns: Iterable[str]) -> Table:
    """These columns."""
    return Table.of(**dict.fromkeys(columns, ()))


def joined(tables: Sequence[Table]) -> Table:
    """Tables with the same columns, one below the other; those without rows need no columns."""
    kept = [table for table in tables if len(table)] or list(tables[:1])
    if len(kept) == 1:
        return kept[0]
    columns = {}
    for name in kept[0].names if kept else ():
        columns[name] = _joined([table.column(name) for table in kept])
    return Table(columns)


def is_known(column: Column) -> BoolColumn:
    """Which values are not missing."""
    if isinstance(column, Words):
        return np.asarray(column.code >= 0, dtype=np.bool_)
    if column.dtype == np.float64:
        return ~np.isnan(column)
    return np.asarray(column != UNKNOWN, dtype=np.bool_)


def _values(column: Column, kind: Kind) -> list[Any]:
    """A column's values as plain Python, None for missing ones; infinite ones count as missing."""
    plain: list[Any] = column.tolist()
    if isinstance(column, Words):
        return plain
    known = np.isfinite(column) if kind == "real" else column != UNKNOWN
    if kind == "truth":
        plain = list(map(bool, plain))
    for row in np.flatnonzero(~known).tolist():
        plain[row] = None
    return plain


@dataclass(frozen=True)
class Groups:
    """Rows in groups: `code` is the group of each row, `first` the first row of each group."""

    code: IntColumn
    first: IntColumn

    @classmethod
    def by(cls, columns: Sequence[Column], rows: int, in_order: bool = False) -> "Groups":
        """Of rows that agree in all columns."""
        code = np.zeros(rows, dtype=np.int64)
        count = 1
        for column in columns:
            own, size = _codes(column)
            # the product of all sizes may not fit 64 bits
            if count * size > _DENSE * rows:
                code, first = _without_gaps(code, count)
                count = len(first)
            code = code * size + own
            count *= size
        code, first = _without_gaps(code, count)
        if in_order:
            return cls(code, first)
        order = np.argsort(first, kind="stable")
        place = np.argsort(order)
        return cls(place[code], first[order])

    def __len__(self) -> int:
        return len(self.first)

    @cached_property
    def sizes(self) -> IntColumn:
        """Rows of each group."""
        return np.bincount(self.code, minlength=len(self))

    def sums(self, column: FloatColumn) -> FloatColumn:
        """Of the known values of each group; 0 for none."""
        known = np.nan_to_num(column)
        sums = np.bincount(self.code, known, len(self))
        return np.asarray(sums, dtype=np.float64)

    def means(self, column: FloatColumn) -> FloatColumn:
        """Of the known values of each group; NaN for none."""
        known = ~np.isnan(column)
        counts = np.bincount(self.code, known, len(self))
        return divided(self.sums(column), counts)

    def least(self, column: FloatColumn) -> FloatColumn:
        """The smallest known value of each group; NaN for none."""
        smallest = np.full(len(self), np.nan)
        np.fmin.at(smallest, self.code, column)
        return smallest

    def most(self, column: FloatColumn) -> FloatColumn:
        """The largest known value of each group; NaN for none."""
        return -self.least(-column)

    def moved_apart(self, starts: FloatColumn, ends: FloatColumn) -> FloatColumn:
        """How far each row's interval is moved so that on one axis no two groups overlap."""
        first = self.least(starts)
        # each group begins at 0 of a range of its own, all as wide as the longest
        since_first = ends - first[self.code]
        width = float(since_first.max(initial=0.0)) + 1.0
        moves = np.arange(len(self)) * width - first
        return moves[self.code]

    def different(self, column: Column) -> IntColumn:
        """How many different known values each group holds."""
        known = np.flatnonzero(is_known(column))
        code = self.code[known]
        pairs = Groups.by([code, column[known]], len(known))
        return np.bincount(code[pairs.first], minlength=len(self))

    @cached_property
    def places(self) -> IntColumn:
        """The place of each row among those of its group, from 0."""
        starts = np.cumsum(self.sizes) - self.sizes
        in_order = np.arange(len(self.code)) - np.repeat(starts, self.sizes)
        place = np.empty(len(self.code), dtype=np.int64)
        place[self._order] = in_order
        return place

    def rows(self) -> list[IntColumn]:
        """The rows of each group, in order."""
        if not len(self):
            return []
        ends = np.cumsum(self.sizes)
        return np.split(self._order, ends[:-1])

    @cached_property
    def _order(self) -> IntColumn:
        """The rows of the first group, then those of the next."""
        return np.argsort(self.code, kind="stable")


def divided(
    numbers: FloatColumn, by: FloatColumn | IntColumn, otherwise: float = np.nan
) -> FloatColumn:
    """The quotients; `otherwise` where the divisor is not above 0, or unknown."""
    quotients = np.full(len(by), otherwise)
    np.divide(numbers, by, out=quotients, where=by > 0)
    return quotients


def _codes(column: Column) -> tuple[IntColumn, int]:
    """Numbers in the order of the values, missing ones last, equal for equal values, and what all
    of them are below.
    """
    if isinstance(column, Words):
        size = len(column.categories)
        code = np.where(column.code < 0, size, column.code)
        return code, size + 1
    if column.dtype != np.float64 and len(column):
        known = column != UNKNOWN
        low = int(column.min(where=known, initial=np.iinfo(np.int64).max))
        high = int(column.max(where=known, initial=UNKNOWN))
        size = max(high - low + 1, 0)
        if size <= _DENSE * len(column):
            code = np.where(known, column - low, size)
            return code, size + 1
    unique, code = np.unique(column, return_inverse=True)
    if not len(unique):
        return code, 1
    # the number that stands for a missing value is the lowest
    lacking = unique[0] == UNKNOWN
    return (code - lacking) % len(unique), len(unique)


def _without_gaps(code: IntColumn, count: int) -> tuple[IntColumn, IntColumn]:
    """The codes, all below `count`, numbered from 0 in the same order, and the first row of
    each.
    """
    if count > _DENSE * len(code):
        _, first, code = np.unique(code, return_index=True, return_inverse=True)
        return np.asarray(code, dtype=np.int64), first
    first = np.full(count, -1, dtype=np.int64)
    backwards = np.arange(len(code))[::-1]
    first[code[backwards]] = backwards
    used = first >= 0
    number = np.cumsum(used) - 1
    return number[code], first[used]


def _joined(columns: Sequence[Column]) -> Column:
    words = [column for column in columns if isinstance(column, Words)]
    if words:
        return Words.joined(words)
    return np.concatenate([column for column in columns if not isinstance(column, Words)])


def _stored(value: object, kind: Kind, length: int) -> Column:
    if isinstance(value, Words):
        return value
    if isinstance(value, int | float):
        value = np.full(length, value)
    elif value is None or np.isscalar(value):
        value = [value] * length
    if kind == "word":
        return Words.of(cast("Iterable[str | None]", value))
    dtype: type = np.int64
    numbers = "biu"
    missing: float = UNKNOWN
    if kind == "real":
        dtype = np.float64
        numbers = "biuf"
        missing = np.nan
    if isinstance(value, np.ndarray) and value.dtype.kind in numbers:
        return value.astype(dtype, copy=False)
    items = [missing if item is None else item for item in cast("Iterable[object]", value)]
    return np.array(items, dtype=dtype)


def _from_series(series: "pd.Series[Any]", kind: Kind) -> Column:
    values = list(series)
    for row in np.flatnonzero(series.isna()).tolist():
        values[row] = None
    return _stored(values, kind, len(values))


def _series(column: Column, kind: Kind) -> Any:
    import pandas as pd

    if isinstance(column, Words):
        return pd.array(column.tolist(), dtype="string")
    missing = ~is_known(column)
    if kind == "truth":
        return pd.arrays.BooleanArray(column == 1, missing)
    if not missing.any():
        return column
    # Numbers are plain numpy's, which matplotlib takes: a missing one is NaN in a column of floats.
    return np.where(missing, np.nan, column)
