"""Tables of ranks as Arrow's lists, one for each rank, and back.

Arrow's arrays are made of buffers and read as such, since `pa.array` and `to_numpy` would import
pandas.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpscope.analysis.traces.reading.event_table import BoolColumn, IntColumn
from dpscope.analysis.traces.reading.table import (
    COLUMN_KINDS,
    UNKNOWN,
    Column,
    Kind,
    Table,
    Words,
    is_known,
)

_ARROW: dict[Kind, pa.DataType] = {
    "word": pa.string(),
    "truth": pa.bool_(),
    "real": pa.float64(),
    "whole": pa.int64(),
}


def list_type(columns: Sequence[str]) -> pa.DataType:
    """The type of a table's rows, whose elements are named as Parquet names them: a file needs only
    its own schema.
    """
    fields = [(name, _ARROW[COLUMN_KINDS[name]]) for name in columns]
    return pa.list_(pa.field("element", pa.struct(fields)))


def to_lists(table: Table, lengths: IntColumn, columns: Sequence[str]) -> pa.ListArray:
    """A list for each rank, with these columns of its rows; each rank has so many."""
    kind = list_type(columns)
    cells = []
    for name in columns:
        cells.append(_to_arrow(table.column(name), COLUMN_KINDS[name]))
    structs = pa.StructArray.from_arrays(cells, fields=list(kind.value_type))
    # Arrow keeps lists as one array and the place in it where each begins, and the last one ends
    bounds = np.cumsum([0, *lengths], dtype=np.int32)
    return pa.ListArray.from_arrays(_array(bounds, pa.int32()), structs, type=kind)


def _to_arrow(column: Column, kind: Kind) -> pa.Array:
    if isinstance(column, Words):
        words = [word.encode(errors="replace") for word in column.categories]
        # a code of -1 stands for a missing word
        codes = _array(column.code, pa.int32(), is_known(column))
        return texts(words, pa.string()).take(codes)
    # truths are whole numbers in a table
    plain = pa.float64() if kind == "real" else pa.int64()
    return _array(column, plain, is_known(column)).cast(_ARROW[kind])


def _array(
    values: npt.NDArray[Any], kind: pa.DataType, present: BoolColumn | None = None
) -> pa.Array:
    """Of the same numbers; missing where they are not present."""
    validity = None
    if present is not None:
        # a bit for each value, the lowest one first
        bits = np.packbits(present, bitorder="little")
        validity = pa.py_buffer(bits)
    content = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [validity, content])


def texts(values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """Strings or bytes as an array of this kind."""
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    # no buffer of validity: none is missing
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def from_lists(lists: pa.ListArray, columns: Sequence[str]) -> tuple[Table, IntColumn]:
    """What `to_lists` was given: the rows, and how many each rank has."""
    structs = lists.flatten()
    cells: dict[str, Column] = {}
    for name, values in zip(columns, structs.flatten(), strict=True):
        cells[name] = _from_arrow(values, COLUMN_KINDS[name])
    lengths = np.from_dlpack(lists.value_lengths())
    return Table(cells), lengths.astype(np.int64)


def _from_arrow(values: pa.Array, kind: Kind) -> Column:
    if kind == "word":
        coded = values.dictionary_encode()
        words = [*coded.dictionary.to_pylist(), None]  # the last for a missing one
        codes = _numbers(coded.indices, missing=len(words) - 1)
        return Words.coded(codes, words)
    if kind == "real":
        return _numbers(values, missing=np.nan)
    return _numbers(values.cast(pa.int64()), missing=UNKNOWN)


def _numbers(values: pa.Array, missing: float) -> npt.NDArray[Any]:
    """The numbers of an array, with `missing` in place of missing ones."""
    _, content = values.buffers()
    plain = pa.Array.from_buffers(values.type, len(values), [None, content], offset=values.offset)
    numbers = np.from_dlpack(plain).copy()  # else the whole column that was read stays in memory
    if not values.null_count:
        return numbers
    # truths are no type of dlpack
    is_missing = np.from_dlpack(values.is_null().cast(pa.uint8()))
    return np.where(is_missing, missing, numbers)
