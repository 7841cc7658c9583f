"""The step of a configuration that was not measured: measured base + (replay of the scenario - replay of the base).

So is each part of its ledger: that of the base plus what the replay of the scenario changes of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.analysis.what_if.band import (
    ASSUMED_ERROR,
    UNKNOWABLE,
    Parts,
    beyond_reach,
    half_band,
    replay_parts,
)
from dpscope.analysis.what_if.collective_costs import Costs, NotKnown, Place
from dpscope.analysis.what_if.inputs import (
    changed,
    compute_of,
    inputs_of,
    passes_of,
    place_of,
    step_batch,
    uneven,
)
from dpscope.analysis.what_if.lateness import on_time
from dpscope.analysis.what_if.predicted_ledger import largest_part, predicted_ledger
from dpscope.analysis.what_if.prediction import Prediction
from dpscope.analysis.what_if.replay import (
    AS_IT_WAS,
    MOST_OFF,
    Compute,
    StepParts,
    base_error,
    replay,
    silent,
)
from dpscope.analysis.what_if.scenario import AS_MEASURED, Base, Scenario
from dpscope.analysis.what_if.step_profile import HOOK_FACTORS, StepProfile, not_reproduced

_HOST_BOUND = 0.5  # of the step: from there on a link's effect is in the host's shadow
_IMPOSSIBLE = 0.97  # a step on several devices below this share of one device's is no data-parallel training of it
_MOST_ON_TIME = 48  # steps that are replayed without one rank's lateness
_OTHERS = frozenset({"all_to_all", "all_gather", "reduce_scatter", "send_recv", "send", "recv"})


@dataclass(frozen=True)
class ReplayedScenario:
    """A scenario replayed on one of the base's profiles: what it makes of the base's step."""

    step_us: float
    exposed_us: float
    changes: StepParts  # scenario less base
    parts: StepParts  # of the replayed step
    unsure: Parts
    basis: tuple[str, ...]


def predict(base: Base, scenario: Scenario, costs: Costs) -> Prediction:
    """One configuration from a base; a refusal carries its reason. Pure: the same three give the same answer."""
    return predicted(base, scenario, costs)[0]


def predicted(base: Base, scenario: Scenario, costs: Costs) -> tuple[Prediction, list[ReplayedScenario]]:
    """The same, with the replay on each of the base's profiles; empty where there was none."""
    scenario = changed(base, scenario)
    place = place_of(base, scenario)
    unanswered = Prediction(place.devices, place.nodes, step_batch(base, scenario))
    if (reason := refusal(base, scenario)) is not None:
        return replace(unanswered, reason=reason), []
    try:
        replays = [_replayed(base, *profiles, scenario, costs) for profiles in _profiles(base, scenario)]
    except NotKnown as unknown:
        return replace(unanswered, reason=str(unknown)), []
    return _joined(base, scenario, costs, unanswered, replays), replays


def refusal(base: Base, scenario: Scenario) -> str | None:
    """Why nothing is predicted; None where it can be."""
    if (why := base.once("refusal", lambda: _base_refusal(base)) or uneven(base, scenario)) is not None:
        return why
    devices = scenario.devices or base.devices
    if base.devices == 1 and devices > 1:
        return "the base ran on one device, so nothing was measured between devices: take a cell of several as the base"
    if devices not in (1, base.devices) and not base.lateness.known and scenario.jitter is None:
        return "one rank was read, so how late ranks are is not known: give every rank's trace, or --jitter, such as 3%"
    if scenario.links != AS_MEASURED and (share := _host_share(base)) > _HOST_BOUND:
        return (
            f"the host bounds this step: {100 * share:.0f}% of it is launching, which hides what a link changes; trace a larger "
            "batch, or torch.compile, first"
        )
    if not 0 < scenario.faster < math.inf:
        return "a device cannot be that much faster: give a factor above 0"
    return None


