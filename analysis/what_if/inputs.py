"""From a scenario to what a replay runs under (buckets, costs, lateness, compute), or the reason
why that is not known.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

import numpy as np

from dpscope.analysis.costs.calibration_fit import noise_message, noisy_fits
from dpscope.analysis.costs.cost import Basis, Cost, Place
from dpscope.analysis.costs.costs import Costs
from dpscope.analysis.stats.missing import Missing
from dpscope.analysis.stats.samples import Floats
from dpscope.analysis.what_if.replay import Conditions, Prepared, Scale, between_buckets
from dpscope.analysis.what_if.scenario import Base, Scenario, Setting
from dpscope.analysis.what_if.step_profile import (
    HOOK_FACTORS,
    INTERPOLATED,
    Bucketing,
    MeasuredBucket,
    OtherCollective,
    StepProfile,
    bucket_bytes,
    bucket_ends,
)
from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run_codes import RunCode

BATCH_REACH = 2.0  # times the measured batches up to which compute is extrapolated


class Inputs(NamedTuple):
    """What a replay runs under, and what its costs rest on."""

    prepared: Prepared
    conditions: Conditions
    below: float  # half a 90% band of the costs, in logarithms, towards cheaper
    above: float  # and towards dearer
    basis: tuple[str, ...]
    # what the run's all-reduces took over their costs on its own devices, where that is carried on
    contradiction: float
    noise: tuple[str, ...]  # of the calibration that costs rest on


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
    bucketing = stated_bucketing(base, scenario)
    if _cuts_alike(base, bucketing):
        bucketing = base.bucketing
    return Setting(
        place=place_of(base, scenario),
        micro_batch=micro_batch,
        bucketing=bucketing,
        hook=scenario.hook or base.hook,
        accumulate=accumulate,
        links=scenario.links,
        on_time=scenario.on_time,
    )


def stated_bucketing(base: Base, scenario: Scenario) -> Bucketing:
    """The scenario's own, with the base's where it states none."""
    cap_mib = base.bucketing.cap_mib
    if scenario.bucket_mb is not None:
        cap_mib = None if isinstance(scenario.bucket_mb, str) else scenario.bucket_mb
    overlap = base.bucketing.overlap if scenario.overlap is None else scenario.overlap
    return Bucketing(cap_mib, overlap)


def _cuts_alike(base: Base, bucketing: Bucketing) -> bool:
    """Whether it makes the base's own buckets, so that nothing changes."""
    for profile in base.profiles:
        sizes_bytes = _model_bytes(base, profile).tolist()
        ends = bucket_ends(sizes_bytes, bucketing)
        if tuple(ends) != profile.bucket_ends:
            return False
    return True


def _model_bytes(base: Base, profile: StepProfile) -> Floats:
    """Of each gradient, as DDP cuts them into buckets."""
    gradients = profile.gradients
    if gradients.known == INTERPOLATED:  # between what the base's hook let through
        return gradients.bytes / HOOK_FACTORS.get(base.hook, 1.0)
    return gradients.bytes


def inputs_of(base: Base, profile: StepProfile, setting: Setting, costs: Costs) -> Inputs:
    """What to replay a profile under; raises Missing."""
    place = setting.place
    buckets = _buckets(base, profile, setting)
    each, contradiction = _bucket_costs(base, profile, setting, costs, buckets)
    latency_us = [cost.latency_us for cost in each]
    transfer_us = [cost.transfer_us for cost in each]

    other_us = []
    as_measured = set()
    for operation in profile.others:
        cost_us = _other_us(base, operation, setting, costs)
        if cost_us is None:
            as_measured.add(operation.kind)
            cost_us = operation.cost_us
        other_us.append(cost_us)

    conditions = Conditions(
        bucket_ends=buckets.ends,
        latency_us=tuple(latency_us),
        transfer_us=tuple(transfer_us),
        late_us=_late_us(base, buckets.late_us, place),
        lag_us=buckets.lag_us,
        other_us=tuple(other_us),
        passes=setting.accumulate // base.accumulate,
        gamma=base.contention.gamma,
    )
    basis = list(dict.fromkeys(cost.words for cost in each))
    if as_measured:
        kinds = " and ".join(sorted(as_measured))
        basis.append(f"{kinds} as measured: what they cost there is not known")
    total_us = max(sum(latency_us) + sum(transfer_us), 1e-9)
    as_measured_alone = all(cost.low_us == cost.high_us for cost in each)
    below = sum(cost.below * cost.total_us for cost in each) / total_us
    above = sum(cost.above * cost.total_us for cost in each) / total_us
    return Inputs(
        prepared=base.prepared(profile, scale_of(base, setting)),
        conditions=conditions,
        below=below,
        above=above,
        basis=tuple(basis),
        contradiction=contradiction,
        noise=() if as_measured_alone else _noise(costs.calibration),
    )


