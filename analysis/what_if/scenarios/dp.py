"""`nn.DataParallel` in place of DDP: nothing overlaps, one process drives every device."""

from dataclasses import dataclass, replace

from dpscope.analysis.what_if.replay.buckets import HOOK_FACTORS
from dpscope.analysis.what_if.replay.replay import Compute, Prepared, Replayed, replay, silent
from dpscope.analysis.what_if.replay.step_profile import INTERPOLATED, StepProfile
from dpscope.analysis.what_if.scenarios.collective_costs import Cost, Costs
from dpscope.analysis.what_if.scenarios.inputs import compute_of, passes_of, place_of
from dpscope.analysis.what_if.scenarios.scenario import Base, Scenario


@dataclass(frozen=True)
class DataParallelStep:
    """A predicted step of `nn.DataParallel`: all its communication is exposed."""

    step_us: float
    communication_us: float
    compute_change_us: float  # less the base's
    spread: float
    rests_on: tuple[str, ...]


_CHUNK_BYTES = 10 * 1024 * 1024  # torch/nn/parallel/comm.py
_HOST_BOUND = 0.3  # of the step: from there on N replicas' launches on one interpreter take N times as long


def data_parallel(
    base: Base, profile: StepProfile, scenario: Scenario, costs: Costs, devices: int
) -> DataParallelStep | str:
    """The replayed step with copies by their formula; or the reason why it is not known.

    Broadcast of parameters and buffers before forward, reduce of gradients after backward, in chunks of 10 MiB, in every
    micro-batch, as it has no `no_sync`; the optimizer on one device. Source: torch/nn/parallel/replicate.py and comm.py, as in
    `dp_transfer_us`.
    """
    if place_of(base, scenario).nodes > 1:
        return f"DataParallel is one process, on one node: it cannot drive {devices} devices of several"
    compute = compute_of(base, scenario)
    if isinstance(compute, str):
        return compute
    parameters = profile.gradients.total_bytes
    if profile.gradients.known == INTERPOLATED:
        parameters /= HOOK_FACTORS.get(base.hook, 1.0)
    moved = (
        _moved("broadcast", parameters + base.buffer_bytes, devices, costs, scenario),
        _moved("reduce", parameters, devices, costs, scenario),
    )
    if isinstance(moved[0], str) or isinstance(moved[1], str):
        return f"DataParallel: {moved[0] if isinstance(moved[0], str) else moved[1]}"
    passes = passes_of(base, scenario)
    total = (moved[0].total_us + moved[1].total_us) * passes * base.accumulate
    now = base.replayed(profile)
    then = _alone(profile, compute, passes)
    free = _alone(profile, replace(compute, host=0.0), passes)
    if then.step_us - free.step_us > _HOST_BOUND * then.step_us:
        then = _alone(profile, replace(compute, host=compute.host * devices), passes)
    step = base.step_us + then.step_us - now.step_us + total
    return DataParallelStep(
        step_us=step,
        communication_us=total,
        compute_change_us=then.parts.compute - now.parts.compute,
        spread=moved[0].spread * total / step + 0.1,
        rests_on=(f"DataParallel by its formula; {moved[0].basis}",),
    )


def _alone(profile: StepProfile, compute: Compute, passes: int) -> Replayed:
    """The step without any collective."""
    return replay(Prepared(profile, compute), replace(silent(profile), passes=passes))


def _moved(kind: str, size: float, devices: int, costs: Costs, scenario: Scenario) -> Cost | str:
    """All chunks of one kind, one after another."""
    whole, rest = divmod(size, _CHUNK_BYTES)
    chunk = costs.cost(kind, float(_CHUNK_BYTES), devices, devices, scenario.links)
    last = costs.cost(kind, max(rest, 1.0), devices, devices, scenario.links)
    if isinstance(chunk, str):
        return chunk
    if isinstance(last, str):
        return last
    return Cost(
        whole * chunk.latency_us + last.latency_us,
        whole * chunk.transfer_us + last.transfer_us,
        chunk.source,
        chunk.basis,
        chunk.spread,
    )
