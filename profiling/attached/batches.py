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
    """The number of this process's samples in each timed step, or in the mean step of each
    cycle.
    """

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
        steps = zip(self.alone, self.samples, strict=True)
        return [alone and samples == self.usual for alone, samples in steps]

    @property
    def per_device(self) -> int:
        return -(-self.usual // self.devices)


def batches_of(observed: Observed) -> Batches:
    calls, cycle = observed.timed.calls, observed.cycle
    devices = observed.detected.devices if observed.detected.traits.peer_copies else 1
    # with several optimizers, each may have its own backward passes
    several = len(observed.warm_up.optimizers) > 1
    micro_batches = 1 if several else max(1, observed.warm_up.backwards)
    stated = observed.settings.batch_size
    samples = [_samples_of(step.each, micro_batches) for step in calls]
    if stated is not None:
        samples = [stated * devices] * len(calls)
    seen = [count for count, step in zip(samples, calls, strict=True) if step.each]
    known = any(samples) and all(seen)
    if not known:
        samples, micro_batches = [devices] * len(calls), 1
    samples = [round(mean) for mean in means(samples, cycle)]
    alone = _without_other_work(calls, cycle)
    usual = _usual(samples, alone)
    changes = usual is None
    if usual is None:
        usual = _mean_of_kept(samples, alone)
        samples = [usual] * len(samples)
    return Batches(samples, alone, usual, changes, micro_batches, devices, known)


def means(values: Sequence[float], cycle: int) -> list[float]:
    """The mean of each whole cycle of consecutive values."""
    starts = range(0, len(values) - cycle + 1, cycle)
    return [sum(values[start : start + cycle]) / cycle for start in starts]


def _samples_of(each: list[int], micro_batches: int) -> int:
    """Samples of a step's calls; a micro-batch may need several calls (a model that is called twice
    on each sample).

    0 where a call's are unknown.
    """
    if micro_batches == 1:
        return each[0] if each else 0
    if not each or 0 in each:
        return 0
    is_whole = len(each) % micro_batches == 0
    return sum(each) * micro_batches // len(each) if is_whole else sum(each)


def _without_other_work(calls: Sequence[StepCalls], cycle: int) -> list[bool]:
    """Whether each step, or cycle, only trains; all do where most contain other work."""
    trains = [step.other == 0 and not step.profiled for step in calls]
    alone = [mean == 1.0 for mean in means(trains, cycle)]
    return alone if 2 * sum(alone) >= len(alone) else [True] * len(alone)


def _kept(samples: Sequence[int], alone: Sequence[bool]) -> list[int]:
    return [count for count, is_alone in zip(samples, alone, strict=True) if is_alone]


def _usual(samples: Sequence[int], alone: Sequence[bool]) -> int | None:
    """The most frequent number of samples, the larger of two; None if most steps have others."""
    steps_of = Counter(_kept(samples, alone))
    usual = max(steps_of, key=lambda count: (steps_of[count], count))
    return usual if 2 * steps_of[usual] >= steps_of.total() else None


def _mean_of_kept(samples: Sequence[int], alone: Sequence[bool]) -> int:
    kept = _kept(samples, alone)
    return round(sum(kept) / len(kept))


def batch_findings(observed: Observed, batches: Batches) -> Iterator[Finding]:
    if not batches.known:
        called = any(step.each for step in observed.timed.calls)
        yield AttachCode.BATCH_NOT_SEEN.finding(
            "the inputs of the script's model do not show it"
            if called
            else "no call of the script's model was seen"
        )
    elif observed.settings.batch_size is None:
        mean = ", the mean of batches that change," if batches.changes else ""
        micro = f" in {batches.micro_batches} micro-batches" if batches.micro_batches > 1 else ""
        yield AttachCode.BATCH_AS_SEEN.finding(
            f"{batches.usual} samples a step and process{mean}{micro}, by the inputs of the script's model"
        )
    kept = batches.kept
    if not all(kept):
        what = "steps" if observed.cycle == 1 else "cycles of steps"
        yield AttachCode.STEPS_LEFT_OUT.finding(
            f"{kept.count(False)} of {len(kept)} timed {what} are left out: {batches.alone.count(False)} with calls of the "
            "model in evaluation mode or the script's profiler, the others with a number of samples other than "
            f"{batches.usual}"
        )