def _base_refusal(base: Base) -> str | None:
    """Why nothing at all is predicted from this base."""
    off = max((base_error(base.prepared(one, AS_IT_WAS)) for one in base.profiles), key=abs)
    if abs(off) > MOST_OFF:
        return (
            f"the replay of the base is {100 * off:+.1f}% off its measured step: something in its trace is not modelled"
        )
    if foreign := " and ".join(sorted(base.kinds & _OTHERS)):
        return f"the job runs {foreign} in addition to DDP's all-reduces: it is not plain data parallelism"
    if base.devices == 1:
        return None
    if (why := _bucket_refusal(base)) is not None:
        return why
    alone_us = base.single_us.get(base.batch_size or 0)
    if alone_us is not None and base.step_us < _IMPOSSIBLE * alone_us:
        return (
            f"{base.devices} devices take {base.step_us / 1e3:.1f} ms where one takes {alone_us / 1e3:.1f} ms at the same batch: "
            "something else changed between these cells, or they are noisier than the requested change"
        )
    return None


def _bucket_refusal(base: Base) -> str | None:
    """Why the base's buckets are not understood."""
    buckets = [one for profile in base.profiles for one in profile.buckets]
    if not buckets:
        return (
            "the trace of the base shows no all-reduce of gradients: communication was not recorded, or this is no DDP"
        )
    if any(math.isnan(one.bytes) for one in buckets):
        return "the trace does not show the bytes of its all-reduces: trace with record_shapes=True, or state --gradient-bytes"
    if base.hook not in HOOK_FACTORS:
        return f"the base's hook {base.hook} is not modelled: take a cell without it as the base"
    for profile in base.profiles:
        if (why := not_reproduced(profile, base.bucketing, HOOK_FACTORS[base.hook])) is not None:
            return why
    return None


def _host_share(base: Base) -> float:
    """The share of the base's step that a host without any cost would save, without communication; replayed once."""

    def alone_us(profile: StepProfile, compute: Compute) -> float:
        return replay(base.prepared(profile, compute), silent(profile)).step_us

    def share(profile: StepProfile) -> float:
        return (alone_us(profile, AS_IT_WAS) - alone_us(profile, Compute(host=0.0))) / profile.step_us

    return base.once(
        "host share",
        lambda: max((share(one) for one in base.profiles if one.on_device), default=0.0),
    )


def _profiles(base: Base, scenario: Scenario) -> list[tuple[StepProfile, StepProfile]]:
    """Each profile as it was measured, and as it is to be replayed: the same, unless a rank is no longer late."""
    rank = scenario.on_time
    if rank is None:
        return [(one, one) for one in base.profiles]
    ranks = sorted({one.rank for one in base.every if one.rank is not None})
    if rank not in ranks or len(ranks) < 2:
        raise NotKnown(
            f"the lateness of rank {rank} needs its trace and another rank's; ranks with traces: "
            f"{', '.join(map(str, ranks)) or 'none'}"
        )

    def pairs() -> list[tuple[StepProfile, StepProfile]]:
        others = [one for one in base.every if one.rank != rank]
        both = list(zip(others, on_time(base.every, rank), strict=True))
        # A rank is late in some steps and not in others, so that a few typical ones would not do.
        every_nth = math.ceil(len(both) / _MOST_ON_TIME)
        return both[::every_nth]

    return base.once(("on time", rank), pairs)


def _replayed(
    base: Base, measured: StepProfile, profile: StepProfile, scenario: Scenario, costs: Costs
) -> ReplayedScenario:
    """The scenario replayed on one profile, against the replay of the measured one; raises NotKnown."""
    inputs = inputs_of(base, profile, scenario, costs)
    then, now = replay(inputs.prepared, inputs.conditions), base.replayed(measured)
    step_us = max(base.step_us + then.step_us - now.step_us, 1.0)
    known_us = base.ledger.exposed_us if base.ledger is not None else None
    exposed_us = (now.exposed_us if known_us is None else known_us) + then.exposed_us - now.exposed_us
    return ReplayedScenario(
        step_us=step_us,
        exposed_us=min(max(0.0, exposed_us), step_us),
        changes=StepParts(*(after - before for after, before in zip(then.parts, now.parts, strict=True))),
        parts=then.parts,
        unsure=replay_parts(base, measured, inputs, then, step_us),
        basis=inputs.basis,
    )


