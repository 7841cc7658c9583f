"""The chunks in which `nn.DataParallel` moves parameters, buffers and gradients: sizes, in the order of the tensors."""

from collections import defaultdict
from collections.abc import Sequence

from dpscope.profiling.records.run import TensorSize

DP_CHUNK_BYTES = 10 << 20  # torch/nn/parallel/replicate.py and comm.py: the buffer size of the coalesced calls


def broadcast_chunks(tensors: Sequence[TensorSize]) -> list[int]:
    """Bytes of each chunk in which DataParallel broadcasts these tensors.

    Source: torch/csrc/utils/tensor_flatten.cpp, `take_tensors`: per dtype, a tensor is added first and the chunk closes once
    it holds the limit or more, so a chunk may exceed it.
    """
    open_bytes: dict[str, int] = defaultdict(int)
    chunks = []
    for tensor in tensors:
        open_bytes[tensor.dtype] += tensor.bytes
        if open_bytes[tensor.dtype] >= DP_CHUNK_BYTES:
            chunks.append(open_bytes.pop(tensor.dtype))
    return chunks + [size for size in open_bytes.values() if size > 0]


def reduce_chunks(tensors: Sequence[TensorSize]) -> list[int]:
    """Bytes of each chunk in which DataParallel reduces the gradients of these parameters.

    Source: torch/_utils.py, `_take_tensors`: per dtype, a chunk closes before a tensor that would make it exceed the limit.
    """
    open_bytes: dict[str, int] = defaultdict(int)
    chunks = []
    for tensor in tensors:
        if open_bytes[tensor.dtype] and open_bytes[tensor.dtype] + tensor.bytes > DP_CHUNK_BYTES:
            chunks.append(open_bytes.pop(tensor.dtype))
        open_bytes[tensor.dtype] += tensor.bytes
    return chunks + [size for size in open_bytes.values() if size > 0]
