"""What bounds a kernel, by its name: products of matrices by the peak rate of their type, everything else by memory.

The roofline of a kernel that is far from the ridge (Williams et al., "Roofline", CACM 52(4), 2009). The names are those of
cuBLAS, cuDNN and CUTLASS; a product of matrices with few rows is bound by memory in truth.
"""

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpscope.profiling.machine.gpu_speed import FP32, HALF, HOST_LINK, MEMORY, TF32

_COPY = re.compile(r"^Memcpy (HtoD|DtoH)")
_PRODUCT = re.compile(
    r"gemm|gemv|cutlass|xmma|s(884)?cudnn|cudnn.*(conv|wgrad|dgrad|fprop)|implicit_convolve|convolve|winograd|wgrad|dgrad|fprop|flash|fmha",
    re.IGNORECASE,
)
_BESIDE = re.compile(r"nchwToNhwc|nhwcToNchw|scalePackedTensor|splitKreduce|im2col|col2im", re.IGNORECASE)
_TF32 = re.compile(r"tf32|s1688(?!.*(f16|bf16))", re.IGNORECASE)
_HALF = re.compile(r"f16f16|bf16|_f16_|h884|h1688|h16816|hgemm|fp16|s16816|s884|half|flash|fmha", re.IGNORECASE)


def kernel_bounds(names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Of each name MEMORY, FP32, TF32, HALF or HOST_LINK."""
    return np.array([_bound(name) for name in names], dtype=np.int64)


def _bound(name: str) -> int:
    if _COPY.search(name):
        return HOST_LINK
    if not _PRODUCT.search(name) or _BESIDE.search(name):
        return MEMORY
    if _TF32.search(name):
        return TF32
    return HALF if _HALF.search(name) else FP32
