"""The step of a configuration that was not measured: measured base + (replay of the scenario - replay of the base).

So is each part of its ledger: that of the base plus what the replay of the scenario changes of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean

import numpy as np

from dpscope.analysis.text.units import show_time
from dpscope.analysis.traces.ranks.ledger import EXPOSED_PARTS, STEP_PARTS, Ledger
from dpscope.analysis.what_if.collective_costs import Costs, NotKnown, Place
from dpscope.analysis.what_if.inputs import (
    ASSUMED_ERROR,
    Inputs,
    Parts,
    changed,
    compute_of,
    half_band,
    inputs_of,
    passes_of,
    place_of,
    replay_parts,
    step_batch,
    uneven,
)
from dpscope.analysis.what_if.prediction import UNKNOWABLE, Prediction, beyond_reach, bound_by, show_ms
from dpscope.analysis.what_if.replay import (
    AS_IT_WAS,
    MOST_OFF,
    Compute,
    Prepared,
    Replayed,
    StepParts,
    base_error,
    replay,
    silent,
)
from dpscope.analysis.what_if.scenario import AS_MEASURED, Base, Scenario
from dpscope.analysis.what_if.step_profile import HOOK_FACTORS, StepProfile, not_reproduced

_HOST_BOUND = 0.5  # of the step: from there on a link's effect is in the host's shadow
_IMPOSSIBLE = 0.97  # a step on several devices below this share of one device's is no data-parallel training of it
_NAMED = 0.05  # of the exposed time, from which on a part of it is named
_OTHERS = frozenset({"all_to_all", "all_gather", "reduce_scatter", "send_recv", "send", "recv"})


@dataclass(frozen=True)
class Answered:
    """A replayed scenario on one profile: what it adds to the base."""

    step_us: float
    exposed_us: float
    changes: StepParts  # scenario less base
    parts: Parts
    basis: tuple[str, ...]
    replayed: StepParts  # of the replayed step
    remains_us: Mapping[str, float] = field(default_factory=dict)  # on a stated link: what of exposed no rate removes


def predict(base: Base, scenario: Scenario, costs: Costs) -> Prediction:
    """One configuration from a base; a refusal carries its reason. Pure: the same three give the same answer."""
    return predicted(base, scenario, costs)[0]


def predicted(base: Base, scenario: Scenario, costs: Costs) -> tuple[Prediction, list[Answered]]:
    """The same, with what the scenario adds to each of the base's profiles; empty where it was not replayed."""
    scenario = changed(base, scenario)
    place = place_of(base, scenario)
    unanswered = Prediction(place.devices, place.nodes, step_batch(base, scenario))
    if (reason := refusal(base, scenario)) is not None:
        return replace(unanswered, reason=reason), []
    try:
        found = [_answered(base, profile, scenario, costs) for profile in base.profiles]
    except NotKnown as unknown:
        return replace(unanswered, reason=str(unknown)), []
    return _joined(base, scenario, unanswered, found, place), found


def refusal(base: Base, scenario: Scenario) -> str | None:
    """Why nothing is predicted; None where it can be."""
    if (why := base.once("refusal", lambda: _base_refusal(base))) is not None:
        return why
    if (why := uneven(base, scenario)) is not None:
        return why
    devices = scenario.devices or base.devices
    if base.devices == 1 and devices > 1:
        return "the base ran on one device, so nothing was measured between devices: take a cell of several as the base"
    if devices != base.devices and devices > 1 and not base.lateness.known and scenario.jitter is None:
        return "one rank was read, so how late ranks are is not known: give every rank's trace, or --jitter, such as 3%"
    if scenario.links != AS_MEASURED and (share := _host_share(base)) > _HOST_BOUND:
        return (
            f"the host bounds this step: {100 * share:.0f}% of it is launching, which hides what a link changes; trace a larger "
            "batch, or torch.compile, first"
        )
    if scenario.faster <= 0 or not math.isfinite(scenario.faster):
        return "a device cannot be that much faster: give a factor above 0"
    return None


