"""One rank's traced step as what a replay needs: host launches, compute, gradients, buckets, other collectives.

Microseconds and bytes; no torch. A CPU's step has no launches: its works are stretches of time, and the host never holds them up.

Launches and kernels only ever wait for the latest of several times and then take so long, so any number of them in a row is a
2 x 2 matrix of the max-plus algebra (Baccelli, Cohen, Olsder and Quadrat, "Synchronization and linearity", 1992): a ResNet-50's
thousand kernels become a matrix (`Stretch`) between every two gradients, and a replay takes microseconds.

DDP's rule for buckets after its first iteration: gradients in order of readiness fill a bucket, which closes once it holds its
limit. Without a stated cap the first limit is 1 MiB and the others 25 MiB; a stated cap is the first limit too. Source:
torch/nn/parallel/distributed.py and compute_bucket_assignment_by_size in torch/csrc/distributed/c10d/reducer.cpp; limits as
measured on torch 2.15.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpscope.analysis.stats.samples import Floats
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.typed_text import MIB

SHARES_THE_LINK = 2.0  # how many times as long each of two collectives in flight takes, where they share every byte
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

RECORDED, BY_ORDER, INTERPOLATED, UNKNOWN = "recorded", "parameter order", "interpolated", "unknown"
"""How the sizes of a step's gradients may be known."""


@dataclass(frozen=True)
class Works:
    """A step's compute in order of launch, an entry per work in every column.

    A work starts at the later of (its launch + `launch_gap_us`) and (the end of the work before + `order_gap_us`). `host_us` is
    the host's own time before the launch. Where `sync_us` is known the host goes on so long after the work's end and not before.
    `needs` is the share of the gradients' bytes that must have been reduced before the work starts (0: none).
    """

    host_us: Floats
    device_us: Floats
    launch_gap_us: Floats
    order_gap_us: Floats
    sync_us: Floats  # NaN where the host does not wait
    needs: Floats
    by_samples: Bools  # whether a larger batch makes the work longer: not the optimizer, nor copies of gradients

    def __len__(self) -> int:
        return len(self.device_us)


@dataclass(frozen=True)
class Gradients:
    """In order of readiness: bytes each, and how many works precede it. `known` is how their sizes are known."""

    bytes: Floats
    after: Ints
    known: str

    @property
    def total_bytes(self) -> float:
        return float(self.bytes.sum())


@dataclass(frozen=True)
class MeasuredBucket:
    """An all-reduce of gradients; times count from the step's start.

    `late_us` is by how much the last rank was ready after this one. `cost_us` is the transfer as it would be alone on the link:
    of one rank's trace its whole duration, an upper bound that holds waiting (`bounded`).
    """

    bytes: float
    ready_us: float
    start_us: float
    end_us: float
    late_us: float
    cost_us: float
    bounded: bool = False


@dataclass(frozen=True)
class OtherCollective:
    """One that is no bucket, such as a broadcast of buffers: after so many works, and whether the next work waits for it."""

    kind: str
    bytes: float | None  # None where the trace does not show them
    after: int
    cost_us: float
    blocks: bool
    gap_us: float = 0.0  # from ready to start


@dataclass(frozen=True)
class StepProfile:
    """One whole step of one rank. `first_host_us` is when the host's last wait or launch before the step was, from its start.

    `launch_lag_us` is from the launch of a bucket's last gradient to that of its all-reduce, `start_gap_us` from ready to start,
    `turn_us` from the end of an all-reduce to the start of one that waited for it.
    """

    rank: int | None
    step: int | None
    step_us: float
    works: Works
    gradients: Gradients
    buckets: tuple[MeasuredBucket, ...]
    others: tuple[OtherCollective, ...]
    first_host_us: float
    bucket_ends: tuple[int, ...]  # the last gradient of each measured bucket
    launch_lag_us: float
    start_gap_us: float
    turn_us: float
    exposed_us: float
    servers: int  # collectives in flight at once: 1 stream of NCCL, 2 workers of gloo
    slowdown: float = SHARES_THE_LINK  # of each of two in flight, with which the buckets' costs were computed

    @property
    def on_device(self) -> bool:
        return bool(np.isfinite(self.first_host_us))


TYPICAL = 3  # profiles that a prediction is the mean of


def typical(profiles: Sequence[StepProfile]) -> tuple[StepProfile, ...]:
    """The profiles whose steps are nearest to the median."""
    middle = float(np.median([one.step_us for one in profiles]))
    return tuple(sorted(profiles, key=lambda one: abs(one.step_us - middle))[:TYPICAL])


Stretch = tuple[float, float, float, float]
"""hh, dh, hd, dd: host' = max(host + hh, device + dh), device' = max(host + hd, device + dd)."""

NEVER = float("-inf")
NO_WORK: Stretch = (0.0, NEVER, NEVER, 0.0)


def joined(first: Stretch, second: Stretch) -> Stretch:
    """Both in a row.

    >>> joined((1.0, NEVER, 3.0, 2.0), (1.0, NEVER, 3.0, 2.0))  # host 1 + 1; device the later of 1 + 3, 3 + 2 and 2 + 2
    (2.0, -inf, 5.0, 4.0)
    """
    hh, dh, hd, dd = first
    host_host, device_host, host_device, device_device = second
    return (
        max(hh + host_host, hd + device_host),
        max(dh + host_host, dd + device_host),
        max(hh + host_device, hd + device_device),
        max(dh + host_device, dd + device_device),
    )


def stretches(works: Works, device_us: Floats, host_scale: float = 1.0) -> list[Stretch]:
    """Each work as a stretch, with these times on the device; the host's own time is scaled."""
    columns = (
        works.host_us * host_scale,
        works.launch_gap_us + device_us,  # from the launch to the end
        works.order_gap_us + device_us,  # from the end of the work before
        np.where(np.isnan(works.sync_us), NEVER, works.sync_us),
    )
    return [
        (max(host, host + launched + resumes), ordered + resumes, host + launched, ordered)
        for host, launched, ordered, resumes in zip(*(column.tolist() for column in columns), strict=True)
    ]


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
    totals = np.cumsum(gradients.bytes)[np.array(ends, dtype=int)]
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
        f"{len(measured)} of {listed(measured)}"
    )
