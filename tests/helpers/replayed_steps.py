"""Steps made by hand for replays, and a base made of one."""

from dataclasses import replace

import numpy as np

from dpscope.analysis.costs.cost import Place
from dpscope.analysis.costs.costs import Costs
from dpscope.analysis.what_if.lateness import Lateness
from dpscope.analysis.what_if.replay import Conditions
from dpscope.analysis.what_if.scenario import Base, Contention
from dpscope.analysis.what_if.step_profile import (
    NEVER,
    Bucketing,
    Gradients,
    MeasuredBucket,
    StepProfile,
    Works,
)


def works(
    device_us: list[float], host_us: list[float] | None = None, **columns: list[float]
) -> Works:
    """Kernels with nothing between them, each launched `host_us` after the one before; without, the
    host never holds them up.
    """
    count = len(device_us)
    return Works(
        busy_us=np.array(device_us, dtype=float),
        gap_us=np.array(columns.get("gap_us", [0.0] * count), dtype=float),
        launched_us=np.full(count, NEVER) if host_us is None else np.cumsum(host_us),
        host_waits=np.array(columns.get("host_waits", [0.0] * count), dtype=bool),
        needs=np.array(columns.get("needs", [0.0] * (count - 1) + [1.0]), dtype=float),
        by_samples=np.arange(count) < count - 1,
    )


def profile(table: Works, after: list[int], ends: tuple[int, ...], **more: object) -> StepProfile:
    """Gradients of 1 MB each."""
    gradients = Gradients(np.full(len(after), 1e6), np.array(after, dtype=np.int64), "recorded")
    made = StepProfile(
        rank=0, step=1, step_us=0.0, works=table, gradients=gradients, buckets=(), others=(), bucket_ends=ends,
        start_gap_us=0.0, turn_us=0.0, servers=1,
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def under(ends: tuple[int, ...], costs: list[float], **more: object) -> Conditions:
    count = len(ends)
    made = Conditions(ends, (0.0,) * count, tuple(costs), (0.0,) * count, (0.0,) * count, ())
    return made._replace(**more)  # type: ignore[arg-type]


# Forward 100, two layers' backward 50 each (a gradient after each), optimizer 10.
SIMPLE = profile(works([100.0, 50.0, 50.0, 10.0]), after=[2, 3], ends=(0, 1))

# Two gradients of 1 MB, ready at 150 and 200 us, of a step of 230; a cap of 0.5 MiB puts each into
# a separate bucket.
CAP = Bucketing(cap_mib=0.5)
BUCKETS = tuple(
    MeasuredBucket(1e6, ready, ready, ready + 20, 0.0, 20.0) for ready in (150.0, 200.0)
)
PROFILE = replace(SIMPLE, buckets=BUCKETS, step_us=230.0)
STILL = Lateness((0.0, 0.0), (0.0,) * 8)  # two ranks that are never late
ALONE = Contention(high=0.0)  # nothing slows computing
BASE = Base(
    "made",
    (PROFILE,),
    2,
    2,
    230.0,
    0.01,
    2,
    20.0,
    4,
    {4: 210.0},
    CAP,
    lateness=STILL,
    contention=ALONE,
)
COSTS = Costs(place=Place(2, 2), transfers={("all_reduce", 1e6): 20.0})
