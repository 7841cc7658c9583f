"""Specified compute rates of GPUs, by their data sheets. Imports no torch.

Rates are for dense matrices; data sheets of newer GPUs print twice the rate, for sparse ones.
"""

import re
from dataclasses import dataclass

from dpscope.profiling.records.run import Precision


@dataclass(frozen=True)
class GpuSpeed:
    """Matrix products of one GPU model in TFLOP/s; a GPU without TF32 has its single-precision rate
    there.
    """

    names: str  # a pattern
    fp32: float
    tf32: float
    half: float
    bf16: bool = True  # in units of its own; older GPUs emulate it

    def tflops(self, precision: Precision) -> float:
        return {"fp32": self.fp32, "tf32": self.tf32}.get(precision, self.half)


# A MIG instance has a longer name: its share of the GPU's rate is not specified.
GPU_SPEEDS = (
    GpuSpeed(r"P100-PCIE-16GB|P100 PCIe", 9.3, 9.3, 18.7, bf16=False),
    GpuSpeed(r"V100[- ]SXM2([- ](16|32)GB)?", 15.7, 15.7, 125, bf16=False),
    GpuSpeed(r"V100[- ]PCIE([- ](16|32)GB)?", 14.0, 14.0, 112, bf16=False),
    GpuSpeed(r"T4", 8.1, 8.1, 65, bf16=False),
    GpuSpeed(r"A100([- ](SXM4?|PCIE)[- ](40|80)GB| 80GB PCIe)?", 19.5, 156, 312),
    GpuSpeed(r"A10", 31.2, 62.5, 125),
    GpuSpeed(r"A30", 10.3, 82, 165),
    GpuSpeed(r"A40", 37.4, 74.8, 149.7),
    GpuSpeed(r"L4", 30.3, 60, 121),
    GpuSpeed(r"L40S", 91.6, 183, 362),
    GpuSpeed(r"H100 80GB HBM3|H100[- ]SXM5?", 67, 495, 989),
    GpuSpeed(r"H100 PCIe", 51, 378, 756),
    GpuSpeed(r"H200|H200 SXM", 67, 495, 989),
)


def gpu_speed(name: str | None) -> GpuSpeed | None:
    """The model named in a text such as torch's "NVIDIA A100-SXM4-40GB"; None if it is not in
    GPU_SPEEDS.
    """
    words = (name or "").removeprefix("NVIDIA ").removeprefix("Tesla ").strip()
    matches = (speed for speed in GPU_SPEEDS if re.fullmatch(speed.names, words, re.IGNORECASE))
    return next(matches, None)


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
