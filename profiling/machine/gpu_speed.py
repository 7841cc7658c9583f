"""Specified compute rates and memory bandwidths of GPUs, with sources. Imports no torch.

Rates are for dense matrices; data sheets of newer GPUs print twice the rate, for sparse ones.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dpscope.profiling.records.run import Precision

MEMORY, FP32, TF32, HALF, HOST_LINK = range(5)
"""The bound of a kernel: memory; matrix products in single precision, TF32 or half precision (fp16,
bf16); the link to the host, whose rate is assumed not to depend on the GPU."""


@dataclass(frozen=True)
class GpuSpeed:
    """One GPU model: memory in GB/s, matrix products in TFLOP/s; a GPU without TF32 has its
    single-precision rate there.
    """

    title: str
    pattern: str  # of its name
    memory_gb_per_s: float
    tflops: tuple[float, float, float]  # single precision, TF32, half precision
    other_source: str = ""  # than the data sheet of this title
    bf16: bool = True  # in units of its own; older GPUs emulate it

    def rate(self, bound: int) -> float:
        """The rate of a kernel with this bound; only ratios between two GPUs are meaningful."""
        return (self.memory_gb_per_s, *self.tflops, 1.0)[bound]


GPU_SPEEDS: Sequence[GpuSpeed] = (
    GpuSpeed(
        "P100 PCIe",
        r"P100-PCIE-16GB|P100 PCIe",
        732,
        (9.3, 9.3, 18.7),
        "NVIDIA Tesla P100 data sheet",
        bf16=False,
    ),
    GpuSpeed(
        "V100 SXM2",
        r"V100[- ]SXM2([- ](16|32)GB)?",
        900,
        (15.7, 15.7, 125),
        "NVIDIA Tesla V100 data sheet",
        bf16=False,
    ),
    GpuSpeed(
        "V100 PCIe",
        r"V100[- ]PCIE([- ](16|32)GB)?",
        900,
        (14.0, 14.0, 112),
        "NVIDIA Tesla V100 data sheet",
        bf16=False,
    ),
    GpuSpeed("T4", r"T4", 300, (8.1, 8.1, 65), bf16=False),
    GpuSpeed(
        "A100 SXM4 40GB", r"A100[- ]SXM4?[- ]40GB", 1555, (19.5, 156, 312), "NVIDIA A100 data sheet"
    ),
    GpuSpeed(
        "A100 SXM4 80GB", r"A100[- ]SXM4?[- ]80GB", 2039, (19.5, 156, 312), "NVIDIA A100 data sheet"
    ),
    GpuSpeed(
        "A100 PCIe 40GB",
        r"A100-PCIE-40GB|A100 PCIe 40GB",
        1555,
        (19.5, 156, 312),
        "NVIDIA A100 data sheet",
    ),
    GpuSpeed(
        "A100 PCIe 80GB",
        r"A100 80GB PCIe|A100 PCIe 80GB",
        1935,
        (19.5, 156, 312),
        "NVIDIA A100 data sheet",
    ),
    GpuSpeed("A10", r"A10", 600, (31.2, 62.5, 125)),
    GpuSpeed("A30", r"A30", 933, (10.3, 82, 165)),
    GpuSpeed("A40", r"A40", 696, (37.4, 74.8, 149.7)),
    GpuSpeed("L4", r"L4", 300, (30.3, 60, 121)),
    GpuSpeed("L40S", r"L40S", 864, (91.6, 183, 362)),
    GpuSpeed(
        "H100 SXM5", r"H100 80GB HBM3|H100[- ]SXM5?", 3350, (67, 495, 989), "NVIDIA H100 data sheet"
    ),
    GpuSpeed("H100 PCIe", r"H100 PCIe", 2000, (51, 378, 756), "NVIDIA H100 data sheet"),
    GpuSpeed("H200 SXM", r"H200|H200 SXM", 4800, (67, 495, 989), "NVIDIA H200 data sheet"),
)


def gpu_speed(name: str | None) -> GpuSpeed | None:
    """The model named in a text such as torch's "NVIDIA A100-SXM4-40GB"; None if it is not in
    GPU_SPEEDS.
    """
    words = (name or "").removeprefix("NVIDIA ").removeprefix("Tesla ").strip()
    return next(
        (speed for speed in GPU_SPEEDS if re.fullmatch(speed.pattern, words, re.IGNORECASE)), None
    )


@dataclass(frozen=True)
class StatedFlops:
    """FLOPs of one step on one device, as a user states them; `precision` is that of matrix
    products, None where not stated.
    """

    total: float
    precision: Precision | None = None


_STATED = re.compile(
    r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*(?P<scale>[KMGTP]?)(?::(?P<dtype>\w+))?",
    re.IGNORECASE,
)
_SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_DTYPES: dict[str, Precision] = {"fp32": "fp32", "tf32": "tf32", "bf16": "bf16", "fp16": "half"}


def parse_flops(text: str) -> StatedFlops:
    """FLOPs such as ``1.2e12``, ``1.2T`` or ``1.2T:bf16``; raises ValueError, which names what to
    write.

    >>> parse_flops("1.2T:bf16")
    StatedFlops(total=1200000000000.0, precision='bf16')
    """
    parts = _STATED.fullmatch(text.strip())
    total = float(parts["number"]) * _SCALES[parts["scale"].upper()] if parts is not None else 0.0
    dtype = parts["dtype"] if parts is not None else None
    if not 1 <= total < float("inf") or (dtype is not None and dtype.lower() not in _DTYPES):
        raise ValueError(
            f"{text}: give the FLOPs of one step on one device, such as 1.2e12 or 1.2T (two a multiply-add), and for MFU the "
            f"precision of its products: 1.2T:bf16 ({', '.join(_DTYPES)})"
        )
    return StatedFlops(total, _DTYPES[dtype.lower()] if dtype is not None else None)