def noise_findings(calibration: Calibration | None) -> list[Finding]:
    """That fits of the calibration do not predict its own sizes."""
    if calibration is None:
        return []
    noisy = [fit for fit in noisy_fits(calibration) if fit.collective == "all_reduce"]
    if not noisy:
        return []
    return [RunCode.CALIBRATION_NOISY.finding(noise_message(noisy))]


def _noise(calibration: Calibration | None) -> tuple[str, ...]:
    found = noise_findings(calibration)
    return tuple(f"NOISY FIT: {finding.message}" for finding in found)


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
    hook = setting.hook
    bucketing = setting.bucketing
    if hook not in HOOK_FACTORS:
        raise Missing(
            f"the hook {hook} is not modelled: measure it (dpscope run --comm-hook {hook})"
        )
    key = (id(profile), bucketing, hook)
    return base.once(key, lambda: _cut(base, profile, bucketing, HOOK_FACTORS[hook]))


def _cut(base: Base, profile: StepProfile, bucketing: Bucketing, factor: float) -> _Buckets:
    """The gradients in buckets; `factor` is the hook's, of the bytes."""
    gradients = profile.gradients
    model_bytes = _model_bytes(base, profile)
    ends = profile.bucket_ends
    if bucketing != base.bucketing:
        ends = tuple(bucket_ends(model_bytes.tolist(), bucketing))
    sent = factor * (model_bytes.sum() / gradients.total_bytes)
    lags_us = [bucket.lag_us for bucket in profile.buckets]
    lates_us = [bucket.late_us for bucket in profile.buckets]
    return _Buckets(
        ends=ends,
        sizes=[size * sent for size in bucket_bytes(gradients, ends)],
        lag_us=tuple(between_buckets(profile, ends, lags_us).tolist()),
        late_us=between_buckets(profile, ends, lates_us),
    )


def _bucket_costs(
    base: Base, profile: StepProfile, setting: Setting, costs: Costs, buckets: _Buckets
) -> tuple[list[Cost], float]:
    """Of an all-reduce of each bucket, and what the base's own took over their costs.

    They take as many times as long as their source gives as the base's own did: errors that both
    have cancel. What contradicts the run's costs is one number for all scenarios, whichever source
    theirs have. The base's own buckets on its devices are held to what was measured of them.
    """
    place = setting.place
    links = setting.links
    if place.devices == 1:
        return [costs.cost("all_reduce", size, place) for size in buckets.sizes], 1.0
    modelled = [costs.cost("all_reduce", size, place, links) for size in buckets.sizes]
    carried = _carried(base, profile, costs, modelled[0].basis)
    contradiction = _measured_over(profile, lambda size: costs.cost("all_reduce", size, base.place))
    # why the run took longer than modelled is not known, so not how much longer others take
    disagreement = abs(math.log(contradiction))
    each = [cost.times(carried).widened(disagreement) for cost in modelled]
    on_measured_links = place == base.place and not links.replace_any(place)
    if on_measured_links and buckets.ends == profile.bucket_ends:
        pairs = zip(each, buckets.sizes, profile.buckets, strict=True)
        return [_by_measured(cost, size, bucket) for cost, size, bucket in pairs], 1.0
    return each, contradiction


def _by_measured(cost: Cost, size: float, bucket: MeasuredBucket) -> Cost:
    """At most by its bytes from what was measured at another size, and at least that where it is
    larger: latency alone and bandwidth alone are the ends."""
    by_latency_us = bucket.cost_us
    by_bytes_us = bucket.cost_us * size / bucket.bytes
    least_us = min(by_latency_us, by_bytes_us)
    most_us = max(by_latency_us, by_bytes_us)
    return cost.between(least_us, most_us)


def _carried(base: Base, profile: StepProfile, costs: Costs, basis: Basis) -> float:
    """What the profile's all-reduces took over what the source of costs of this basis gives."""
    carried = _measured_over(
        profile, lambda size: costs.of_measured("all_reduce", size, base.place, basis)
    )
    if basis == "specification":  # the link cannot be faster
        return max(1.0, carried)
    return carried


