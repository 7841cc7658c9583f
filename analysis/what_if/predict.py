"""The step of a configuration that was not measured: measured base + (replay of the scenario -
replay of the base).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from dpscope.analysis.cells.checks import unreliable_parts
from dpscope.analysis.costs.between_nodes import calibrated_link
from dpscope.analysis.costs.cost import Place
from dpscope.analysis.costs.costs import Costs
from dpscope.analysis.stats.left_out import FARTHEST, too_wide
from dpscope.analysis.stats.missing import Missing
from dpscope.analysis.text.units import show_bytes
from dpscope.analysis.what_if.band import (
    Band,
    Parts,
    band_of_change,
    method_error,
    repeats_and_method,
    replay_parts,
)
from dpscope.analysis.what_if.inputs import (
    batch_basis,
    inputs_of,
    place_of,
    setting_of,
    stated_bucketing,
)
from dpscope.analysis.what_if.lateness import on_time
from dpscope.analysis.what_if.replay import AS_IT_WAS, MOST_OFF, Replay, base_error, silent
from dpscope.analysis.what_if.scenario import AS_MEASURED, Base, Prediction, Scenario, Setting
from dpscope.analysis.what_if.step_profile import HOOK_FACTORS, StepProfile, not_reproduced
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.links import REACHED_RATE

_HOST_BOUND = 0.5  # of the step: from there on a link's effect is in the host's shadow
# a step on several devices below this share of one device's is no data-parallel training of it
_IMPOSSIBLE = 0.97
_AGREE = 1.25  # times by which a run's collectives may differ from their costs without a word
_MOST_ON_TIME = 48  # steps that are replayed without one rank's lateness
_OTHERS = frozenset({"all_to_all", "all_gather", "reduce_scatter", "send_recv", "send", "recv"})


@dataclass(frozen=True)
class _Change:
    """A scenario replayed on one of the base's profiles: what it makes of the base's step."""

    step_us: float
    exposed_us: float  # of the replay
    left_us: float  # what computing leaves of the step
    unsure: Parts
    basis: tuple[str, ...]
    contradiction: float
    noise: tuple[str, ...]  # of the calibration that costs rest on

    def as_least(self) -> "_Change":
        """Where a layout over several nodes would be shorter."""
        costs, *others = self.basis
        words = f"no shorter than on one node, whose costs are {costs}"
        return replace(self, basis=(words, *others))


def predict(base: Base, scenario: Scenario, costs: Costs) -> Prediction:
    """One configuration from a base; a refusal carries its reason. Pure: the same three give the
    same answer.
    """
    place = place_of(base, scenario)
    unanswered = Prediction(place.devices, place.nodes, scenario.batch_size)
    try:
        refusal = base.once("refusal", lambda: _base_refusal(base))
        if refusal is not None:
            raise Missing(refusal + _most_saved(base, scenario.on_time))
        setting = setting_of(base, scenario)
        unanswered = replace(unanswered, batch_size=setting.batch_size)
        _check(base, setting)
        if _measured_on_one(base, setting):
            return _one_device_measured(base, unanswered)
        changes = _changes(base, setting, costs)
        known = _joined(base, setting, costs, unanswered, changes)
        return replace(known, rests_on=(*known.rests_on, *same_buckets(base, scenario)))
    except Missing as unknown:
        return replace(unanswered, reason=str(unknown))


def _check(base: Base, setting: Setting) -> None:
    """Raise Missing where a replay would show nothing."""
    devices = setting.place.devices
    if base.devices == 1 and devices > 1:
        raise Missing(
            "the base ran on one device, so no communication was measured: choose a cell with several devices"
        )
    if devices not in (1, base.devices) and not base.lateness.known:
        raise Missing(
            "only one rank was read, so how late ranks are is not known: give every rank's trace"
        )
    if devices > FARTHEST * base.largest:
        times = f"{devices / base.largest:,.0f}x"
        nearer = counted(math.ceil(devices / FARTHEST), "device")
        raise Missing(
            f"{times} the largest measured count ({base.largest}); the limit is {FARTHEST:g}x: measure {nearer} first"
        )


def _host_bound(base: Base) -> str | None:
    """That the host bounds the base's step, so that less communication shortens it little."""
    share = _host_share(base)
    if share <= _HOST_BOUND:
        return None
    percent = 100 * share
    return (
        f"the CPU bounds this step: the GPU waits for launches in {percent:.0f}% of it, which hides what is changed on the "
        "GPU and its links: trace a larger batch, or use torch.compile"
    )


