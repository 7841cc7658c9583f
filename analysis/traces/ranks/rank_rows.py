"""A table of several ranks, and the same as Arrow's lists, one for each rank.

Arrow's arrays are made of buffers and read as such, since `pa.array` and `to_numpy` would import pandas.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpscope.analysis.traces.reading.event_table import BoolColumn, IntColumn
from dpscope.analysis.traces.reading.table import COLUMN_KINDS, UNKNOWN, Column, Kind, Table, Words, is_known, joined

_ARROW: dict[Kind, pa.DataType] = {
    "word": pa.string(),
    "truth": pa.bool_(),
    "real": pa.float64(),
    "whole": pa.int64(),
}


@dataclass(frozen=True)
class RankRows:
    """The rows of all ranks, one rank after the other, and how many each has."""

    table: Table
    lengths: IntColumn

    @classmethod
    def of_ranks(cls, tables: Sequence[Table], columns: Sequence[str]) -> "RankRows":
        """A table of each rank; one without rows needs no columns."""
        empty = Table.of(**dict.fromkeys(columns, ()))
        lengths = np.array([len(table) for table in tables], dtype=np.int64)
        return cls(joined([empty, *tables]), lengths)

    @classmethod
    def joined(cls, parts: "Sequence[RankRows]") -> "RankRows":
        """The ranks of these tables, one after the other."""
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(joined([part.table for part in parts]), lengths)

    def take(self, ranks: IntColumn) -> "RankRows":
        """The ranks at these places, in this order."""
        starts = np.cumsum(self.lengths) - self.lengths
        lengths = self.lengths[ranks]
        taken_before = np.cumsum(lengths) - lengths
        shift = np.repeat(starts[ranks] - taken_before, lengths)
        rows = shift + np.arange(lengths.sum())
        return RankRows(self.table.take(rows), lengths)

    @property
    def owners(self) -> IntColumn:
        """The place of each row's rank."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


def list_type(columns: Sequence[str]) -> pa.DataType:
    """The type of a table's rows, whose elements are named as Parquet names them: a file needs only its own schema."""
    fields = [(name, _ARROW[COLUMN_KINDS[name]]) for name in columns]
    row = pa.field("element", pa.struct(fields))
    return pa.list_(row)


def to_lists(rows: RankRows, columns: Sequence[str]) -> pa.ListArray:
    """A list for each rank, with these columns of its rows."""
    kind = list_type(columns)
    cells = []
    for name in columns:
        column = rows.table.column(name)
        cells.append(_to_arrow(column, COLUMN_KINDS[name]))
    structs = pa.StructArray.from_arrays(cells, fields=list(kind.value_type))
    ends = np.cumsum([0, *rows.lengths], dtype=np.int32)
    return pa.ListArray.from_arrays(_array(ends, pa.int32()), structs, type=kind)


def _to_arrow(column: Column, kind: Kind) -> pa.Array:
    if isinstance(column, Words):
        words = [word.encode(errors="replace") for word in column.categories]
        codes = _array(column.code, pa.int32(), known=column.code >= 0)
        return texts(words, pa.string()).take(codes)
    # Truths are whole numbers in a table.
    plain = pa.float64() if kind == "real" else pa.int64()
    cells = _array(column, plain, known=is_known(column))
    return cells.cast(_ARROW[kind])


def _array(
    values: npt.NDArray[Any],
    kind: pa.DataType,
    known: BoolColumn | None = None,
) -> pa.Array:
    """Of the same numbers, missing where they are not known."""
    bits = None
    if known is not None:
        bits = pa.py_buffer(np.packbits(known, bitorder="little"))
    content = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [bits, content])


def texts(values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """Strings or bytes as an array of this kind."""
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def from_lists(lists: pa.ListArray, columns: Sequence[str]) -> RankRows:
    """What `to_lists` was given."""
    structs = lists.flatten()
    cells: dict[str, Column] = {}
    for name, values in zip(columns, structs.flatten(), strict=True):
        cells[name] = _from_arrow(values, COLUMN_KINDS[name])
    lengths = np.from_dlpack(lists.value_lengths())
    return RankRows(Table(cells), lengths.astype(np.int64))


def _from_arrow(values: pa.Array, kind: Kind) -> Column:
    if kind == "word":
        coded = values.dictionary_encode()
        words = [*coded.dictionary.to_pylist(), None]
        codes = _numbers(coded.indices, missing=len(words) - 1)
        return Words.coded(codes, words)
    if kind == "real":
        return _numbers(values, missing=np.nan)
    return _numbers(values.cast(pa.int64()), missing=UNKNOWN)


def _numbers(values: pa.Array, missing: float) -> npt.NDArray[Any]:
    """The numbers of an array, with `missing` in place of missing ones."""
    _, content = values.buffers()
    plain = pa.Array.from_buffers(
        values.type,
        len(values),
        [None, content],
        offset=values.offset,
    )
    numbers = np.from_dlpack(plain)
    if not values.null_count:
        return numbers
    is_missing = np.from_dlpack(values.is_null().cast(pa.uint8()))
    return np.where(is_missing, missing, numbers)
