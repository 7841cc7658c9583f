"""DDP's rule for buckets after its first iteration, and what its options make of it.

Gradients in order of readiness fill a bucket; it closes once it holds its limit. Without a stated cap the first limit is 1 MiB
and the others 25 MiB; a stated cap is the first limit too. Source: torch/nn/parallel/distributed.py and
compute_bucket_assignment_by_size in torch/csrc/distributed/c10d/reducer.cpp; limits as measured on torch 2.15.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.what_if.replay.step_profile import INTERPOLATED, Gradients, StepProfile
from dpscope.profiling.records.finding import counted

_MIB = 1024 * 1024
FIRST_MIB, USUAL_MIB = 1.0, 25.0
HOOK_FACTORS = {"none": 1.0, "fp16": 0.5, "bf16": 0.5}  # of the bytes of float32 gradients


@dataclass(frozen=True)
class Bucketing:
    """`cap_mib` None is torch's default; without overlap one bucket holds all gradients."""

    cap_mib: float | None = None
    overlap: bool = True

    @property
    def limits_bytes(self) -> tuple[float, float]:
        """Of the first bucket, and of each further one."""
        if not self.overlap:
            return math.inf, math.inf
        if self.cap_mib is None:
            return FIRST_MIB * _MIB, USUAL_MIB * _MIB
        return self.cap_mib * _MIB, self.cap_mib * _MIB


def bucket_ends(sizes_bytes: Sequence[float], bucketing: Bucketing) -> list[int]:
    """The index of each bucket's last gradient; gradients of one type and device, in order of readiness.

    >>> bucket_ends([2e6, 1e6, 30e6, 1e6], Bucketing())  # 2 >= 1; 1 + 30 >= 25; the rest
    [0, 2, 3]
    """
    limit, further = bucketing.limits_bytes
    ends, held = [], 0.0
    for index, size in enumerate(sizes_bytes):
        held += size
        if held >= limit:
            ends.append(index)
            held, limit = 0.0, further
    if sizes_bytes and (not ends or ends[-1] != len(sizes_bytes) - 1):
        ends.append(len(sizes_bytes) - 1)
    return ends


def bucket_bytes(gradients: Gradients, ends: Sequence[int]) -> list[float]:
    """The bytes of each bucket, before any hook."""
    reach = np.cumsum(gradients.bytes)
    totals = reach[np.array(ends, dtype=int)]
    return [float(size) for size in np.diff(totals, prepend=0.0)]


def not_reproduced(profile: StepProfile, bucketing: Bucketing, factor: float = 1.0) -> str | None:
    """Why the rule does not give the buckets that were measured (bytes x factor, by the hook); None where it does.

    Sizes that are interpolated between the measured buckets can only be held to their limits: every bucket but the last
    reaches its own.
    """
    measured = [round(one.bytes) for one in profile.buckets]
    if profile.gradients.known == INTERPOLATED:
        limits = [bucketing.limits_bytes[min(index, 1)] * factor for index in range(len(measured))]
        short = [size for size, limit in zip(measured[:-1], limits, strict=False) if size < 0.99 * limit]
        if math.isinf(limits[0]) if limits else False:
            short = measured[:-1]
        if short:
            return f"a bucket of {short[0] / 1e6:.2f} MB closed before it held its limit: give the cap with --base-bucket-mb"
        return None
    made = bucket_bytes(profile.gradients, bucket_ends(profile.gradients.bytes.tolist(), bucketing))
    expected = [round(size * factor) for size in made]
    if expected == measured:
        return None
    return (
        f"DDP's rule makes {counted(len(expected), 'bucket')} of {_sizes(expected)} of the gradients; the trace shows "
        f"{len(measured)} of {_sizes(measured)}"
    )


def _sizes(sizes: Sequence[int]) -> str:
    listed = ", ".join(f"{size / 1e6:.3g}" for size in sizes[:6])
    return f"{listed}{', ...' if len(sizes) > 6 else ''} MB"