def _most_saved(base: Base, rank: int | None) -> str:
    """What traces show of a rank's lateness where no step without it is predicted."""
    if rank is None or rank not in base.wait_by_rank_us:
        return ""
    # means over all ranks, of which the late one does not wait for itself
    ranks = len({recorded.rank for recorded in base.every})
    others = ranks - 1
    saved_us = base.wait_by_rank_us[rank] * ranks / others
    saved = f"{saved_us / 1e3:.1f} ms"
    return f"; rank {rank} on time saves at most {saved} in each other rank"


def _host_share(base: Base) -> float:
    """The share of the base's step that a host without any cost would save, without
    communication.
    """

    def largest_share() -> float:
        shares = []
        for profile in base.profiles:
            prepared = base.prepared(profile, AS_IT_WAS)
            launched_us = Replay(prepared, silent(profile)).step_us
            waiting_us = launched_us - prepared.length_us
            shares.append(waiting_us / profile.step_us)
        return max(shares)

    return base.once("host share", largest_share)


def _base_refusal(base: Base) -> str | None:
    """Why nothing at all is predicted from this base."""
    if base.slowed is not None:
        unreliable = unreliable_parts(base.slowed)
        return f"{unreliable}: trace a larger batch, or choose another cell"
    off = max(map(base_error, base.profiles), key=abs)
    if abs(off) > MOST_OFF:
        percent_off = 100 * off
        percent = f"{percent_off:+.1f}%"
        return (
            f"the replay of the base is {percent} off its measured step, as its trace has something not modelled: "
            "trace other steps, or choose another cell"
        )
    foreign = " and ".join(sorted(base.kinds & _OTHERS))
    if foreign:
        return (
            f"only plain data parallelism is replayed, and this job runs {foreign}, too; dpscope analyze shows which "
            "ranks the others wait for, and how long"
        )
    if base.devices == 1:
        return None
    unclear = _bucket_refusal(base)
    if unclear is not None:
        return unclear
    alone_us = base.single_us.get(base.batch_size or 0)
    if alone_us is not None and base.step_us < _IMPOSSIBLE * alone_us:
        alone_ms = f"{alone_us / 1e3:.1f} ms"
        times = f"{base.step_us / 1e3:.1f} ms where one takes {alone_ms}"
        return (
            f"{base.devices} devices take {times} at the same batch: something else changed between these cells, or noise is "
            "larger than the change in question: measure both again"
        )
    return None


def _bucket_refusal(base: Base) -> str | None:
    """Why the base's buckets are not understood."""
    sizes = []
    for profile in base.profiles:
        sizes += [bucket.bytes for bucket in profile.buckets]
    if not sizes:
        return (
            "the trace of the base shows no all-reduce of gradients: trace a DDP step with its communication "
            "(all activities of torch.profiler)"
        )
    if any(map(math.isnan, sizes)):
        return "the trace does not show the bytes of its all-reduces: trace with record_shapes=True"
    factor = HOOK_FACTORS.get(base.hook)
    if factor is None:
        return f"the base's hook {base.hook} is not modelled: choose a cell without it as the base"
    for profile in base.profiles:
        why = not_reproduced(profile, base.bucketing, factor)
        if why is not None:
            return why
    return None


