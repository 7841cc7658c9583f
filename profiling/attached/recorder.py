"""Writes what one process measured of a script as the files of a repeat."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel

from dpscope.profiling.attached.interception import ProfilerWatch
from dpscope.profiling.attached.job import Place, SavedPart
from dpscope.profiling.attached.model_calls import ModelCalls, inner_module
from dpscope.profiling.attached.settings import (
    FOR_GRAPHS,
    STEP_RECORDED,
    AttachSettings,
    further_hint,
)
from dpscope.profiling.attached.step_cycles import without_short
from dpscope.profiling.attached.windows import TimedWindow, TracedWindow, WarmUp
from dpscope.profiling.attached.wrapped_models import (
    DetectedStrategy,
    WrapperLog,
    is_model_parallel,
    options_of,
)
from dpscope.profiling.instruments.ddp_counters import tensor_sizes
from dpscope.profiling.instruments.step_timer import StepSample, save_samples
from dpscope.profiling.records.attach_codes import AttachCode
from dpscope.profiling.records.config import MINIMUM_WARMUP_STEPS
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run import (
    AttachedProcess,
    Cell,
    ParameterSizes,
    RankResult,
    TimedBlock,
)
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RepeatFolder


@dataclass
class Observed:
    """What was observed of a script up to its timed window, and the windows."""

    settings: AttachSettings
    folder: RepeatFolder  # of the job
    place: Place
    device: torch.device
    detected: DetectedStrategy
    wrappers: WrapperLog
    warm_up: WarmUp
    calls: ModelCalls
    profiler_watch: ProfilerWatch
    timed: TimedWindow
    # of the models when the measurement began: a script may freeze or unfreeze parameters later
    sizes: ParameterSizes
    traced: TracedWindow | None = None
    counted: TracedWindow | None = None  # with DDP's counters
    ended_early: str | None = None  # how the script ended before the windows did
    steps: int = 0  # of the whole script, where it ended early

    @property
    def cycle(self) -> int:
        """Steps after which the script does the same again, as far as that is known."""
        return self.warm_up.cycle or 1

    @property
    def is_traced(self) -> bool:
        return self.traced is not None and self.traced.complete

    @property
    def counters_apply(self) -> bool:
        """Whether DDP's counters describe all reductions of a step."""
        return len(self.detected.ddp) == 1 and self.place.world_size > 1

    def early_text(self) -> str:
        """What was measured of a script that ended early, and what is missing."""
        traced = self.settings.traced_steps if self.is_traced else "none"
        without = ", and DDP's counters are missing" if self.counters_apply else ""
        return f"{len(self.timed.calls)} of {counted(self.settings.steps, 'step')} were timed, {traced} traced{without}"


@dataclass
class Batches:
    """The number of this process's samples in each timed step, or in the mean step of each
    cycle.
    """

    samples: list[int]
    kept: list[bool]  # those that only train, on the usual batch
    per_device: int
    micro_batches: int
    known: bool  # else a step counts as one sample per device
    findings: list[Finding]


def save_process(observed: Observed) -> SavedPart:
    """Write this process's samples, counters and result; its traces are written before."""
    place, folder, detected = observed.place, observed.folder, observed.detected
    window, calls, traced = observed.timed, observed.calls, observed.traced
    batches, cycle = _batches(observed), observed.cycle
    steps = enumerate(
        zip(_means(window.durations_us, cycle), batches.samples, batches.kept, strict=True)
    )
    timed = [
        StepSample("timed", None, step, us, math.nan, samples)
        for step, (us, samples, kept) in steps
        if kept
    ]
    whole = cycle * len(timed) == len(window.durations_us)
    block = TimedBlock(
        epoch=None,
        steps=cycle * len(timed),
        samples=cycle * sum(one.samples for one in timed),
        duration_s=window.duration_s if whole else cycle * sum(one.step_us for one in timed) / 1e6,
        data_wait_s=None,
    )
    save_samples(
        folder.samples_path(place.node, place.rank), [*timed, *(traced.samples() if traced else ())]
    )
    if observed.counted is not None and observed.counted.counters:
        write_json(folder.counters_path(place.node, place.rank), observed.counted.counters)
    on_cuda = observed.device.type == "cuda"
    devices = range(detected.devices) if detected.traits.peer_copies else (observed.device,)
    cell = Cell(
        detected.strategy,
        detected.devices,
        batches.per_device,
        options=options_of(detected, observed.wrappers, batches.micro_batches, calls.precision),
        nodes=1 if detected.traits.one_process else min(place.nodes, detected.devices),
    )
    result = RankResult(
        rank=place.rank,
        node=place.node,
        local_rank=place.local_rank,
        world_size=place.world_size,
        device_names=tuple(map(torch.cuda.get_device_name, devices)) if on_cuda else ("cpu",),
        threads=torch.get_num_threads(),
        backend=place.backend,
        nccl_engine=place.nccl_engine,
        loader_workers=None,
        steps_per_epoch=None,
        model=observed.sizes,
        blocks=(block,),
        memory=window.memory,
        findings=(*batches.findings, *_findings(observed, cell.name)),
        attached=AttachedProcess(
            cell=cell,
            reduction_known=detected.unknown_hook is None and len(detected.ddp) == 1,
            batch_known=batches.known,
            cycle=observed.cycle,
            counters_missing=_counters_missing(observed),
            inputs=calls.inputs,
            model_parallel=is_model_parallel(detected, observed.warm_up.trained),
        ),
    )
    write_json(folder.rank_path(place.node, place.rank), result)
    return SavedPart(
        folder,
        observed.settings,
        place.world_size,
        "cuda" if on_cuda else "cpu",
        _model_name(calls.modules),
    )


