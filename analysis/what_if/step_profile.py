"""One rank's traced step as what a replay needs: stretches of work, gradients, buckets, other
collectives. Microseconds, bytes.

DDP's rule for buckets after its first iteration: gradients in order of readiness fill a bucket,
which closes once it holds its limit. Without a stated cap the first limit is 1 MiB and the others
25 MiB; a stated cap is the first limit too. Source: torch/nn/parallel/distributed.py and
compute_bucket_assignment_by_size in torch/csrc/distributed/c10d/reducer.cpp; limits as measured on
torch 2.15.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpscope.analysis.stats.samples import Floats
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.typed_text import MIB

NEVER = float("-inf")
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

RECORDED, BY_ORDER, INTERPOLATED = "recorded", "parameter order", "interpolated"
"""How the sizes of a step's gradients may be known."""


@dataclass(frozen=True)
class Works:
    """A step's work in order, an entry per kernel (on a CPU: per stretch between two gradients) in
    every column.

    A work starts `gap_us` after the one before has ended and the gradients that it needs have been
    reduced, but not before its host has launched it: `launched_us` after the step's start, or after
    the end of the last work that the host waited for. `needs` is the share of the gradients' bytes
    (0: none).
    """

    busy_us: Floats
    gap_us: Floats
    launched_us: Floats  # NEVER where nothing is launched
    host_waits: Bools  # for this work to end
    needs: Floats
    # whether a larger batch makes the work longer: not the optimizer, nor copies of gradients
    by_samples: Bools


@dataclass(frozen=True)
class Gradients:
    """In order of readiness: bytes each, and how many works precede it. `known` is how their sizes
    are known.
    """

    bytes: Floats
    after: Ints
    known: str

    @property
    def total_bytes(self) -> float:
        return float(self.bytes.sum())


@dataclass(frozen=True)
class MeasuredBucket:
    """An all-reduce of gradients; times count from the step's start.

    `lag_us` is from the end of its last gradient's work to `ready_us`, where the host launched it
    later. `late_us` is by how much the last rank was ready after this one. `cost_us` is the
    transfer as it would be alone on the link: of one rank's trace its whole duration, an upper
    bound that holds waiting (`bounded`).
    """

    bytes: float
    ready_us: float
    start_us: float
    end_us: float
    late_us: float
    cost_us: float
    bounded: bool = False
    lag_us: float = 0.0


@dataclass(frozen=True)
class OtherCollective:
    """One that is no bucket, such as a broadcast of buffers: after so many works, and whether the
    next work waits for it.
    """

    kind: str
    bytes: float | None  # None where the trace does not show them
    after: int
    cost_us: float
    blocks: bool
    gap_us: float = 0.0  # from ready to start


@dataclass(frozen=True)
class StepProfile:
    """One whole step of one rank.

    `start_gap_us` is from a bucket's readiness to the start of its all-reduce, `turn_us` from the
    end of an all-reduce to the start of one that waited for it.
    """

    rank: int | None
    step: int | None
    step_us: float
    works: Works
    gradients: Gradients
    buckets: tuple[MeasuredBucket, ...]
    others: tuple[OtherCollective, ...]
    bucket_ends: tuple[int, ...]  # the last gradient of each measured bucket
    start_gap_us: float
    turn_us: float
    servers: int  # collectives in flight at once: 1 stream of NCCL, 2 workers of gloo

    @property
    def on_device(self) -> bool:
        return self.servers == 1


TYPICAL = 3  # profiles that a prediction is the mean of


def typical(profiles: Sequence[StepProfile]) -> tuple[StepProfile, ...]:
    """The profiles whose steps are nearest to the median."""
    middle = float(np.median([profile.step_us for profile in profiles]))
    return tuple(sorted(profiles, key=lambda profile: abs(profile.step_us - middle))[:TYPICAL])


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
            return FIRST_MIB * MIB, USUAL_MIB * MIB
        return self.cap_mib * MIB, self.cap_mib * MIB


def bucket_ends(sizes_bytes: Sequence[float], bucketing: Bucketing) -> list[int]:
    """The index of each bucket's last gradient; gradients of one type and device, in order of
    readiness.

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
    totals = np.cumsum(gradients.bytes)[np.array(ends, dtype=int)]
    return [float(size) for size in np.diff(totals, prepend=0.0)]


def not_reproduced(profile: StepProfile, bucketing: Bucketing, factor: float = 1.0) -> str | None:
    """Why the rule does not give the buckets that were measured (bytes x factor, by the hook); None
    where it does.

    Sizes that are interpolated between the measured buckets can only be held to their limits: every
    bucket but the last reaches its own.
    """
    measured = [round(bucket.bytes) for bucket in profile.buckets]
    if profile.gradients.known == INTERPOLATED:
        limits = [bucketing.limits_bytes[min(index, 1)] * factor for index in range(len(measured))]
        short = [
            size for size, limit in zip(measured[:-1], limits, strict=False) if size < 0.99 * limit
        ]
        if short:
            return f"a bucket of {short[0] / 1e6:.2f} MB closed before it held its limit: give the cap with --base-bucket-mb"
        return None
    made = bucket_bytes(profile.gradients, bucket_ends(profile.gradients.bytes.tolist(), bucketing))
    expected = [round(size * factor) for size in made]
    if expected == measured:
        return None

    def listed(sizes: Sequence[int]) -> str:
        return f"{', '.join(f'{size / 1e6:.3g}' for size in sizes[:6])}{', ...' if len(sizes) > 6 else ''} MB"

    return (
        f"DDP's rule makes {counted(len(expected), 'bucket')} of {listed(expected)} of the gradients; the trace shows "
        f"{len(measured)} of {listed(measured)}: give the cap that the job set with --base-bucket-mb"
    )
