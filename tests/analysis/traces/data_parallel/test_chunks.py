"""Chunks of nn.DataParallel, by hand from torch's two rules."""

from dpscope.analysis.traces.data_parallel.chunks import broadcast_chunks, reduce_chunks
from dpscope.profiling.records.run import TensorSize

MIB = 1 << 20


def tensors(*mebibytes: float, dtype: str = "float") -> tuple[TensorSize, ...]:
    return tuple(TensorSize(dtype=dtype, bytes=int(size * MIB)) for size in mebibytes)


def test_broadcast_chunks_close_once_they_hold_the_limit() -> None:
    # 6 + 6 >= 10 closes, 3 is left
    assert broadcast_chunks(tensors(6, 6, 3)) == [12 * MIB, 3 * MIB]
    assert broadcast_chunks(tensors(10)) == [10 * MIB]
    assert broadcast_chunks(tensors(20, 1)) == [20 * MIB, 1 * MIB]
    assert broadcast_chunks(()) == []
    # one chunk for each dtype
    assert broadcast_chunks((*tensors(1, 1), *tensors(1, dtype="long"))) == [2 * MIB, 1 * MIB]


def test_reduce_chunks_close_before_they_exceed_the_limit() -> None:
    # 6 + 6 > 10: chunks of 6 and 6 + 3 MiB
    assert reduce_chunks(tensors(6, 6, 3)) == [6 * MIB, 9 * MIB]
    assert reduce_chunks(tensors(5, 5, 5)) == [10 * MIB, 5 * MIB]
    assert reduce_chunks(tensors(20, 1)) == [20 * MIB, 1 * MIB]
    assert reduce_chunks(()) == []