def _profiles(base: Base, rank: int | None) -> list[tuple[StepProfile, StepProfile]]:
    """Each profile as it was measured, and as it is to be replayed: the same, unless `rank` is no
    longer late.
    """
    if rank is None:
        return [(profile, profile) for profile in base.profiles]
    recorded = {profile.rank for profile in base.every}
    ranks = sorted(number for number in recorded if number is not None)
    named = ", ".join(map(str, ranks)) or "none"
    traced = f"ranks with traces: {named}"
    if ranks and rank not in ranks:
        raise Missing(f"no rank {rank} was traced; {traced}")
    if len(ranks) < 2:
        raise Missing(f"the lateness of rank {rank} needs its trace and another rank's; {traced}")

    return base.once(("on time", rank), lambda: _without_lateness(base, rank))


def _without_lateness(base: Base, rank: int) -> list[tuple[StepProfile, StepProfile]]:
    """The other ranks' profiles, each with what it is once the rank is on time."""
    others = [profile for profile in base.every if profile.rank != rank]
    spared = on_time(base.every, rank)
    pairs = list(zip(others, spared, strict=True))
    # A rank is late in some steps and not in others, so that a few typical ones would not do.
    every_nth = math.ceil(len(pairs) / _MOST_ON_TIME)
    return pairs[::every_nth]


def _changes(base: Base, setting: Setting, costs: Costs) -> list[_Change]:
    """Of each profile; raises Missing.

    More nodes than the base's one shorten no step: the latency between them may not be known.
    """
    changes = [
        _replayed(base, measured, profile, setting, costs)
        for measured, profile in _profiles(base, setting.on_time)
    ]
    place = setting.place
    measured_nodes = base.place.nodes
    if place.nodes == 1 or measured_nodes > 1:
        return changes
    one_node = Place(place.devices, place.devices)
    within = setting._replace(place=one_node, links=replace(setting.links, inter=None))
    try:
        on_one_node = _changes(base, within, costs)
    except Missing:
        return changes
    if _mean_step_us(changes) >= _mean_step_us(on_one_node):
        return changes
    return [change.as_least() for change in on_one_node]


def _mean_step_us(changes: Sequence[_Change]) -> float:
    return fmean(change.step_us for change in changes)


def _exposed_us(changes: Sequence[_Change]) -> float:
    """At most what computing leaves, as the base's own: of their means, so that a scenario without
    any effect has the base's."""
    exposed_us = fmean(change.exposed_us for change in changes)
    left_us = fmean(change.left_us for change in changes)
    return max(0.0, min(exposed_us, left_us))


def _replayed(
    base: Base, measured: StepProfile, profile: StepProfile, setting: Setting, costs: Costs
) -> _Change:
    """The setting replayed on one profile, against the replay of the measured one; raises
    Missing.
    """
    inputs = inputs_of(base, profile, setting, costs)
    then = Replay(inputs.prepared, inputs.conditions)
    now = base.replayed(measured, base.contention.gamma)
    step_us = max(base.step_us + then.step_us - now.step_us, 1.0)
    # the base's is of all ranks, and without one rank's lateness the others alone are replayed
    measured_us = base.left_us
    if measured_us is None or setting.on_time is not None:
        measured_us = now.exposed_us
    return _Change(
        step_us=step_us,
        exposed_us=measured_us + then.exposed_us - now.exposed_us,
        left_us=step_us - inputs.prepared.computing_us(inputs.conditions.passes),
        unsure=replay_parts(base, measured, inputs, then, step_us),
        basis=inputs.basis,
        contradiction=inputs.contradiction,
        noise=inputs.noise,
    )


