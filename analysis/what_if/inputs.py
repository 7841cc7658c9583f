"""From a scenario to what a replay runs under (buckets, costs, lateness, compute), or the reason
why that is not known.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dpscope.analysis.costs.cost import Cost, Place
from dpscope.analysis.costs.costs import Costs
from dpscope.analysis.stats.missing import Missing
from dpscope.analysis.stats.samples import Floats
from dpscope.analysis.what_if.replay import Conditions, Prepared, Scale, between_buckets
from dpscope.analysis.what_if.scenario import Base, Scenario, Setting
from dpscope.analysis.what_if.step_profile import (
    HOOK_FACTORS,
    INTERPOLATED,
    Bucketing,
    OtherCollective,
    StepProfile,
    bucket_bytes,
    bucket_ends,
)
from dpscope.profiling.records.finding import counted

BATCH_REACH = 2.0  # times the measured batches up to which compute is extrapolated
# times by which a run's collectives may differ from their calibration, to be carried on
_MOST_CARRIED = 3.0


class Inputs(NamedTuple):
    """What a replay runs under, and what its costs rest on."""

    prepared: Prepared
    conditions: Conditions
    below: float  # half a 90% band of the costs, in logarithms, towards cheaper
    above: float  # and towards dearer
    basis: tuple[str, ...]


def place_of(base: Base, scenario: Scenario) -> Place:
    """Full nodes: of as many devices as stated, else of as many as the base has on one, if it spans
    several.
    """
    devices = scenario.devices or base.devices
    per_node = scenario.per_node or (base.per_node if base.place.nodes > 1 else devices)
    return Place(devices, min(per_node, devices))


def setting_of(base: Base, scenario: Scenario) -> Setting:
    """Everything that the step runs under; raises Missing for micro-batches that cannot be made
    from the base's step.
    """
    accumulate = scenario.accumulate or base.accumulate
    if accumulate % base.accumulate:
        raise Missing(
            f"the base's step is {base.accumulate} micro-batches, which its trace does not separate: give --accumulate "
            f"{base.accumulate} or a multiple of it, or take a cell without accumulation as the base"
        )
    micro_batch = base.setting.micro_batch
    if scenario.batch_size is not None:
        if base.batch_size is None:
            raise Missing("the base's batch is not known: give --base-batch-size")
        micro_batch, left = divmod(scenario.batch_size, accumulate)
        if left:
            samples = counted(scenario.batch_size, "sample")
            raise Missing(
                f"{samples} cannot be cut into {accumulate} equal micro-batches: give a multiple of {accumulate}"
            )
    cap_mib = base.bucketing.cap_mib
    if scenario.bucket_mb is not None:
        cap_mib = None if isinstance(scenario.bucket_mb, str) else scenario.bucket_mb
    overlap = base.bucketing.overlap if scenario.overlap is None else scenario.overlap
    return Setting(
        place=place_of(base, scenario),
        micro_batch=micro_batch,
        bucketing=Bucketing(cap_mib, overlap),
        hook=scenario.hook or base.hook,
        accumulate=accumulate,
        links=scenario.links,
        on_time=scenario.on_time,
    )


def inputs_of(base: Base, profile: StepProfile, setting: Setting, costs: Costs) -> Inputs:
    """What to replay a profile under; raises Missing."""
    buckets = _buckets(base, profile, setting)
    each = _bucket_costs(base, profile, setting, costs, buckets.sizes)
    others = [
        (operation, _other_us(base, operation, setting, costs)) for operation in profile.others
    ]
    conditions = Conditions(
        bucket_ends=buckets.ends,
        latency_us=tuple(cost.latency_us for cost in each),
        transfer_us=tuple(cost.transfer_us for cost in each),
        late_us=_late_us(base, buckets.late_us, setting.place),
        lag_us=buckets.lag_us,
        other_us=tuple(operation.cost_us if us is None else us for operation, us in others),
        passes=setting.accumulate // base.accumulate,
        gamma=base.contention.gamma,
    )
    total = max(sum(cost.total_us for cost in each), 1e-9)
    return Inputs(
        prepared=base.prepared(profile, scale_of(base, setting)),
        conditions=conditions,
        below=sum(cost.below * cost.total_us for cost in each) / total,
        above=sum(cost.above * cost.total_us for cost in each) / total,
        basis=(*dict.fromkeys(cost.words for cost in each), *_as_measured(others, setting.place)),
    )


def _as_measured(others: Sequence[tuple[OtherCollective, float | None]], place: Place) -> list[str]:
    """The basis of collectives whose cost in the scenario is not known."""
    kinds = sorted({operation.kind for operation, us in others if us is None})
    if not kinds or place.devices == 1:
        return []
    return [f"{' and '.join(kinds)} as measured: what they cost there is not known"]


def _bucket_costs(
    base: Base, profile: StepProfile, setting: Setting, costs: Costs, sizes: Sequence[float]
) -> list[Cost]:
    """Of an all-reduce of each size; on the measured links as the run's own collectives have it."""
    place, links = setting.place, setting.links
    each = [costs.cost("all_reduce", size, place, links) for size in sizes]
    if links.replace_any(place):
        return each
    return _as_in_the_run(base, profile, place, sizes, each, costs)


class _Buckets(NamedTuple):
    """The last gradient of each, the bytes it sends, and times that lie between those of the
    measured buckets.
    """

    ends: tuple[int, ...]
    sizes: list[float]
    lag_us: tuple[float, ...]
    late_us: Floats


