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
    cells = [_to_arrow(table.column(name), COLUMN_KINDS[name]) for name in columns]
    structs = pa.StructArray.from_arrays(cells, fields=list(kind.value_type))
    ends = _array(np.cumsum([0, *lengths], dtype=np.int32), pa.int32())
    return pa.ListArray.from_arrays(ends, structs, type=kind)


def _to_arrow(column: Column, kind: Kind) -> pa.Array:
    if isinstance(column, Words):
        words = [word.encode(errors="replace") for word in column.categories]
        # A code of -1 stands for a missing word.
        codes = _array(column.code, pa.int32(), known=column.code >= 0)
        return texts(words, pa.string()).take(codes)
    # Truths are whole numbers in a table.
    plain = pa.float64() if kind == "real" else pa.int64()
    known = is_known(column)
    cells = _array(column, plain, known)
    return cells.cast(_ARROW[kind])


def _array(
    values: npt.NDArray[Any], kind: pa.DataType, known: BoolColumn | None = None
) -> pa.Array:
    """Of the same numbers, missing where they are not known."""
    bits = None
    if known is not None:
        packed = np.packbits(known, bitorder="little")
        bits = pa.py_buffer(packed)
    content = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [bits, content])


def texts(values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """Strings or bytes as an array of this kind."""
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.Array.from_buffers(
        kind, len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    )


def from_lists(lists: pa.ListArray, columns: Sequence[str]) -> tuple[Table, IntColumn]:
    """What `to_lists` was given: the rows, and how many each rank has."""
    cells = zip(columns, lists.flatten().flatten(), strict=True)
    table = Table({name: _from_arrow(values, COLUMN_KINDS[name]) for name, values in cells})
    return table, np.from_dlpack(lists.value_lengths()).astype(np.int64)


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
    plain = pa.Array.from_buffers(values.type, len(values), [None, content], offset=values.offset)
    numbers = np.from_dlpack(plain).copy()  # else the whole column that was read stays in memory
    if not values.null_count:
        return numbers
    # Truths are no type of dlpack.
    is_missing = values.is_null().cast(pa.uint8())
    return np.where(np.from_dlpack(is_missing), missing, numbers)