def _joined(
    base: Base, setting: Setting, costs: Costs, unanswered: Prediction, changes: Sequence[_Change]
) -> Prediction:
    """The mean over the profiles, with its band; raises Missing where costs leave it too wide."""
    disagreement = _disagreement([change.contradiction for change in changes])
    step_us = _mean_step_us(changes)
    exposed_us = _exposed_us(changes)
    noise = changes[0].noise
    basis = [*changes[0].basis, *disagreement, *noise]
    if unanswered.devices == 1:
        alone_us, alone_basis = _one_device(base, setting, costs)
        step_us = alone_us or step_us
        exposed_us = 0.0
        basis = [alone_basis]

    unsure = [change.unsure for change in changes]
    times_largest = unanswered.devices / base.largest
    shared = band_of_change(base, setting, unsure, exposed_us / step_us, times_largest)
    whole = shared.joined(repeats_and_method(base, setting))
    if setting != base.setting:  # the base itself was measured
        _check_width(whole, setting, costs, [*disagreement, *noise])
    low_us, high_us = whole.around(step_us)
    of_change = shared.joined(method_error(base))
    shortest_us, longest_us = of_change.around(step_us)
    basis += _rests_on(base, setting, costs)
    efficiency = None
    try:
        efficiency = _efficiency(base, setting, step_us)
    except Missing as unknown:
        basis.append(f"no efficiency: {unknown}")
    return replace(
        unanswered,
        step_us=step_us,
        low_us=low_us,
        high_us=high_us,
        change_us=step_us - base.step_us,
        change_low_us=shortest_us - base.step_us,
        change_high_us=longest_us - base.step_us,
        exposed_us=exposed_us,
        efficiency=efficiency,
        rests_on=tuple(filter(None, basis)) or (f"the replay of {base.name}",),
        limit=_core_limit(base, setting.place) or _host_bound(base),
    )


def _check_width(band: Band, setting: Setting, costs: Costs, details: Sequence[str]) -> None:
    """Raise Missing where a band is too wide, with what would narrow it and what widened it."""
    open_by = too_wide(max(band))
    if open_by is None:
        return
    action = _narrower(setting, costs)
    reasons = [f"{open_by}: {action}", *details]
    raise Missing("; ".join(reasons))


def _narrower(setting: Setting, costs: Costs) -> str:
    """The measurement that would make costs more certain."""
    place = setting.place
    link = setting.links.on(place)
    if link is not None and link.source != REACHED_RATE:
        return f'measure what {link.name} reaches, and give --link "reached RATE"'
    if costs.fit("all_reduce", place) is None:
        return f"a calibration on {place} devices would narrow it"
    return "calibrate and measure again while no other program runs"


def _disagreement(contradictions: Sequence[float]) -> list[str]:
    """That the run's collectives took longer or shorter than their costs, if they did."""
    least = min(contradictions)
    most = max(contradictions)
    if least >= 1 / _AGREE and most <= _AGREE:
        return []
    times = f"{least:.2g}"
    longest = f"{most:.2g}"
    if longest != times:
        times = f"{times} to {longest}"
    took = f"the run's own all-reduces took {times} times their known cost"
    return [f"{took}, which widens the band"]


def _efficiency(base: Base, setting: Setting, step_us: float) -> float:
    """t_1 as measured at the same batch over t_N; raises Missing."""
    alone_us = base.single_us.get(setting.batch_size or 0)
    if alone_us is None:
        batch = "this batch"
        if setting.batch_size is not None:
            batch = counted(setting.batch_size, "sample")
        raise Missing(f"no step of one device was measured at {batch}")
    if setting.accumulate != base.accumulate:
        raise Missing("no step of one device was measured with these micro-batches")
    if step_us < _IMPOSSIBLE * alone_us:  # beyond what noise explains
        alone_ms = alone_us / 1e3
        length = f"{alone_ms:.3g} ms"
        raise Missing(f"one device's step is {length}, longer than this one")
    return alone_us / step_us


def _measured_on_one(base: Base, setting: Setting) -> bool:
    """Whether the setting is a step of one device that was measured."""
    if setting.place.devices > 1:
        return False
    return setting.accumulate == base.accumulate and setting.batch_size in base.single_us


