"""Tables on NumPy columns, for everything computed from a trace; a DataFrame is made of one only where it is requested."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from dpscope.analysis.traces.reading.event_table import BoolColumn, FloatColumn, IntColumn

if TYPE_CHECKING:
    import pandas as pd

Column: TypeAlias = npt.NDArray[Any]
Rows: TypeAlias = IntColumn | BoolColumn
Kind = Literal["word", "truth", "real", "whole"]

UNKNOWN = int(np.iinfo(np.int64).min)
"""Stands for a missing value in columns of whole numbers and truths; it is NaN in columns of reals, None in those of words."""

_WORDS = frozenset({"kind", "moved_as", "group", "group_ranks", "phase", "operator", "part", "host", "switch"})
_TRUTHS = frozenset({"partial_window", "compute_stream", "overlapped"})
_REALS = frozenset({"compute_done", "share"})


def kind_of(column: str) -> Kind:
    """What a column holds, by its name."""
    if column in _WORDS:
        return "word"
    if column in _TRUTHS:
        return "truth"
    return "real" if column.endswith(("_us", "_gb_per_s", "_share")) or column in _REALS else "whole"


class Table:
    """Columns of equal length by name; how each is stored follows from its name (`kind_of`)."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self.columns = dict(columns)

    @classmethod
    def of(cls, **columns: object) -> "Table":
        """From sequences, arrays or single values; None, NaN and pandas' NA are missing values."""
        lengths = [len(value) for value in columns.values() if not np.isscalar(value) and value is not None]  # type: ignore[arg-type]
        return cls({name: _stored(value, kind_of(name), max(lengths, default=1)) for name, value in columns.items()})

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, object]], names: Sequence[str]) -> "Table":
        """A row per record; names that a record lacks are missing values."""
        rows = list(records)
        return cls.of(**{name: [row.get(name) for row in rows] for name in names})

    @classmethod
    def from_frame(cls, frame: "pd.DataFrame") -> "Table":
        """The same rows without their index."""
        return cls.of(**{str(name): _from_series(frame[name], kind_of(str(name))) for name in frame.columns})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def known(self, name: str) -> BoolColumn:
        """Rows whose value is not missing."""
        return is_known(self.columns[name])

    def truths(self, name: str, missing: bool = False) -> BoolColumn:
        """A column of truths with `missing` in place of missing values."""
        column = self.columns[name]
        return np.where(column == UNKNOWN, missing, column != 0)

    def real(self, name: str) -> FloatColumn:
        """A column of numbers as floats, NaN where missing."""
        column = self.columns[name]
        return column if column.dtype == np.float64 else np.where(column == UNKNOWN, np.nan, column)

    def take(self, rows: Rows) -> "Table":
        """The rows that are listed or marked."""
        return Table({name: column[rows] for name, column in self.columns.items()})

    def select(self, names: Iterable[str]) -> "Table":
        """These columns, in this order."""
        return Table({name: self.columns[name] for name in names})

    def assign(self, **columns: object) -> "Table":
        """With these columns added or replaced; values as in `of`."""
        added = {name: _stored(value, kind_of(name), len(self)) for name, value in columns.items()}
        return Table({**self.columns, **added})

    def group(self, *keys: str, in_order: bool = False) -> "Groups":
        """Rows with equal keys, missing values being equal: numbered as they first appear, or `in_order` of their keys."""
        return Groups.by([self.columns[key] for key in keys], len(self), in_order)

    def places_in(self, other: "Table", keys: Sequence[str]) -> IntColumn:
        """For each row the place of the row of `other` with the same keys, -1 for none; the last one where several have them."""
        both = [_joined([other[key], self[key]]) for key in keys]
        code = Groups.by(both, len(other) + len(self)).code
        place = np.full(int(code.max()) + 1 if len(code) else 0, -1, dtype=np.int64)
        place[code[: len(other)]] = np.arange(len(other))
        return np.asarray(place[code[len(other) :]], dtype=np.int64)

    def records(self, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Rows as plain Python values, None for missing values and for names without a column."""
        names = list(self.columns) if names is None else names
        lists = [values(self.columns[name], kind_of(name)) if name in self else [None] * len(self) for name in names]
        return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]

    @cached_property
    def frame(self) -> "pd.DataFrame":
        """As a DataFrame with pandas' nullable types."""
        import pandas as pd

        return pd.DataFrame({name: _series(column, kind_of(name)) for name, column in self.columns.items()})


def as_table(rows: "Table | pd.DataFrame") -> Table:
    """A table, or that of a DataFrame."""
    return rows if isinstance(rows, Table) else Table.from_frame(rows)


def joined(tables: Sequence[Table]) -> Table:
    """Tables with the same columns, one below the other; those without rows need no columns."""
    kept = [one for one in tables if len(one)] or list(tables[:1])
    if len(kept) == 1:
        return kept[0]
    return Table({name: _joined([one[name] for one in kept]) for name in (kept[0].columns if kept else ())})


def is_known(column: Column) -> BoolColumn:
    """Which values are not missing."""
    if column.dtype == object:
        return np.asarray(np.not_equal(column, np.array(None)), dtype=np.bool_)
    return ~np.isnan(column) if column.dtype == np.float64 else np.asarray(column != UNKNOWN, dtype=bool)


def values(column: Column, kind: Kind) -> list[Any]:
    """A column's values as plain Python, None for missing ones; infinite ones count as missing."""
    plain: list[Any] = column.tolist()
    if kind == "word":
        return plain
    if kind == "real":
        return plain if np.isfinite(column).all() else [value if np.isfinite(value) else None for value in plain]
    if kind == "truth":
        return [None if value == UNKNOWN else bool(value) for value in plain]
    return [None if value == UNKNOWN else value for value in plain] if (column == UNKNOWN).any() else plain


@dataclass(frozen=True)
class Groups:
    """Rows in groups: `code` is the group of each row, `first` the first row of each group."""

    code: IntColumn
    first: IntColumn

    @classmethod
    def by(cls, columns: Sequence[Column], rows: int, in_order: bool = False) -> "Groups":
        """Of rows that agree in all columns."""
        code, count = np.zeros(rows, dtype=np.int64), 1
        for column in columns:
            own, size = _codes(column, in_order)
            if count * size >= 1 << 62:
                unique, code = np.unique(code, return_inverse=True)
                count = len(unique)
            code, count = code * size + own, count * size
        _, first, code = np.unique(code, return_index=True, return_inverse=True)
        if not in_order:
            order = np.argsort(first, kind="stable")
            place = np.empty(len(order), dtype=np.int64)
            place[order] = np.arange(len(order))
            first, code = first[order], place[code]
        return cls(np.asarray(code, dtype=np.int64), first)

    def __len__(self) -> int:
        return len(self.first)

    @cached_property
    def sizes(self) -> IntColumn:
        """Rows of each group."""
        return np.bincount(self.code, minlength=len(self))

    def sums(self, column: FloatColumn) -> FloatColumn:
        """Of the known values of each group; 0 for none."""
        return np.asarray(np.bincount(self.code, np.nan_to_num(column), len(self)), dtype=np.float64)

    def means(self, column: FloatColumn) -> FloatColumn:
        """Of the known values of each group; NaN for none."""
        counts = np.bincount(self.code, weights=~np.isnan(column), minlength=len(self))
        return np.asarray(np.divide(self.sums(column), counts, out=np.full(len(self), np.nan), where=counts > 0))

    def least(self, column: FloatColumn) -> FloatColumn:
        """The smallest known value of each group; NaN for none."""
        found = np.full(len(self), np.nan)
        np.fmin.at(found, self.code, column)
        return found

    def most(self, column: FloatColumn) -> FloatColumn:
        """The largest known value of each group; NaN for none."""
        return -self.least(-column)

    def different(self, column: Column) -> IntColumn:
        """How many different known values each group holds."""
        known = np.flatnonzero(is_known(column))
        own, size = _codes(column[known])
        pairs = np.unique(self.code[known] * max(size, 1) + own)
        return np.bincount(pairs // max(size, 1), minlength=len(self))

    @cached_property
    def places(self) -> IntColumn:
        """The place of each row among those of its group, from 0."""
        order = np.argsort(self.code, kind="stable")
        place = np.empty(len(order), dtype=np.int64)
        starts = np.cumsum(self.sizes) - self.sizes
        place[order] = np.arange(len(order)) - starts[self.code[order]]
        return place

    def rows(self) -> Iterator[IntColumn]:
        """The rows of each group, in order."""
        order = np.argsort(self.code, kind="stable")
        bounds = np.concatenate(([0], np.cumsum(self.sizes)))
        for begin, end in pairwise(bounds.tolist()):
            yield order[begin:end]


def _codes(column: Column, in_order: bool = False) -> tuple[IntColumn, int]:
    """Numbers that are equal for equal values, in their order with missing values last if wanted, and how many there are."""
    if column.dtype == object:
        words: list[str | None] = column.tolist()
        numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
        code = np.fromiter(map(numbers.__getitem__, words), dtype=np.int64, count=len(words))
        if in_order and len(code):
            ordered = sorted(numbers, key=lambda word: (word is None, word or ""))
            place = np.empty(len(ordered), dtype=np.int64)
            place[[numbers[word] for word in ordered]] = np.arange(len(ordered))
            code = place[code]
        return code, max(len(numbers), 1)
    unique, code = np.unique(column, return_inverse=True)
    if len(unique) and unique[0] == UNKNOWN:
        code = (code - 1) % len(unique)
    return np.asarray(code, dtype=np.int64), max(len(unique), 1)


def _joined(columns: Sequence[Column]) -> Column:
    return np.concatenate(columns)


def _stored(value: object, kind: Kind, length: int) -> Column:
    if value is None or np.isscalar(value):
        value = [value] * length
    if isinstance(value, np.ndarray):
        if kind == "real" and value.dtype != object:
            return value.astype(np.float64, copy=False)
        if kind in ("whole", "truth") and value.dtype.kind in "biu":
            return value.astype(np.int64, copy=False)
        if kind == "word" and value.dtype == object:
            return value
    assert isinstance(value, Iterable)
    if kind == "real":
        return np.array([np.nan if one is None else one for one in value], dtype=np.float64)
    if kind == "word":
        column = np.empty(length, dtype=object)
        column[:] = list(value)
        return column
    return np.array([UNKNOWN if one is None else int(one) for one in value], dtype=np.int64)


def _from_series(series: "pd.Series[Any]", kind: Kind) -> Column:
    if kind == "real":
        return np.asarray(series.to_numpy(dtype=float, na_value=np.nan), dtype=np.float64)
    missing = series.isna().to_numpy(dtype=bool)
    if kind == "word":
        column = np.asarray(series.to_numpy(dtype=object), dtype=object).copy()
        column[missing] = None
        return column
    if series.dtype == object or missing.all():
        return np.array([UNKNOWN if lost else int(one) for one, lost in zip(series, missing, strict=True)], np.int64)
    return np.where(missing, UNKNOWN, series.where(~missing, 0).to_numpy(dtype=np.int64, na_value=0))


def _series(column: Column, kind: Kind) -> Any:
    import pandas as pd

    missing = ~is_known(column)
    if kind == "word":
        return pd.array(column, dtype="string")
    if kind == "real":
        return pd.arrays.FloatingArray(np.where(missing, 1.0, column), missing)
    if kind == "truth":
        return pd.arrays.BooleanArray(column == 1, missing)
    return pd.arrays.IntegerArray(np.where(missing, 1, column), missing)