def _measured_over(profile: StepProfile, model: Callable[[float], Cost]) -> float:
    """What the profile's all-reduces took over their modelled costs by size; 1 where these are not
    known.
    """
    try:
        model_us = sum(model(bucket.bytes).total_us for bucket in profile.buckets)
    except Missing:
        return 1.0
    measured_us = sum(bucket.cost_us for bucket in profile.buckets)
    return measured_us / model_us if model_us > 0 else 1.0


def _late_us(base: Base, late_us: Floats, place: Place) -> tuple[float, ...]:
    """How much later than this rank the last one is at each bucket."""
    if place.devices == 1:
        return (0.0,) * len(late_us)
    now_us = base.lateness.latest_us(base.devices)
    then_us = base.lateness.latest_us(place.devices)
    later_us = late_us + (then_us - now_us)
    return tuple(np.maximum(0.0, later_us).tolist())


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
        now = costs.cost(operation.kind, operation.bytes, setting.place, setting.links)
        before = costs.of_measured(operation.kind, operation.bytes, base.place, now.basis)
    except Missing:
        return None
    return operation.cost_us * now.total_us / before.total_us if before.total_us > 0 else None


def scale_of(base: Base, setting: Setting) -> Scale:
    """How the works change with the batch; raises Missing."""
    wanted = setting.micro_batch
    measured = base.setting.micro_batch
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
    if before_us is None:
        _check_reach(wanted, [measured], "the base was")
        return wanted / measured
    _check_reach(wanted, sorted(base.single_us), "one device was")
    fixed_us = base.traced.busy * fmean(map(_fixed_us, base.profiles))
    after_us = _single_us(base, wanted)
    if after_us is None or min(after_us, before_us) <= fixed_us:
        samples = counted(wanted, "sample")
        fixed = f"{fixed_us / 1e3:.3g} ms"
        raise Missing(
            f"one device's steps at {measured} and {samples} a pass are not longer than what no batch changes, {fixed}: "
            "what a sample costs is not known"
        )
    return (after_us - fixed_us) / (before_us - fixed_us)


def _check_reach(wanted: int, reached: Sequence[int], basis: str) -> None:
    """Raise Missing for a batch too far from the measured ones."""
    least = reached[0] / BATCH_REACH
    most = reached[-1] * BATCH_REACH
    if least <= wanted <= most:
        return
    samples = counted(wanted, "sample")
    batches = ", ".join(map(str, reached))
    raise Missing(
        f"a forward pass of {samples} is too far from what {basis} measured at ({batches}): "
        f"{BATCH_REACH:g} times beyond at most"
    )


def batch_basis(base: Base, wanted: int) -> str:
    """What compute with another number of samples a pass rests on."""
    batches = sorted(base.single_us)
    samples = counted(wanted, "sample")
    if _single_us(base, wanted) is None:
        return f"compute at {samples} by their number, as one device was measured at fewer than two batches near it"
    if wanted in base.single_us:
        return f"compute at {samples} by one device's measured step"
    nearest = sorted(batches, key=lambda batch: abs(batch - wanted))[:2]
    measured = " and ".join(map(str, sorted(nearest)))
    line = f"by a line through {measured}"
    if wanted < batches[0]:
        line += ", but no less than in proportion"
    return f"compute at {samples}, at which one device was not measured, {line}"


def _fixed_us(profile: StepProfile) -> float:
    """What no batch changes, such as the optimizer."""
    works = profile.works
    return float(works.busy_us[~works.by_samples].sum())


def _single_us(base: Base, batch: int) -> float | None:
    """t_1, linear between measured batches and, by the nearest two, up to BATCH_REACH beyond; None
    where it is not known.

    Fewer samples take no less than their share of the smallest batch: what they do not take would
    be a cost below 0 of a step without samples.
    """
    batches = sorted(base.single_us)
    if len(batches) < 2:
        return None
    smallest = batches[0]
    largest = batches[-1]
    steps_us = [base.single_us[size] for size in batches]
    if smallest <= batch <= largest:
        return float(np.interp(batch, batches, steps_us))
    if not smallest / BATCH_REACH <= batch <= largest * BATCH_REACH:
        return None
    nearest = slice(0, 2) if batch < smallest else slice(-2, None)
    line = np.polyfit(batches[nearest], steps_us[nearest], 1)
    by_line_us = float(np.polyval(line, batch))
    by_share_us = steps_us[0] * batch / smallest
    return max(by_line_us, by_share_us)
