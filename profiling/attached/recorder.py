"""Writes what one process measured of a script as the files of a repeat."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel

from dpscope.profiling.attached.interception import ProfilerWatch
from dpscope.profiling.attached.job import Place, SavedPart, Transport
from dpscope.profiling.attached.model_calls import ModelCalls, StepCalls, inner_module
from dpscope.profiling.attached.settings import AttachSettings, resumed_hint
from dpscope.profiling.attached.windows import (
    CountedWindow,
    TimedWindow,
    TracedWindow,
    kept_steps,
    timed_block,
    timed_samples,
)
from dpscope.profiling.attached.wrapped_models import DetectedStrategy, WrapperLog, is_model_parallel, options_of
from dpscope.profiling.instruments.ddp_counters import tensor_sizes
from dpscope.profiling.instruments.step_timer import save_samples
from dpscope.profiling.records.attach_codes import AttachCode
from dpscope.profiling.records.config import MINIMUM_WARMUP_STEPS
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run import AttachedProcess, Cell, ParameterSizes, RankResult
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RepeatFolder


@dataclass
class Observed:
    """What was observed of a script up to its timed window, and the windows."""

    settings: AttachSettings
    place: Place
    transport: Transport
    device: torch.device
    detected: DetectedStrategy
    wrappers: WrapperLog
    calls: ModelCalls
    model: str  # the class of the model
    trained: list[Tensor]  # the parameters of the optimizers that stepped
    trained_ids: frozenset[int]  # of the parameters that required a gradient when their optimizer stepped
    optimizers: tuple[str, ...]  # their classes
    backwards: int  # backward passes of a step, 0 where they could not be counted
    profiler_watch: ProfilerWatch
    timed: TimedWindow
    traced: TracedWindow | None = None
    counted: CountedWindow | None = None
    ended_early: str | None = None  # how the script ended before the windows did
    steps: int = 0  # of the whole script, where it ended early

    @property
    def counters_apply(self) -> bool:
        """Whether DDP's counters describe all reductions of a step."""
        return len(self.detected.ddp) == 1 and self.place.world_size > 1

    def early_text(self) -> str:
        """What was measured of a script that ended early, and what is missing."""
        traced = self.settings.traced_steps if self.traced is not None and self.traced.complete else "none"
        without = ", and DDP's counters are missing" if self.counters_apply else ""
        return f"{len(self.timed.calls)} of {counted(self.settings.steps, 'step')} were timed, {traced} traced{without}"


@dataclass
class Batches:
    """The number of this process's samples in each timed step."""

    samples: list[int]
    kept: list[bool]  # steps that only train, on the usual batch
    per_device: int
    micro_batches: int
    known: bool  # else a step counts as one sample per device
    findings: list[Finding] = field(default_factory=list)


def save_process(observed: Observed, folder: RepeatFolder) -> SavedPart:
    """Write this process's samples, counters and result; its traces are written before."""
    place = observed.place
    batches = _batches(observed)
    timed = timed_samples(observed.timed, batches.samples, batches.kept)
    traced = observed.traced.samples() if observed.traced is not None else []
    if observed.counted is not None and observed.counted.complete:
        write_json(folder.counters_path(place.node, place.rank), observed.counted.counters)
    save_samples(folder.samples_path(place.node, place.rank), (*timed, *traced))
    options = options_of(observed.detected, observed.wrappers, batches.micro_batches, observed.calls.precision)
    nodes = min(place.nodes, observed.detected.devices) if not observed.detected.traits.one_process else 1
    cell = Cell(observed.detected.strategy, observed.detected.devices, batches.per_device, options=options, nodes=nodes)
    names = (
        tuple(torch.cuda.get_device_name(index) for index in range(observed.detected.devices))
        if observed.device.type == "cuda" and observed.detected.traits.peer_copies
        else ()
    )
    result = RankResult(
        rank=place.rank,
        node=place.node,
        local_rank=place.local_rank,
        world_size=place.world_size,
        device_names=names
        or (torch.cuda.get_device_name(observed.device) if observed.device.type == "cuda" else "cpu",),
        threads=torch.get_num_threads(),
        backend=observed.transport.backend,
        nccl_engine=observed.transport.nccl_engine,
        loader_workers=None,
        steps_per_epoch=None,
        model=_sizes(observed),
        blocks=(timed_block(observed.timed, timed),),
        memory=observed.timed.memory,
        findings=(*batches.findings, *_findings(observed)),
        attached=AttachedProcess(
            cell=cell,
            reduction_known=observed.detected.unknown_hook is None and len(observed.detected.ddp) == 1,
            batch_known=batches.known,
            counters_missing=_counters_missing(observed),
            inputs=observed.calls.inputs,
            model_parallel=is_model_parallel(observed.detected, observed.trained),
        ),
    )
    write_json(folder.rank_path(place.node, place.rank), result)
    return SavedPart(
        observed.settings, place.world_size, "cuda" if observed.device.type == "cuda" else "cpu", observed.model
    )


