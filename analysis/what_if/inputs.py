"""From a scenario to what a replay runs under (buckets, costs, lateness, compute), or why that is not known; and the 90% band.

The band joins, below and above: the repeats of the base; the method's error on other cells; the costs of collectives; two in
flight and computing next to a collective, where they are assumed or measured with an interval; the distance in devices; another
GPU, another batch, unknown lateness. They are independent, so their squares add. A cost that a specification bounds can be dearer
and no cheaper.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from dpscope.analysis.what_if.collective_costs import Cost, Costs, NotKnown, Place
from dpscope.analysis.what_if.prediction import distance_error
from dpscope.analysis.what_if.replay import Compute, Conditions, Prepared, Replayed, late_us, replayed_from
from dpscope.analysis.what_if.scenario import DEFAULT_BUCKET, Base, Lateness, Scenario
from dpscope.analysis.what_if.step_model import BATCH_REACH, SingleDevice
from dpscope.analysis.what_if.step_profile import (
    HOOK_FACTORS,
    INTERPOLATED,
    SHARES_THE_LINK,
    Bucketing,
    StepProfile,
    bucket_bytes,
    bucket_ends,
)
from dpscope.profiling.records.finding import counted

_MOST_CARRIED = 3.0  # times by which a run's collectives may differ from their calibration, to be carried on

_Stated = TypeVar("_Stated")


@dataclass(frozen=True)
class Inputs:
    """What a replay runs under, and what its costs rest on."""

    prepared: Prepared
    conditions: Conditions
    below: float  # half a 90% band of the costs, in logarithms, towards cheaper
    above: float  # and towards dearer
    slowdowns: tuple[float, float]  # what `conditions.slowdown` may be
    basis: tuple[str, ...]


def place_of(base: Base, scenario: Scenario) -> Place:
    """Full nodes: of as many devices as stated, else of as many as the base has on one, if it spans several."""
    devices = scenario.devices or base.devices
    per_node = scenario.per_node or (base.per_node if base.place.nodes > 1 else devices)
    return Place(devices, min(per_node, devices))


def changed(base: Base, scenario: Scenario) -> Scenario:
    """The scenario without the options that repeat the base's values."""
    if place_of(base, scenario) == base.place:
        scenario = replace(scenario, devices=None, per_node=None)
    default_mib = DEFAULT_BUCKET if base.bucketing.cap_mib is None else base.bucketing.cap_mib
    scenario = replace(
        scenario,
        bucket_mb=_unless(default_mib, scenario.bucket_mb),
        overlap=_unless(base.bucketing.overlap, scenario.overlap),
        hook=_unless(base.hook, scenario.hook),
        accumulate=_unless(base.accumulate, scenario.accumulate),
    )
    if scenario.accumulate is None:  # else the batch is cut into other micro-batches
        scenario = replace(scenario, batch_size=_unless(base.batch_size, scenario.batch_size))
    return scenario


def _unless(own: _Stated, stated: _Stated | None) -> _Stated | None:
    return None if stated == own else stated