def _batches(observed: Observed) -> Batches:
    calls, option = observed.timed.calls, observed.settings.batch_size
    # of this process
    devices = observed.detected.devices if observed.detected.traits.peer_copies else 1
    # with several optimizers, each may have its own backward passes
    micro_batches = (
        max(1, observed.warm_up.backwards) if len(observed.warm_up.optimizers) < 2 else 1
    )
    samples = [
        _samples_of(step.each, micro_batches) if option is None else option * devices
        for step in calls
    ]
    known = all(samples[at] for at, step in enumerate(calls) if step.each) and any(samples)
    if not known:
        samples, micro_batches = [devices] * len(calls), 1
    samples = [round(mean) for mean in _means(samples, observed.cycle)]
    # Steps (or cycles) that contain a validation loop or the like are left out, unless most do.
    alone = [
        mean == 1.0
        for mean in _means([not (step.other or step.profiled) for step in calls], observed.cycle)
    ]
    if 2 * sum(alone) < len(alone):
        alone = [True] * len(alone)
    of_kept = Counter(count for count, one in zip(samples, alone, strict=True) if one)
    usual, steps = max(of_kept.items(), key=lambda one: (one[1], one[0]))
    mean = ""
    if 2 * steps < of_kept.total():  # a different size in each step: each counts as the mean
        usual = round(sum(count * times for count, times in of_kept.items()) / of_kept.total())
        samples, mean = [usual] * len(samples), ", the mean of batches that change,"
    findings = []
    if not known:
        called = any(step.each for step in calls)
        why = (
            "the inputs of the script's model do not show it"
            if called
            else "no call of the script's model was seen"
        )
        findings.append(AttachCode.BATCH_NOT_SEEN.finding(why))
    elif option is None:
        cut = f" in {micro_batches} micro-batches" if micro_batches > 1 else ""
        findings.append(
            AttachCode.BATCH_AS_SEEN.finding(
                f"{usual} samples a step and process{mean}{cut}, by the inputs of the script's model"
            )
        )
    kept = [one and count == usual for one, count in zip(alone, samples, strict=True)]
    if left_out := kept.count(False):
        what = "steps" if observed.cycle == 1 else "cycles of steps"
        findings.append(
            AttachCode.STEPS_LEFT_OUT.finding(
                f"{left_out} of {len(kept)} timed {what} are left out: {alone.count(False)} with calls of the model in "
                f"evaluation mode or the script's profiler, the others with a number of samples other than {usual}"
            )
        )
    return Batches(samples, kept, -(-usual // devices), micro_batches, known, findings)


def _means(values: Sequence[float], cycle: int) -> list[float]:
    """The mean of each whole cycle of consecutive values."""
    return [
        sum(values[start : start + cycle]) / cycle
        for start in range(0, len(values) - cycle + 1, cycle)
    ]


def _samples_of(each: list[int], micro_batches: int) -> int:
    """Samples of a step's calls; a micro-batch may need several calls (a model that is called twice
    on each sample).

    0 where a call's are unknown.
    """
    if micro_batches == 1:
        return each[0] if each else 0
    if 0 in each:
        return 0
    whole = each and len(each) % micro_batches == 0
    return sum(each) * micro_batches // len(each) if whole else sum(each)


def model_sizes(detected: DetectedStrategy, calls: ModelCalls, warm_up: WarmUp) -> ParameterSizes:
    """Sizes now of the models that were called, and of further parameters that the optimizers
    train.
    """
    modules: Sequence[nn.Module] = detected.ddp or calls.modules
    parameters: dict[int, Tensor] = {
        id(one): one for module in modules for one in module.parameters()
    }
    if not detected.ddp:
        parameters |= {id(one): one for one in warm_up.trained}
    buffers = {id(one): one for module in modules for one in module.buffers()}
    return tensor_sizes(parameters.values(), buffers.values(), warm_up.trained_ids)


def _findings(observed: Observed, cell: str) -> Iterator[Finding]:
    detected, settings = observed.detected, observed.settings
    profiled, steps = sum(step.profiled for step in observed.timed.calls), len(observed.timed.calls)
    if observed.profiler_watch.seen and not observed.is_traced:
        yield AttachCode.SCRIPT_PROFILES.finding("the script uses torch.profiler: no trace")
    elif 2 * profiled > steps:
        yield AttachCode.SCRIPT_PROFILES.finding(
            f"the script's torch.profiler was on in {profiled} of {steps} timed steps"
        )
    wrapping = map(inner_module, observed.calls.modules)
    idle = [len(one.device_ids) for one in wrapping if isinstance(one, DataParallel)]
    if idle and detected.traits.baseline:
        yield AttachCode.DATA_PARALLEL_DID_NOTHING.finding(
            f"nn.DataParallel has {counted(max(idle), 'GPU')} here"
        )
    if observed.ended_early is not None:
        options = settings.options_for(observed.steps, counters=observed.counters_apply)
        advice = (
            f"attach with {options}, or let the script train longer"
            if options
            else "let the script train longer"
        )
        advice += further_hint(observed.ended_early, settings)
        if observed.ended_early == STEP_RECORDED:
            advice = FOR_GRAPHS
        yield AttachCode.SCRIPT_ENDED_EARLY.finding(
            f"{observed.ended_early}: {observed.early_text()}", advice, about=cell
        )
    if settings.warmup_steps < MINIMUM_WARMUP_STEPS:
        yield AttachCode.SHORT_WARM_UP.finding(
            f"the warm-up had {counted(settings.warmup_steps, 'step')}"
        )
    if observed.traced is not None and (steps := observed.traced.interrupted_steps):
        message = f"in {steps} traced steps the model was called in evaluation mode"
        yield AttachCode.TRACED_BESIDE_OTHER_WORK.finding(message)
    if (
        len(
            kinds := [
                *map(type, observed.warm_up.optimizers),
                *observed.warm_up.late_optimizers.values(),
            ]
        )
        > 1
    ):
        names = ", ".join(dict.fromkeys(one.__name__ for one in kinds))
        in_use = f"{counted(len(kinds), 'optimizer')} in use ({names})"
        by = {
            "optimizer": "with the first one's",
            "forward": "where the model is called",
            "call": "where the loop says",
        }
        yield AttachCode.STEPS_OF_FIRST_OPTIMIZER.finding(
            f"{in_use}: steps end {by[observed.warm_up.steps_by]}"
        )
    yield from _cycle_findings(observed)
    if len(detected.ddp) > 1:
        message = f"DDP's counters were not read: {_counters_missing(observed)}"
        advice = "no action needed: whether every rank communicates in every step is still checked"
        yield RunCode.COUNTERS_NOT_COMPARED.finding(message, advice, severity="info")


def _cycle_findings(observed: Observed) -> Iterator[Finding]:
    """What is known of steps that do different things: their cycle, or that none was seen in the
    warm-up.
    """
    cycle, kinds = (
        observed.warm_up.cycle,
        Counter(without_short([step.events for step in observed.timed.calls])),
    )
    if cycle is not None and cycle > 1:
        timed = counted(len(observed.timed.calls) // cycle, "whole cycle")
        yield AttachCode.STEP_CYCLES.finding(
            f"the script's steps repeat in cycles of {cycle}: {timed} timed"
        )
    elif len(kinds) > 1:
        rare = kinds.total() - max(kinds.values())
        steps = len(observed.timed.calls)
        differing = (
            f"{rare} of {steps} timed steps call models or optimizers more often than the others"
        )
        text = f"{differing}, and no cycle was seen in {counted(observed.warm_up.steps, 'warm-up step')}"
        yield AttachCode.STEPS_UNLIKE.finding(text)


def _counters_missing(observed: Observed) -> str | None:
    if not observed.detected.ddp or (observed.counted is not None and observed.counted.counters):
        return None
    if (models := len(observed.detected.ddp)) > 1:
        return f"they describe one DDP model, and the script has {models}"
    if observed.ended_early is not None:
        return "the script ended before that"
    return "the script uses a profiler" if observed.profiler_watch.seen else None


def _model_name(modules: Iterable[nn.Module]) -> str:
    """The class names of a script's models, such as ``GPT``."""
    found = [inner_module(module) for module in modules]
    names = [type(inner_module(getattr(module, "module", module))).__name__ for module in found]
    return " and ".join(dict.fromkeys(names)) or "a model that was not seen"