def _base_refusal(base: Base) -> str | None:
    """Why nothing at all is predicted from this base."""
    for profile in base.profiles:
        off = base_error(base.prepared(profile, AS_IT_WAS))
        if abs(off) > MOST_OFF:
            return f"the replay of the base is {100 * off:+.1f}% off its measured step: something in its trace is not modelled"
    if foreign := " and ".join(sorted(base.kinds & _OTHERS)):
        return f"the job runs {foreign} in addition to DDP's all-reduces: it is not plain data parallelism"
    if base.devices > 1 and not any(profile.buckets for profile in base.profiles):
        return (
            "the trace of the base shows no all-reduce of gradients: communication was not recorded, or this is no DDP"
        )
    if any(np.isnan(one.bytes) for profile in base.profiles for one in profile.buckets):
        return "the trace does not show the bytes of its all-reduces: trace with record_shapes=True, or state --gradient-bytes"
    factor = HOOK_FACTORS.get(base.hook)
    if factor is None:
        return f"the base's hook {base.hook} is not modelled: take a cell without it as the base"
    for profile in base.profiles if base.devices > 1 else ():
        if (why := not_reproduced(profile, base.bucketing, factor)) is not None:
            return why
    alone = base.single_us.get(base.batch_size) if base.batch_size is not None else None
    if alone is not None and base.devices > 1 and base.step_us < _IMPOSSIBLE * alone:
        return (
            f"{base.devices} devices take {base.step_us / 1e3:.1f} ms where one takes {alone / 1e3:.1f} ms at the same batch: "
            "something else changed between these cells, or they are noisier than the requested change"
        )
    return None


def _host_share(base: Base) -> float:
    """The share of the base's step that a host without any cost would save, without communication; replayed once."""

    def share(profile: StepProfile) -> float:
        return (_alone(profile, AS_IT_WAS).step_us - _alone(profile, Compute(host=0.0)).step_us) / profile.step_us

    return base.once("host share", lambda: max((share(one) for one in base.profiles if one.on_device), default=0.0))


def _alone(profile: StepProfile, compute: Compute, passes: int = 1) -> Replayed:
    """The step without any collective."""
    return replay(Prepared(profile, compute), replace(silent(profile), passes=passes))


def _answered(base: Base, profile: StepProfile, scenario: Scenario, costs: Costs) -> Answered:
    """The scenario replayed on one profile; raises NotKnown."""
    inputs = inputs_of(base, profile, scenario, costs)
    then = replay(inputs.prepared, inputs.conditions)
    now = base.replayed(profile)
    step = max(base.step_us + then.step_us - now.step_us, 1.0)
    measured = base.ledger.exposed_us if base.ledger is not None else None
    measured = now.exposed_us if measured is None else measured
    exposed = min(max(0.0, measured + then.exposed_us - now.exposed_us), step)
    changes = StepParts(*(after - before for after, before in zip(then.parts, now.parts, strict=True)))
    parts = replay_parts(base, profile, inputs, then, step)
    remains = {} if scenario.links == AS_MEASURED else _remains_us(inputs, then.exposed_us)
    return Answered(step, exposed, changes, parts, inputs.basis, then.parts, remains)


def _remains_us(inputs: Inputs, exposed_us: float) -> dict[str, float]:
    """What of the exposed time is not transfer of gradients, each part by a replay without it."""
    prepared, conditions = inputs.prepared, inputs.conditions
    others = " and ".join(sorted({one.kind for one in prepared.profile.others}))
    without = {
        "waiting for late ranks": replace(conditions, late_us=(0.0,) * len(conditions.late_us)),
        "latency of all-reduces": replace(conditions, latency_us=(0.0,) * len(conditions.latency_us)),
        others: replace(conditions, other_us=(0.0,) * len(conditions.other_us)),
    }
    saved = {name: exposed_us - replay(prepared, one).exposed_us for name, one in without.items() if name}
    return {name: us for name, us in saved.items() if us > _NAMED * exposed_us}


def _joined(base: Base, scenario: Scenario, unanswered: Prediction, found: list[Answered], place: Place) -> Prediction:
    """The mean over the profiles, with its band; beyond the reach a range and no number."""
    step = float(np.mean([one.step_us for one in found]))
    exposed = float(np.mean([one.exposed_us for one in found]))
    alone = _alone_us(base, scenario)
    if scenario == Scenario():
        step = base.step_us
    elif place.devices == 1 and alone is not None:
        step, exposed = alone, 0.0
    ledger, missing = predicted_ledger(base.ledger, [one.changes for one in found], step, place.devices)
    if scenario == Scenario() and base.ledger is not None:
        ledger = base.ledger
    if ledger is not None and ledger.exposed_us is not None:
        exposed = ledger.exposed_us
    times = place.devices / base.largest
    share = max(one.exposed_us / one.step_us for one in found)
    below, above = half_band(base, scenario, [one.parts for one in found], share, times)
    if (reason := beyond_reach(times, base.largest, "without any exposed communication")) is not None:
        if times > UNKNOWABLE:
            return replace(unanswered, reason=reason)
        least = min(step - exposed, alone if alone is not None else step) * math.exp(-base.spread)
        return replace(unanswered, low_us=least, high_us=(step + exposed) * math.exp(above), reason=reason)
    rests_on = _rests_on(base, found, scenario, place)
    efficiency = None if alone is None else alone / step
    if efficiency is not None and efficiency > 1 / _IMPOSSIBLE:  # beyond what noise explains
        rests_on += f"; no efficiency: one device's step would be {(alone or 0.0) / 1e3:.3g} ms, longer than this one"
        efficiency = None
    return replace(
        unanswered,
        step_us=step,
        low_us=step * math.exp(-below),
        high_us=step * math.exp(above),
        exposed_us=exposed,
        efficiency=efficiency,
        bound_by=largest_part(ledger),
        rests_on=rests_on,
        ledger=ledger,
        missing=missing,
    )