def _one_device_measured(base: Base, unanswered: Prediction) -> Prediction:
    """One device's step where it was measured, with the bands of its repeats and the base's."""
    batch_size = unanswered.batch_size or 0
    step_us = base.single_us[batch_size]
    spread = base.single_spread.get(batch_size, 0.0)
    change_us = step_us - base.step_us
    half_us = math.hypot(spread * step_us, base.spread * base.step_us)
    return replace(
        unanswered,
        step_us=step_us,
        low_us=step_us * math.exp(-spread),
        high_us=step_us * math.exp(spread),
        change_us=change_us,
        change_low_us=change_us - half_us,
        change_high_us=change_us + half_us,
        exposed_us=0.0,
        efficiency=1.0,
        rests_on=("one device's measured step, with the band of its repeats",),
    )


def _one_device(base: Base, setting: Setting, costs: Costs) -> tuple[float | None, str]:
    """t_1 of the setting's batch, and its basis: the replay without other devices, scaled to t_1 as
    measured at that batch, else at the base's, where known."""
    batch_size = setting.batch_size
    if batch_size not in base.single_us:
        batch_size = base.batch_size
    try:
        alone_us = _alone_us(base, setting, costs)
        if batch_size is None or batch_size not in base.single_us:
            return alone_us, "the base's replay without its other devices"
        same_batch = setting_of(base, Scenario(batch_size=batch_size))
        same_batch_us = _alone_us(base, same_batch, costs)
    except Missing:
        return None, ""
    longer = alone_us / same_batch_us
    measured_us = base.single_us[batch_size]
    return longer * measured_us, "one device's measured step, scaled as its replay is"


def _alone_us(base: Base, setting: Setting, costs: Costs) -> float:
    """The step of a setting's compute on one device, as its replay has it; raises Missing."""
    one_device = Place(1, 1)
    alone = setting._replace(place=one_device, on_time=None)

    def mean_us() -> float:
        changes = [_replayed(base, profile, profile, alone, costs) for profile in base.profiles]
        return fmean(change.step_us for change in changes)

    key = ("alone", alone.micro_batch, alone.accumulate)
    return base.once(key, mean_us)


def _core_limit(base: Base, place: Place) -> str | None:
    """That a host has fewer cores than the processes that would compute on them."""
    cores = base.host_cores
    if cores is None:
        return None
    processes = min(place)  # of a node
    if processes <= max(cores, base.per_node):
        return None
    host = f"this host, which has {counted(cores, 'core')}"
    return f"too optimistic for {host}: each process is predicted with as many as now"


def same_buckets(base: Base, scenario: Scenario) -> tuple[str, ...]:
    """That the gradients stay in the base's buckets, although the scenario states others."""
    stated = stated_bucketing(base, scenario)
    used = setting_of(base, scenario).bucketing
    if stated == used:
        return ()
    size = show_bytes(base.profiles[0].gradients.total_bytes)
    buckets = counted(len(base.profiles[0].bucket_ends), "bucket")
    return (f"all gradients ({size}) stay in {buckets}",)


def _rests_on(base: Base, setting: Setting, costs: Costs) -> list[str]:
    """What a prediction rests on in addition to its costs."""
    place = setting.place
    clauses = []
    own_link = calibrated_link("all_reduce", base.place, costs)
    if setting.links != AS_MEASURED and own_link is not None:
        reached = f"{own_link.gb_per_s:.3g} GB/s"
        clauses.append(f"the base's own link counts as {reached}, which its calibration reached")
    left = place.devices % place.per_node
    if left:
        full_nodes = counted(place.devices // place.per_node, "node")
        clauses.append(f"layout: {full_nodes} of {place.per_node} devices and one of {left}")
    samples = setting.micro_batch
    if samples is not None and samples != base.setting.micro_batch:
        clauses.append(batch_basis(base, samples))
    if place.devices not in (1, base.devices):
        clauses.append(base.lateness.basis)
    if base.contention.basis and setting != base.setting:
        clauses.append(base.contention.basis)
    return clauses