def inputs_of(base: Base, profile: StepProfile, scenario: Scenario, costs: Costs) -> Inputs:
    """What to replay a profile under; raises NotKnown."""
    place = place_of(base, scenario)
    stated_mib = None if isinstance(scenario.bucket_mb, str) else scenario.bucket_mb  # DEFAULT_BUCKET is the only word
    cap = base.bucketing.cap_mib if scenario.bucket_mb is None else stated_mib
    bucketing = Bucketing(cap, base.bucketing.overlap if scenario.overlap is None else scenario.overlap)
    hook = scenario.hook or base.hook
    if hook not in HOOK_FACTORS:
        raise NotKnown(f"the hook {hook} is not modelled: measure it (dpscope run --comm-hook {hook})")
    key = (id(profile), bucketing, hook)
    ends, sizes = base.once(key, lambda: _buckets(base, profile, bucketing, hook))
    prepared = base.prepared(profile, compute_of(base, scenario))
    known = [costs.cost("all_reduce", size, place, scenario.links) for size in sizes]
    stated = (scenario.links.inter if place.nodes > 1 else scenario.links.intra) is not None
    if not stated and (scenario.links.intra is None or place.per_node == 1):
        known = _as_in_the_run(base, profile, place, sizes, known, costs)
    others = tuple(_other_us(one.kind, one.bytes, one.cost_us, place, scenario, costs) for one in profile.others)
    kept = sorted({one.kind for one, us in zip(profile.others, others, strict=True) if us is None})
    lateness = base.lateness
    if scenario.jitter is not None:
        deviation = scenario.jitter * base.step_us
        lateness = Lateness((0.0, 0.0), (-deviation, deviation))
    later = lateness.latest_us(place.devices) - base.lateness.latest_us(base.devices)
    late = tuple(max(0.0, one + later) * scenario.lateness_factor for one in late_us(profile, ends))
    # what nothing shares, and what collectives in flight share: where it is assumed that bytes share the link, the bytes
    latency = tuple(one.latency_us * scenario.latency_factor * scenario.buckets_factor for one in known)
    transfer = tuple(one.transfer_us * scenario.transfer_factor * scenario.buckets_factor for one in known)
    slowdown, slowdowns = base.interference.slowdown, base.interference.slowdown_band
    if stated:  # by a stated rate each call alone fills the link
        slowdown, slowdowns = SHARES_THE_LINK, (SHARES_THE_LINK, SHARES_THE_LINK)
    elif base.interference.slowdown_measured:
        # A measured slowdown is of whole calls: on a long way a call waits for round trips, which queue behind the other's bytes.
        latency, transfer = (0.0,) * len(known), tuple(map(sum, zip(latency, transfer, strict=True)))
    conditions = Conditions(
        bucket_ends=ends,
        latency_us=latency,
        transfer_us=transfer,
        late_us=late if place.devices > 1 else (0.0,) * len(ends),
        other_us=tuple(one.cost_us if us is None else us for one, us in zip(profile.others, others, strict=True)),
        passes=passes_of(base, scenario),
        gamma=base.interference.gamma,
        slowdown=slowdown,
    )
    total = max(sum(one.total_us for one in known), 1e-9)
    above = sum(one.spread * one.total_us for one in known) / total
    below = sum(one.spread * one.total_us for one in known if not one.bound) / total
    basis = [one.basis for one in known]
    if kept and place.devices > 1:
        basis.append(f"{' and '.join(kept)} as measured: what they cost there is not known")
    return Inputs(prepared, conditions, below, above, slowdowns, tuple(dict.fromkeys(basis)))


def _buckets(base: Base, profile: StepProfile, bucketing: Bucketing, hook: str) -> tuple[tuple[int, ...], list[float]]:
    """Ends of buckets and the bytes they send; the base's own buckets are taken as they were measured."""
    gradients = profile.gradients
    by_base = HOOK_FACTORS.get(base.hook, 1.0)
    model = gradients.bytes / by_base if gradients.known == INTERPOLATED else gradients.bytes
    measured = bucketing == base.bucketing
    ends = profile.bucket_ends if measured else tuple(bucket_ends(model.tolist(), bucketing))
    return ends, [
        size * HOOK_FACTORS[hook] * (model.sum() / gradients.total_bytes) for size in bucket_bytes(gradients, ends)
    ]