def _alone_us(base: Base, scenario: Scenario) -> float | None:
    """t_1 of the scenario's batch and device: the replay without other devices, scaled to t_1 as measured at that batch, else at
    the base's, where known."""
    if (then := _without_others(base, scenario)) is None:
        return None
    for batch in (step_batch(base, scenario), base.batch_size):
        own = _without_others(base, Scenario(batch_size=batch)) if batch in base.single_us else None
        if own and batch is not None:
            return then * base.single_us[batch] / own
    return then


def _without_others(base: Base, scenario: Scenario) -> float | None:
    """The step of a scenario's compute without any collective; None where the compute is not known."""
    try:
        compute = compute_of(base, scenario)
    except NotKnown:
        return None
    if uneven(base, scenario) is not None:
        return None
    passes, steps_us = passes_of(base, scenario), []
    for one in base.profiles:
        then = base.once(("alone", id(one), compute, passes), partial(_alone, one, compute, passes))
        steps_us.append(base.step_us + then.step_us - base.replayed(one).step_us)
    return float(np.mean(steps_us))


def _rests_on(base: Base, found: list[Answered], scenario: Scenario, place: Place) -> str:
    clauses = [*found[0].basis]
    if place.devices == 1:  # what t_1 is taken from; see `_alone_us`
        clauses = ["the base's replay without its other devices"]
        alone = Scenario(devices=1, per_node=scenario.per_node, batch_size=scenario.batch_size, jitter=scenario.jitter)
        if scenario == alone and step_batch(base, scenario) in base.single_us:
            clauses = ["one device's step as it was measured"]
        elif {base.batch_size, step_batch(base, scenario)} & base.single_us.keys():
            clauses = ["one device's measured step, scaled as its replay is"]
    if base.host_cores is not None and min(place.devices, place.per_node) > max(base.host_cores, base.per_node):
        cores = f"each process is assumed to keep the cores it has now, but a host here has {base.host_cores} in all"
        clauses.insert(0, cores)
    if place.devices > 1 and (place.devices != base.devices or scenario.jitter is not None):
        jitter = f"jitter {100 * scenario.jitter:g}% as stated" if scenario.jitter is not None else base.lateness.basis
        clauses.append(jitter)
    names = {name for one in found for name in one.remains_us}  # what no rate removes; none on measured links
    means = [(fmean(one.remains_us.get(name, 0.0) for one in found), name) for name in names]
    if means and place.devices > 1:
        remains = ", ".join(f"{show_time(mean)} {name}" for mean, name in sorted(means, reverse=True))
        clauses.append(f"no rate removes, of what is exposed: {remains}")
    if base.interference.contention and scenario != Scenario():
        clauses.append(base.interference.contention)
    if base.method_error is None:
        clauses.append(f"the method's error is assumed ({ASSUMED_ERROR:.0%}): no other cell measures it")
    return "; ".join(clauses) or f"the replay of {base.name}"


NO_LEDGER = "the traces of the base do not show where its step goes"
NOT_SPLIT = "the traces of the base do not separate waiting from transfer"
ONE_DEVICE = "one device: nothing to communicate"

PART_LABELS = {
    "compute": "compute",
    "exposed_wait": "waiting for late ranks",
    "exposed_transfer": "exposed transfer",
    "exposed_other": "other exposed communication",
    "idle": "idle time",
    "exposed": "exposed communication",
}
_BOUND_BY = dict(zip(STEP_PARTS, ("compute", "waiting", "transfer", "communication", "idle"), strict=True))
_CHANGE_SHOWN = 0.02  # of the base's step, from which on a part's change is named

PredictedLedger = tuple[Ledger | None, Mapping[str, str]]
"""The ledger, None if no part is known, and by part without a value the reason."""


