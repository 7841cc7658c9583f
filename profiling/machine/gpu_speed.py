"""How fast GPUs are specified to compute and to read their memory, with sources. Imports no torch.

Dense rates: data sheets of newer GPUs print twice of them, for sparse matrices.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dpscope.profiling.records.typed_text import nearest

MEMORY, FP32, TF32, HALF, HOST_LINK = BOUNDS = range(5)
"""What bounds a kernel: memory; products of matrices in single precision, TF32, half precision (fp16, bf16); the link to the
host, which another GPU may leave as it is."""


@dataclass(frozen=True)
class GpuSpeed:
    """One model: memory in GB/s, products of matrices in TFLOP/s; a GPU without TF32 computes that in single precision."""

    title: str
    pattern: str  # of its name
    memory_gb_per_s: float
    fp32_tflops: float
    tf32_tflops: float
    half_tflops: float
    source: str

    def rate(self, bound: int) -> float:
        """What a kernel that is bound so runs by: only ratios of two GPUs' mean anything."""
        return (self.memory_gb_per_s, self.fp32_tflops, self.tf32_tflops, self.half_tflops, 1.0)[bound]


def _gpu(title: str, pattern: str, memory: float, tflops: tuple[float, float, float], source: str = "") -> GpuSpeed:
    return GpuSpeed(title, pattern, memory, *tflops, source or f"NVIDIA {title} data sheet")


GPU_SPEEDS: Sequence[GpuSpeed] = (
    _gpu("P100 PCIe", r"P100-PCIE-16GB|P100 PCIe", 732, (9.3, 9.3, 18.7), "NVIDIA Tesla P100 data sheet"),
    _gpu("V100 SXM2", r"V100[- ]SXM2([- ](16|32)GB)?", 900, (15.7, 15.7, 125), "NVIDIA Tesla V100 data sheet"),
    _gpu("V100 PCIe", r"V100[- ]PCIE([- ](16|32)GB)?", 900, (14.0, 14.0, 112), "NVIDIA Tesla V100 data sheet"),
    _gpu("T4", r"T4", 300, (8.1, 8.1, 65)),
    _gpu("A100 SXM4 40GB", r"A100[- ]SXM4?[- ]40GB", 1555, (19.5, 156, 312), "NVIDIA A100 data sheet"),
    _gpu("A100 SXM4 80GB", r"A100[- ]SXM4?[- ]80GB", 2039, (19.5, 156, 312), "NVIDIA A100 data sheet"),
    _gpu("A100 PCIe 40GB", r"A100-PCIE-40GB|A100 PCIe 40GB", 1555, (19.5, 156, 312), "NVIDIA A100 data sheet"),
    _gpu("A100 PCIe 80GB", r"A100 80GB PCIe|A100 PCIe 80GB", 1935, (19.5, 156, 312), "NVIDIA A100 data sheet"),
    _gpu("A10", r"A10", 600, (31.2, 62.5, 125)),
    _gpu("A30", r"A30", 933, (10.3, 82, 165)),
    _gpu("A40", r"A40", 696, (37.4, 74.8, 149.7)),
    _gpu("L4", r"L4", 300, (30.3, 60, 121)),
    _gpu("L40S", r"L40S", 864, (91.6, 183, 362)),
    _gpu("H100 SXM5", r"H100 80GB HBM3|H100[- ]SXM5?", 3350, (67, 495, 989), "NVIDIA H100 data sheet"),
    _gpu("H100 PCIe", r"H100 PCIe", 2000, (51, 378, 756), "NVIDIA H100 data sheet"),
    _gpu("H200 SXM", r"H200|H200 SXM", 4800, (67, 495, 989), "NVIDIA H200 data sheet"),
)


def gpu_speed(name: str | None) -> GpuSpeed | None:
    """The model in a text such as torch's "NVIDIA A100-SXM4-40GB"; None where it is not one of these."""
    words = (name or "").removeprefix("NVIDIA ").removeprefix("Tesla ").strip()
    return next((one for one in GPU_SPEEDS if re.fullmatch(one.pattern, words, re.IGNORECASE)), None)


def like_names(name: str) -> list[str]:
    """Titles of known models that are much like a name that is not known; all of them where none is."""
    titles = [one.title for one in GPU_SPEEDS]
    word = max(re.findall(r"\w+", name), key=len, default="").lower()
    family = [title for title in titles if word and word in title.lower()]
    return family or nearest(name, titles, most=4, cutoff=0.4) or titles