def _as_in_the_run(
    base: Base, profile: StepProfile, place: Place, sizes: list[float], costs_found: list[Cost], costs: Costs
) -> list[Cost]:
    """Costs on the links that were measured: the base's own buckets as they were measured, others in proportion to these.

    What the base's collectives took over what the same source gives for them is carried on: common errors cancel.
    """
    times = [one.cost_us for one in profile.buckets]
    measured = [one.bytes for one in profile.buckets]
    same_buckets = len(sizes) == len(measured) and np.allclose(sizes, measured, rtol=1e-6)
    if same_buckets and place == base.place:
        pairs = zip(times, costs_found, strict=True)
        factors = [time / one.total_us if one.total_us > 0 else 1.0 for time, one in pairs]
        costs_found = [replace(one, spread=0.0) for one in costs_found]  # as measured
    else:
        try:
            model_us = sum(costs.cost("all_reduce", size, base.place).total_us for size in measured)
        except NotKnown:
            model_us = 0.0
        ratio = sum(times) / model_us if model_us > 0 else 1.0
        factors = [ratio if 1 / _MOST_CARRIED <= ratio <= _MOST_CARRIED else 1.0] * len(costs_found)
    return [
        replace(one, latency_us=one.latency_us * factor, transfer_us=one.transfer_us * factor)
        for one, factor in zip(costs_found, factors, strict=True)
    ]


def _other_us(
    kind: str, size: float | None, measured_us: float, place: Place, scenario: Scenario, costs: Costs
) -> float | None:
    """A broadcast of buffers, for example: as modelled at the new place over as modelled at the old; None if unknown."""
    if place.devices == 1 or kind in scenario.free_kinds:
        return 0.0
    if size is None:
        return None
    try:
        now = costs.cost(kind, size, place, scenario.links)
        before = costs.cost(kind, size, costs.place)
    except NotKnown:
        return None
    if before.total_us <= 0:
        return None
    then_us = now.latency_us * scenario.latency_factor + now.transfer_us * scenario.transfer_factor
    return measured_us * then_us / before.total_us


def uneven(base: Base, scenario: Scenario) -> str | None:
    """Why the requested micro-batches cannot be made from the base's step; None where they can."""
    wanted = scenario.accumulate or base.accumulate
    if wanted % base.accumulate:
        return (
            f"the base's step is {base.accumulate} micro-batches, which its trace does not separate: give --accumulate "
            f"{base.accumulate} or a multiple of it, or take a cell without accumulation as the base"
        )
    if scenario.batch_size is not None and scenario.batch_size % wanted:
        samples = counted(scenario.batch_size, "sample")
        return f"{samples} cannot be cut into {wanted} equal micro-batches: give a multiple of {wanted}"
    return None


def passes_of(base: Base, scenario: Scenario) -> int:
    """How many times all the micro-batches of the base's trace are run; see `uneven`."""
    return (scenario.accumulate or base.accumulate) // base.accumulate


def step_batch(base: Base, scenario: Scenario) -> int | None:
    """Samples of one optimizer step per device."""
    if scenario.batch_size is not None:
        return scenario.batch_size
    if base.batch_size is None:
        return None
    return base.batch_size // base.accumulate * (scenario.accumulate or base.accumulate)


