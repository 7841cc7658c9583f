"""How much longer each of two collectives in flight takes than alone, as a job's own transfers tell; what each costs alone by it.

One collective need not fill its link: over a long way it moves so many bytes a round trip, and a second one beside it then takes
nothing from it. Over a short way both share every byte.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from dpscope.analysis.stats.arrays import Floats
from dpscope.analysis.what_if.profiles.buckets import shared_as_replayed
from dpscope.analysis.what_if.replay.step_profile import SHARES_THE_LINK, StepProfile

_TRIED = tuple(round(1.0 + step / 20, 2) for step in range(21))
_OUTSIDE = (
    1.35  # half the 90% quantile of chi-squared with one degree of freedom: log likelihoods that far apart differ
)
_PROFILES = 16  # that are enough to tell


def at_slowdown(profile: StepProfile, slowdown: float) -> StepProfile:
    """The profile with its buckets' costs alone, if two in flight take so many times as long."""
    if profile.servers == 1:
        return profile
    buckets = shared_as_replayed(list(profile.buckets), profile.start_gap_us, profile.servers, slowdown)
    return replace(profile, buckets=tuple(buckets), slowdown=slowdown)


def slowdown_of(profiles: Sequence[StepProfile]) -> tuple[float, float, float] | None:
    """The factor at which buckets of one size cost alike alone, however long others ran beside them, and its 90% interval.

    Of all factors from 1 (none slows another) to 2 (they share every byte) the one with the least mean absolute deviation, in
    logarithms, from a line through the sizes. None where the link shared is as likely, or nothing overlaps.
    """
    known = [one for one in profiles if one.servers > 1 and buckets_overlap(one)]
    chosen = known[:: max(1, -(-len(known) // _PROFILES))]
    if not chosen:
        return None
    off = np.array([_unlike([at_slowdown(one, tried) for one in chosen]) for tried in _TRIED])
    ranks = len({one.rank for one in chosen})  # which saw the same collectives
    less_likely = sum(len(one.buckets) for one in chosen) / ranks * np.log(off / off.min())
    as_likely = np.array(_TRIED)[less_likely <= _OUTSIDE]
    if SHARES_THE_LINK in as_likely:
        return None
    return _TRIED[int(off.argmin())], float(as_likely.min()), float(as_likely.max())


def buckets_overlap(profile: StepProfile) -> bool:
    """Whether a bucket started before the end of the one before."""
    return any(later.start_us < earlier.end_us for earlier, later in pairwise(profile.buckets))


def _unlike(profiles: Sequence[StepProfile]) -> float:
    """Mean absolute deviation of the buckets' costs from a line through their sizes, in logarithms."""
    rows = [one for profile in profiles for one in profile.buckets]
    sizes = np.array([one.bytes for one in rows])
    costs = np.maximum(np.array([one.cost_us for one in rows]), 1.0)
    return max(1e-6, float(np.abs(np.log(costs / _by_size(sizes, costs))).mean()))


def _by_size(sizes: Floats, costs: Floats) -> Floats:
    """A line, nothing negative in it, through the median cost of every size."""
    from scipy.optimize import nnls

    different = np.unique(sizes)
    medians = np.array([np.median(costs[sizes == one]) for one in different])
    columns = np.stack((np.ones(len(different)), different / different.max()), axis=1)
    (start, slope), _ = nnls(columns / medians[:, None], np.ones(len(different)))
    return np.asarray(start + slope * sizes / different.max())