def predicted_ledger(
    base: Ledger | None, changes: Sequence[StepParts], step_us: float, devices: int
) -> PredictedLedger:
    """`changes` are scenario less base, one per replayed step; parts and tracer add up to `step_us`, as those of the base do.

    The tracer's share is taken to be the base's.
    """
    if base is None:
        return None, dict.fromkeys(STEP_PARTS, NO_LEDGER)
    mean = StepParts(*(float(value) for value in np.mean(changes, axis=0)))
    values = {part: getattr(base, f"{part}_us") for part in STEP_PARTS}
    reasons = {part: NO_LEDGER for part, value in values.items() if value is None}
    moved = mean._asdict()
    if devices == 1:
        values |= dict.fromkeys(EXPOSED_PARTS)
        reasons |= dict.fromkeys(EXPOSED_PARTS, ONE_DEVICE)
    elif not base.is_split:
        moved["exposed_other"] = mean.exposed_wait + mean.exposed_transfer + mean.exposed_other
        reasons |= dict.fromkeys(("exposed_wait", "exposed_transfer"), NOT_SPLIT)
    changed = {part: value + moved[part] for part, value in values.items() if value is not None}
    return _added_up(base, changed, step_us), reasons


def _added_up(base: Ledger, values_us: Mapping[str, float], step_us: float) -> Ledger | None:
    """A ledger of these parts. No part is negative: what the replay takes off a part beyond what was measured of it, it takes off
    the others in proportion; what a part leaves without shortening the step is idle time. None if the tracer's share alone is
    longer than the step."""
    kept = {part: max(0.0, value) for part, value in values_us.items()}
    traced_us, total = step_us - (base.tracer_us or 0.0), sum(kept.values())
    if traced_us <= 0 or total <= 0:
        return None
    if {"compute", "idle"} <= set(kept):  # else what is left of the step belongs to a part that is not known
        kept["idle"] += max(0.0, traced_us - total)
        kept = {part: value * min(1.0, traced_us / total) for part, value in kept.items()}
    compute, wait, transfer, other, idle = (kept.get(part) for part in STEP_PARTS)
    kinds = list(base.other_by_kind_us) if base.is_split and other is not None else []
    by_kind = {kinds[0]: other} if len(kinds) == 1 and other is not None else {}
    return Ledger(traced_us, compute, wait, transfer, other, idle, other_by_kind_us=by_kind, tracer_us=base.tracer_us)


def ledger_values(ledger: Ledger | None) -> dict[str, float | None]:
    """The step's parts and the tracer's, which add up to the untraced step; for JSON."""
    names = [f"{part}_us" for part in ("traced_step", *STEP_PARTS, "tracer")]
    return {name: None if ledger is None else getattr(ledger, name) for name in names}


def largest_part(ledger: Ledger | None) -> str | None:
    """The largest of a ledger's known parts, as `bound_by` names it."""
    if ledger is None or not ledger.parts_us:
        return None
    parts = ledger.parts_us
    return _BOUND_BY[max(parts, key=lambda part: parts[part])]


def _comparable(ledger: Ledger, other: Ledger) -> dict[str, float]:
    """Its parts; all exposed communication is one part unless both ledgers split it alike."""
    parts = ledger.parts_us
    alike = all((part in parts) == (part in other.parts_us) for part in EXPOSED_PARTS)
    if alike and ledger.is_split:
        return parts
    return {part: us for part, us in parts.items() if part not in EXPOSED_PARTS} | {"exposed": ledger.exposed_us or 0.0}


def detail_sentences(base: Ledger | None, prediction: Prediction) -> str:
    """The largest part of the predicted step, and what changes against the base."""
    then = prediction.ledger
    if then is None or not then.parts_us:
        return bound_by(prediction)
    part, time_us = max(_comparable(then, then).items(), key=lambda one: one[1])
    held_up = f" Held up most by {PART_LABELS[part]} ({show_ms(time_us)} ms)."
    if base is None:
        return held_up
    before, after = _comparable(base, then), _comparable(then, base)
    moved = {part: after[part] - before[part] for part in before if part in after}
    changed = ", ".join(  # the largest change first
        f"{PART_LABELS[part]} {'grows' if us > 0 else 'shrinks'} by {show_ms(abs(us))} ms"
        for part, us in sorted(moved.items(), key=lambda one: -abs(one[1]))
        if abs(us) >= _CHANGE_SHOWN * base.traced_step_us
    )
    return f"{held_up} Against the base, {changed}." if changed else held_up
