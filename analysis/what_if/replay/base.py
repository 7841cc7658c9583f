"""The base itself, replayed: what it was measured under, and how far the replay of that is from the measured step."""

import numpy as np

from dpscope.analysis.what_if.replay.max_plus import NEVER
from dpscope.analysis.what_if.replay.replay import Conditions, Prepared, replayed_from
from dpscope.analysis.what_if.replay.step_profile import StepProfile

MOST_OFF = 0.01  # of the step: a base that its own replay misses by more predicts nothing


def measured_conditions(profile: StepProfile) -> Conditions:
    """The profile's own buckets, costs and lateness."""
    return Conditions(
        bucket_ends=profile.bucket_ends,
        latency_us=(0.0,) * len(profile.buckets),
        transfer_us=tuple(one.cost_us for one in profile.buckets),
        late_us=tuple(one.late_us for one in profile.buckets),
        other_us=tuple(one.cost_us for one in profile.others),
        slowdown=profile.slowdown,
    )


def silent(profile: StepProfile) -> Conditions:
    """Its own buckets, every collective at no cost and no rank late."""
    none = (0.0,) * len(profile.bucket_ends)
    return Conditions(profile.bucket_ends, none, none, none, (0.0,) * len(profile.others))


def base_error(prepared: Prepared) -> float:
    """(replayed - measured) / measured of the step as it was entered."""
    profile = prepared.profile
    replayed = replayed_from(prepared, measured_conditions(profile), (profile.first_host_us, 0.0, NEVER))
    return replayed / profile.step_us - 1


def late_us(profile: StepProfile, ends: tuple[int, ...], factor: float = 1.0) -> tuple[float, ...]:
    """Lateness of the last rank at other buckets: between the measured ones by the bytes that were ready, scaled."""
    if not profile.buckets:
        return (0.0,) * len(ends)
    reach = np.cumsum(profile.gradients.bytes)
    held = reach[list(profile.bucket_ends)]
    found = np.interp(reach[list(ends)], held, [one.late_us for one in profile.buckets])
    return tuple((found * factor).tolist())