def compute_of(base: Base, scenario: Scenario) -> Compute:
    """How compute changes with the batch and the device; raises NotKnown."""
    factor = 1.0
    if scenario.batch_size is not None:
        if not base.batch_size:
            raise NotKnown("the base's batch is not known: give --base-batch-size")
        wanted = scenario.batch_size // (scenario.accumulate or base.accumulate)
        factor = _samples_factor(base, wanted, base.batch_size // base.accumulate)
    device, host = base.traced.device / scenario.faster, scenario.host_factor * base.traced.host
    return Compute(factor, device, host)


def _samples_factor(base: Base, wanted: int, measured: int) -> float:
    """How many times as long the works take that samples make longer, from `measured` to `wanted` samples a pass.

    By t_1 at both, less what no batch changes (the optimizer); by the samples if fewer than two batches of one device are known.
    """
    if wanted == measured:
        return 1.0
    batches = sorted(base.single_us)
    single = SingleDevice(np.array(batches, dtype=float), np.array([base.single_us[one] for one in batches]))
    before = single.at(measured) if len(batches) > 1 else None
    known = batches if before is not None else [measured]
    if not known[0] / BATCH_REACH <= wanted <= known[-1] * BATCH_REACH:
        basis = "one device was" if before is not None else "the base was"
        raise NotKnown(
            f"a forward pass of {counted(wanted, 'sample')} is too far from what {basis} measured at "
            f"({', '.join(map(str, known))}): {BATCH_REACH:g} times beyond at most"
        )
    if before is None:
        return wanted / measured
    fixed_us = [one.works.device_us[~one.works.by_samples].sum() for one in base.profiles]  # such as the optimizer
    after, fixed = single.at(wanted), base.traced.device * float(np.mean(fixed_us))
    if after is None or min(after, before) <= fixed:
        raise NotKnown(
            f"one device's steps at {measured} and {counted(wanted, 'sample')} a pass are not longer than what no batch "
            f"changes, {fixed / 1e3:.3g} ms: what a sample costs is not known"
        )
    return (after - fixed) / (before - fixed)


Parts = Mapping[str, tuple[float, float]]
"""By name, half a 90% band below and above the step, in logarithms."""

ASSUMED_ERROR = 0.04  # of the method where no other cell measures it: the error of cells in the live experiments
GPU_ERROR = 0.12  # of times on a faster device by its speed alone, as published for such predictors (Habitat, ATC 2021)
_ONE_BATCH = 0.10  # samples may cost otherwise where one batch alone was measured
_NO_JITTER = 0.03


def replay_parts(base: Base, profile: StepProfile, inputs: Inputs, then: Replayed, step_us: float) -> Parts:
    """What a replay is off by where its costs, the slowdown of two in flight, or gamma are at the ends of what they may be."""
    conditions = inputs.conditions

    def off(**changed: Any) -> float:
        """How much longer the step would be under changed conditions."""
        return replayed_from(inputs.prepared, replace(conditions, **changed), then.entered) - then.step_us

    def scaled(factor: float) -> dict[str, tuple[float, ...]]:
        return {
            name: tuple(factor * one for one in getattr(conditions, name)) for name in ("latency_us", "transfer_us")
        }

    now = base.replayed(profile).step_us
    shared = [one for one in inputs.slowdowns if one != conditions.slowdown and profile.servers > 1]
    gammas = [one for one in base.interference.gamma_band if one != conditions.gamma]
    found = {
        "costs": [0.0, *(off(**scaled(math.exp(by))) for by in (-inputs.below, inputs.above) if by)],
        "two in flight": [0.0, *(off(slowdown=one) for one in shared)],
        "computing next to them": [
            0.0,
            *(off(gamma=one) - (base.replayed(profile, one).step_us - now) for one in gammas),
        ],
    }
    # from how much longer (negative: shorter) the step may be to half a band below and above
    return {
        name: (-math.log(max(0.05, 1 + min(moved) / step_us)), math.log1p(max(moved) / step_us))
        for name, moved in found.items()
    }


def half_band(
    base: Base, scenario: Scenario, parts: Sequence[Parts], exposed_share: float, times: float
) -> tuple[float, float]:
    """Half the band below and above; `times` is the requested count over the largest measured one."""
    alike = scenario == Scenario()
    spread, method = base.spread, ASSUMED_ERROR
    if base.method_error is not None:  # the repeats' noise is in the errors on own cells
        spread, method = (spread, 0.0) if alike or spread > base.method_error else (0.0, base.method_error)
    distance = distance_error(times) * (0.5 + 0.5 * min(1.0, 4 * exposed_share))
    both = [spread, 0.0 if alike else method, distance]
    if scenario.faster != 1.0:
        both.append(GPU_ERROR)
    if scenario.batch_size is not None and len(base.single_us) < 2 and scenario.batch_size != base.batch_size:
        both.append(_ONE_BATCH)
    if not base.lateness.known and scenario.jitter is None and times > 1:
        both.append(_NO_JITTER)
    below, above = (math.hypot(*both, *(max(one[name][side] for one in parts) for name in parts[0])) for side in (0, 1))
    return below, above