def _buckets(base: Base, profile: StepProfile, setting: Setting) -> _Buckets:
    """The base's own buckets are taken as they were measured."""
    hook, bucketing = setting.hook, setting.bucketing
    if hook not in HOOK_FACTORS:
        raise Missing(
            f"the hook {hook} is not modelled: measure it (dpscope run --comm-hook {hook})"
        )

    def cut() -> _Buckets:
        gradients = profile.gradients
        interpolated = gradients.known == INTERPOLATED  # between what the base's hook let through
        model = (
            gradients.bytes / HOOK_FACTORS.get(base.hook, 1.0) if interpolated else gradients.bytes
        )
        ends = profile.bucket_ends
        if bucketing != base.bucketing:
            ends = tuple(bucket_ends(model.tolist(), bucketing))
        sent = HOOK_FACTORS[hook] * (model.sum() / gradients.total_bytes)
        lag_us = between_buckets(profile, ends, [bucket.lag_us for bucket in profile.buckets])
        return _Buckets(
            ends=ends,
            sizes=[size * sent for size in bucket_bytes(gradients, ends)],
            lag_us=tuple(lag_us.tolist()),
            late_us=between_buckets(profile, ends, [bucket.late_us for bucket in profile.buckets]),
        )

    return base.once((id(profile), bucketing, hook), cut)


def _as_in_the_run(
    base: Base,
    profile: StepProfile,
    place: Place,
    sizes: Sequence[float],
    modelled: Sequence[Cost],
    costs: Costs,
) -> list[Cost]:
    """Costs on the links that were measured: the base's own buckets as they were measured, others
    in proportion to these.

    What the base's collectives took over what the same source gives for them is carried on: common
    errors cancel.
    """
    times = [bucket.cost_us for bucket in profile.buckets]
    measured = [bucket.bytes for bucket in profile.buckets]
    same_buckets = len(sizes) == len(measured) and np.allclose(sizes, measured, rtol=1e-6)
    if same_buckets and place == base.place:
        return [cost.measured_as(time) for time, cost in zip(times, modelled, strict=True)]
    try:
        model_us = sum(costs.cost("all_reduce", size, base.place).total_us for size in measured)
    except Missing:
        model_us = 0.0
    ratio = sum(times) / model_us if model_us > 0 else 1.0
    factor = ratio if 1 / _MOST_CARRIED <= ratio <= _MOST_CARRIED else 1.0
    return [cost.times(factor) for cost in modelled]


def _late_us(base: Base, late_us: Floats, place: Place) -> tuple[float, ...]:
    """How much later than this rank the last one is at each bucket."""
    if place.devices == 1:
        return (0.0,) * len(late_us)
    later_us = base.lateness.latest_us(place.devices) - base.lateness.latest_us(base.devices)
    return tuple(np.maximum(0.0, late_us + later_us).tolist())


def _other_us(
    base: Base, operation: OtherCollective, setting: Setting, costs: Costs
) -> float | None:
    """A broadcast of buffers, for example: as modelled at the new place over as modelled at the
    old; None if unknown.
    """
    if setting.place.devices == 1:
        return 0.0
    if operation.bytes is None:
        return None
    try:
        now_us = costs.cost(operation.kind, operation.bytes, setting.place, setting.links).total_us
        before_us = costs.cost(operation.kind, operation.bytes, base.place).total_us
    except Missing:
        return None
    return operation.cost_us * now_us / before_us if before_us > 0 else None


def scale_of(base: Base, setting: Setting) -> Scale:
    """How the works change with the batch; raises Missing."""
    wanted, measured = setting.micro_batch, base.setting.micro_batch
    if wanted is None or measured is None or wanted == measured:
        return base.traced
    return replace(base.traced, by_samples=_samples_factor(base, wanted, measured))


def _samples_factor(base: Base, wanted: int, measured: int) -> float:
    """How many times as long the works take that samples make longer, from `measured` to `wanted`
    samples a pass.

    By t_1 at both, less what no batch changes (the optimizer); by the samples if fewer than two
    batches of one device are known.
    """
    before_us = _single_us(base, measured)
    reached, basis = (
        ([measured], "the base was")
        if before_us is None
        else (sorted(base.single_us), "one device was")
    )
    if not reached[0] / BATCH_REACH <= wanted <= reached[-1] * BATCH_REACH:
        raise Missing(
            f"a forward pass of {counted(wanted, 'sample')} is too far from what {basis} measured at "
            f"({', '.join(map(str, reached))}): {BATCH_REACH:g} times beyond at most"
        )
    if before_us is None:
        return wanted / measured
    # such as the optimizer
    fixed = [profile.works.busy_us[~profile.works.by_samples].sum() for profile in base.profiles]
    fixed_us, after_us = base.traced.busy * float(np.mean(fixed)), _single_us(base, wanted)
    if after_us is None or min(after_us, before_us) <= fixed_us:
        raise Missing(
            f"one device's steps at {measured} and {counted(wanted, 'sample')} a pass are not longer than what no batch "
            f"changes, {fixed_us / 1e3:.3g} ms: what a sample costs is not known"
        )
    return (after_us - fixed_us) / (before_us - fixed_us)


def _single_us(base: Base, batch: int) -> float | None:
    """t_1, linear between measured batches and, by the nearest two, up to BATCH_REACH beyond; None
    where it is not known.
    """
    batches = sorted(base.single_us)
    if len(batches) < 2 or not batches[0] / BATCH_REACH <= batch <= batches[-1] * BATCH_REACH:
        return None
    steps_us = [base.single_us[size] for size in batches]
    if batches[0] <= batch <= batches[-1]:
        return float(np.interp(batch, batches, steps_us))
    pair = slice(0, 2) if batch < batches[0] else slice(-2, None)
    value = float(np.polyval(np.polyfit(batches[pair], steps_us[pair], 1), batch))
    return value if value > 0 else None