def _batches(observed: Observed) -> Batches:
    calls, option = observed.timed.calls, observed.settings.batch_size
    devices = observed.detected.devices if observed.detected.traits.peer_copies else 1  # of this process
    # with several optimizers, each may have its own backward passes
    micro_batches = max(1, observed.backwards) if len(observed.optimizers) < 2 else 1
    known = option is not None or any(step.first_samples for step in calls)
    samples = [_samples_of(step, micro_batches) if option is None else option * devices for step in calls]
    if not known:
        samples, micro_batches = [devices] * len(calls), 1
    alone = kept_steps(calls)
    of_kept = Counter(count for count, one in zip(samples, alone, strict=True) if one)
    usual, steps = max(of_kept.items(), key=lambda one: (one[1], one[0]))
    if changing := 2 * steps < of_kept.total():  # a different size in each step: each counts as the mean
        usual = round(sum(count * times for count, times in of_kept.items()) / of_kept.total())
        samples = [usual] * len(samples)
    findings = []
    if not known:
        findings = [AttachCode.BATCH_NOT_SEEN.finding("the calls of the script's model have no tensor argument")]
    elif option is None:
        findings = [AttachCode.BATCH_AS_SEEN.finding(_batch_text(usual, changing, micro_batches))]
    kept = [one and count == usual for one, count in zip(alone, samples, strict=True)]
    if left_out := kept.count(False):
        findings.append(
            AttachCode.STEPS_LEFT_OUT.finding(
                f"{left_out} of {len(kept)} timed steps are left out: {alone.count(False)} with calls of the model in evaluation "
                f"mode, the others with a number of samples other than {usual}"
            )
        )
    return Batches(samples, kept, -(-usual // devices), micro_batches, known, findings)


def _samples_of(step: StepCalls, micro_batches: int) -> int:
    """Samples of a step; a micro-batch may need several calls (a model that is called twice on each sample)."""
    if not step.training or step.training % micro_batches:
        return step.samples if micro_batches > 1 else step.first_samples
    return step.first_samples if micro_batches == 1 else step.samples * micro_batches // step.training


def _batch_text(samples: int, changing: bool, micro_batches: int) -> str:
    cut = f" in {micro_batches} micro-batches" if micro_batches > 1 else ""
    mean = ", the mean of batches that change," if changing else ""
    return (
        f"a step of a process trains on {samples}{mean}{cut}, by the first dimension of the model's first input tensor"
    )


def _sizes(observed: Observed) -> ParameterSizes:
    """Sizes of the models that were called, and of further parameters that the optimizers train."""
    modules: Sequence[nn.Module] = observed.detected.ddp or observed.calls.modules
    parameters: dict[int, Tensor] = {id(one): one for module in modules for one in module.parameters()}
    if not observed.detected.ddp:
        parameters |= {id(one): one for one in observed.trained}
    buffers = {id(one): one for module in modules for one in module.buffers()}
    return tensor_sizes(parameters.values(), buffers.values(), observed.trained_ids)


def _findings(observed: Observed) -> list[Finding]:
    findings, detected = [], observed.detected
    if observed.profiler_watch.seen:
        traced = observed.traced is not None and observed.traced.complete
        findings.append(
            AttachCode.SCRIPT_PROFILES.finding(
                "the script uses torch.profiler: "
                + ("dpscope's trace was complete before that" if traced else "no trace")
            )
        )
    wrapping = [inner_module(one) for one in observed.calls.modules]
    idle = [len(one.device_ids) for one in wrapping if isinstance(one, DataParallel)]
    if idle and detected.traits.baseline:
        findings.append(
            AttachCode.DATA_PARALLEL_DID_NOTHING.finding(f"nn.DataParallel has {counted(max(idle), 'GPU')} here")
        )
    if observed.ended_early is not None:
        options = observed.settings.options_for(observed.steps, counters=observed.counters_apply)
        advice = f"attach with {options}, or let the script train longer" if options else "let the script train longer"
        advice += resumed_hint(observed.ended_early, observed.settings)
        findings.append(
            AttachCode.SCRIPT_ENDED_EARLY.finding(f"{observed.ended_early}: {observed.early_text()}", advice)
        )
    if observed.settings.warmup_steps < MINIMUM_WARMUP_STEPS:
        findings.append(
            AttachCode.SHORT_WARM_UP.finding(f"the warm-up had {counted(observed.settings.warmup_steps, 'step')}")
        )
    if observed.traced is not None and (steps := observed.traced.interrupted_steps):
        findings.append(
            AttachCode.TRACED_BESIDE_OTHER_WORK.finding(
                f"in {steps} traced steps the model was called in evaluation mode"
            )
        )
    if len(observed.optimizers) > 1:
        kinds = ", ".join(dict.fromkeys(observed.optimizers))
        findings.append(
            AttachCode.STEPS_OF_FIRST_OPTIMIZER.finding(
                f"{counted(len(observed.optimizers), 'optimizer')} in use ({kinds}): steps end with the first one's"
            )
        )
    if detected.group_size is not None and detected.group_size < detected.devices:
        findings.append(
            AttachCode.REDUCED_IN_GROUPS.finding(
                f"gradients are reduced among {detected.group_size} of {detected.devices}"
            )
        )
    if len(detected.ddp) > 1 and (why := _counters_missing(observed)) is not None:
        findings.append(AttachCode.COUNTERS_NOT_READ.finding(f"DDP's counters were not read: {why}"))
    if detected.unknown_hook is not None:
        findings.append(AttachCode.HOOK_NOT_KNOWN.finding(f"gradients travel through {detected.unknown_hook}"))
    return findings


def _counters_missing(observed: Observed) -> str | None:
    if not observed.detected.ddp or (observed.counted is not None and observed.counted.complete):
        return None
    if observed.ended_early is not None:
        return "the script ended before that"
    if observed.profiler_watch.seen:
        return "the script uses a profiler"
    return (
        f"they describe one DDP model, and the script has {len(observed.detected.ddp)}"
        if len(observed.detected.ddp) > 1
        else None
    )


def model_name(modules: Iterable[nn.Module]) -> str:
    """The class names of a script's models, such as ``GPT``."""
    found = [inner_module(module) for module in modules]
    names = [type(inner_module(getattr(module, "module", module))).__name__ for module in found]
    return " and ".join(dict.fromkeys(names)) or "a model that was not seen"
