"""How many samples a script's timed steps trained on, and which of these steps are kept."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpscope.profiling.attached.model_calls import StepCalls
from dpscope.profiling.attached.stages import Observed
from dpscope.profiling.records.attach_codes import AttachCode
from dpscope.profiling.records.finding import Finding


@dataclass(frozen=True)
class Batches:
    """The number of this process's samples in each timed step."""

    samples: list[int]
    alone: list[bool]  # without other work, such as a validation
    usual: int  # samples of the steps that are kept
    changes: bool  # whether `usual` is a mean of batches that change
    micro_batches: int
    devices: int  # of this process
    known: bool  # else a step counts as one sample per device

    @property
    def kept(self) -> list[bool]:
        """The steps that only train, on the usual batch."""
        return [
            alone and samples == self.usual
            for alone, samples in zip(self.alone, self.samples, strict=True)
        ]

    @property
    def per_device(self) -> int:
        return -(-self.usual // self.devices)


def batches_of(observed: Observed) -> Batches:
    calls = observed.timed.calls
    devices = observed.detected.devices if observed.detected.traits.peer_copies else 1
    micro_batches = _micro_batches(observed)
    samples = _samples_of_steps(observed, devices, micro_batches)

    # A step without a call of the model may be one that bypasses it, such as a replayed graph.
    is_known = any(samples)
    for count, step in zip(samples, calls, strict=True):
        if step.each and count == 0:
            is_known = False
    if not is_known:
        samples = [devices] * len(calls)
        micro_batches = 1

    alone = _without_other_work(calls)
    kept = [count for count, is_alone in zip(samples, alone, strict=True) if is_alone]
    usual = _usual(kept)
    changes = usual is None
    if usual is None:
        # a different size in each step: each counts as the mean
        usual = round(sum(kept) / len(kept))
        samples = [usual] * len(samples)
    return Batches(samples, alone, usual, changes, micro_batches, devices, is_known)


def _micro_batches(observed: Observed) -> int:
    """Those of a step, by the backward passes of one step of the warm-up.

    With several optimizers, each may have its own backward passes, which are no micro-batches.
    """
    if len(observed.warm_up.optimizers) > 1:
        return 1
    return max(1, observed.warm_up.backwards)


def _samples_of_steps(observed: Observed, devices: int, micro_batches: int) -> list[int]:
    """Samples of each step, as stated by the user or as seen; 0 where neither is known."""
    calls = observed.timed.calls
    stated = observed.settings.batch_size
    if stated is not None:
        # the option is the number per device
        return [stated * devices] * len(calls)
    return [_samples_of(step.each, micro_batches) for step in calls]


def _samples_of(each: list[int], micro_batches: int) -> int:
    """Samples of a step's calls; a micro-batch may need several calls (a model that is called twice
    on each sample).

    0 where a call's are unknown.
    """
    if micro_batches == 1:
        # further calls are on the same samples
        return each[0] if each else 0
    if 0 in each:
        return 0
    samples = sum(each)
    # Calls that the micro-batches do not divide are taken as one for each part.
    if not each or len(each) % micro_batches:
        return samples
    return samples * micro_batches // len(each)


def _without_other_work(calls: Sequence[StepCalls]) -> list[bool]:
    """Whether each step only trains; all do where most contain other work."""
    alone = [step.other == 0 and not step.profiled for step in calls]
    if 2 * sum(alone) < len(alone):
        return [True] * len(alone)
    return alone


def _usual(samples: Sequence[int]) -> int | None:
    """The most frequent number of samples, the larger of two; None if most steps have others."""
    steps_of = Counter(samples)
    usual = max(steps_of, key=lambda count: (steps_of[count], count))
    return usual if 2 * steps_of[usual] >= len(samples) else None


def batch_findings(observed: Observed, batches: Batches) -> Iterator[Finding]:
    if not batches.known:
        yield AttachCode.BATCH_NOT_SEEN.finding("the calls of the script's model do not show it")
    elif observed.settings.batch_size is None:
        # the first screen shows the number, so that a wrong one is noticed
        mean = " (the mean of batches that change)" if batches.changes else ""
        yield AttachCode.BATCH_AS_SEEN.finding(
            f"{batches.usual} samples a step and process{mean}, micro-batches: {batches.micro_batches}; by the inputs of the "
            "script's model"
        )
    unlike = _unlike_steps(observed.timed.calls, batches)
    if unlike:
        yield AttachCode.STEPS_UNLIKE.finding(
            f"{unlike} of {len(batches.kept)} timed steps call the models more or less often than the others"
        )
    left_out = batches.kept.count(False)
    other_work = batches.alone.count(False)
    if left_out:
        yield AttachCode.STEPS_LEFT_OUT.finding(
            f"{left_out} of {len(batches.kept)} timed steps are left out: {other_work} with calls of the model in "
            f"evaluation mode or the script's profiler, the others with a number of samples other than {batches.usual}"
        )


def _unlike_steps(calls: Sequence[StepCalls], batches: Batches) -> int:
    """How many of the kept steps call the models another number of times than most."""
    kept = [step for step, is_kept in zip(calls, batches.kept, strict=True) if is_kept]
    steps_of = Counter(len(step.each) for step in kept)
    return len(kept) - max(steps_of.values())