def _joined(
    base: Base,
    scenario: Scenario,
    costs: Costs,
    unanswered: Prediction,
    replays: Sequence[ReplayedScenario],
) -> Prediction:
    """The mean over the profiles, with its band; beyond the reach a range and no number."""
    step_us, devices = float(np.mean([one.step_us for one in replays])), unanswered.devices
    alone_us, alone_basis = _one_device(base, scenario, costs)
    if devices == 1 and alone_us is not None:
        step_us = alone_us
    ledger, missing = predicted_ledger(base.ledger, [one.changes for one in replays], step_us, devices)
    if scenario == Scenario() and base.ledger is not None:
        ledger = base.ledger
    exposed_us = _exposed_us(ledger, devices, replays)
    share = max(one.exposed_us / one.step_us for one in replays)
    below, above = half_band(base, scenario, [one.unsure for one in replays], share, devices / base.largest)
    if (reason := beyond_reach(devices, base.largest)) is not None:
        if devices > UNKNOWABLE * base.largest:
            return replace(unanswered, reason=reason)
        least_us = min(step_us - exposed_us, step_us if alone_us is None else alone_us) * math.exp(-base.spread)
        return replace(
            unanswered,
            low_us=least_us,
            high_us=(step_us + exposed_us) * math.exp(above),
            reason=reason,
        )
    basis = [alone_basis] if devices == 1 else list(replays[0].basis)
    basis += _rests_on(base, scenario, place_of(base, scenario))
    efficiency = None if alone_us is None else alone_us / step_us
    if alone_us is not None and step_us < _IMPOSSIBLE * alone_us:  # beyond what noise explains
        efficiency = None
        basis.append(f"no efficiency: one device's step would be {alone_us / 1e3:.3g} ms, longer than this one")
    return replace(
        unanswered,
        step_us=step_us,
        low_us=step_us * math.exp(-below),
        high_us=step_us * math.exp(above),
        exposed_us=exposed_us,
        efficiency=efficiency,
        bound_by=largest_part(ledger),
        rests_on="; ".join(basis) or f"the replay of {base.name}",
        ledger=ledger,
        missing=missing,
    )


def _exposed_us(ledger: Ledger | None, devices: int, replays: Sequence[ReplayedScenario]) -> float:
    """Exposed communication by the ledger, else by the replays."""
    if ledger is not None and ledger.exposed_us is not None:
        return ledger.exposed_us
    return 0.0 if devices == 1 else float(np.mean([one.exposed_us for one in replays]))


def _one_device(base: Base, scenario: Scenario, costs: Costs) -> tuple[float | None, str]:
    """t_1 of the scenario's batch and device, and its basis: the replay without other devices, scaled to t_1 as measured at that
    batch, else at the base's, where known."""
    try:
        then_us = _alone_us(base, scenario, costs)
        for batch in (step_batch(base, scenario), base.batch_size):
            if batch is not None and batch in base.single_us:
                own_us = _alone_us(base, Scenario(batch_size=batch), costs)
                same = "one device's step as it was measured"
                basis = same if then_us == own_us else "one device's measured step, scaled as its replay is"
                return then_us * base.single_us[batch] / own_us, basis
    except NotKnown:
        return None, ""
    return then_us, "the base's replay without its other devices"


def _alone_us(base: Base, scenario: Scenario, costs: Costs) -> float:
    """The step of a scenario's compute on one device, as its replay has it; raises NotKnown."""
    scenario = changed(base, replace(scenario, devices=1, per_node=None, on_time=None))
    if (why := uneven(base, scenario)) is not None:
        raise NotKnown(why)

    def step_us(profile: StepProfile) -> float:
        inputs = inputs_of(base, profile, scenario, costs)
        return base.step_us + replay(inputs.prepared, inputs.conditions).step_us - base.replayed(profile).step_us

    key = ("alone", compute_of(base, scenario), passes_of(base, scenario))
    return base.once(key, lambda: float(np.mean([step_us(one) for one in base.profiles])))


def _rests_on(base: Base, scenario: Scenario, place: Place) -> list[str]:
    """What a prediction rests on in addition to its costs."""
    clauses = []
    if base.host_cores is not None and min(place) > max(base.host_cores, base.per_node):
        clauses.append(
            f"each process is assumed to keep the cores it has now, but a host here has {base.host_cores} in all"
        )
    if place.devices > 1 and scenario.jitter is not None:
        clauses.append(f"jitter {100 * scenario.jitter:g}% as stated")
    elif place.devices not in (1, base.devices):
        clauses.append(base.lateness.basis)
    if base.interference.contention and scenario != Scenario():
        clauses.append(base.interference.contention)
    if base.method_error is None:
        clauses.append(f"the method's error is assumed ({ASSUMED_ERROR:.0%}): no other cell measures it")
    return clauses
