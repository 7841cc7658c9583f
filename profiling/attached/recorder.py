"""What one process measured of a script becomes the files of a repeat."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel

from dpscope.profiling.attached.finished_job import SavedPart
from dpscope.profiling.attached.messages import after_another_job
from dpscope.profiling.attached.model_calls import ModelCalls, StepCalls, inner_module
from dpscope.profiling.attached.own_profiler import OwnProfiler
from dpscope.profiling.attached.place import AttachedPlace, Transport
from dpscope.profiling.attached.settings import AttachSettings
from dpscope.profiling.attached.windows import (
    CountedWindow,
    TimedWindow,
    TracedWindow,
    kept_steps,
    timed_block,
    timed_samples,
)
from dpscope.profiling.attached.wrapped_models import Constructed, ToldStrategy, is_model_parallel, options_of
from dpscope.profiling.instruments.parameter_sizes import tensor_sizes
from dpscope.profiling.instruments.step_timer import save_samples
from dpscope.profiling.records.attach_codes import AttachCode
from dpscope.profiling.records.config import MINIMUM_WARMUP_STEPS
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run import AttachedProcess, Cell, ParameterSizes, RankResult
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RepeatFolder


@dataclass
class Seen:
    """What was seen of a script up to its timed window, and the windows."""

    settings: AttachSettings
    place: AttachedPlace
    transport: Transport
    device: torch.device
    told: ToldStrategy
    constructed: Constructed
    calls: ModelCalls
    model: str  # the class of the model
    trained: list[Tensor]  # the parameters of the optimizers that stepped
    trained_ids: frozenset[int]  # of the parameters that required a gradient when their optimizer stepped
    optimizers: tuple[str, ...]  # their classes
    backwards: int  # backward passes of a step, 0 where they could not be counted
    own_profiler: OwnProfiler
    timed: TimedWindow
    traced: TracedWindow | None = None
    counted: CountedWindow | None = None
    ended_early: str | None = None  # how the script ended before the windows did
    steps: int = 0  # of the whole script, where it ended early

    @property
    def counters_tell(self) -> bool:
        """Whether DDP's counters describe all that is reduced in a step."""
        return len(self.told.ddp) == 1 and self.place.world_size > 1

    def early_text(self) -> str:
        """What there is of a script that ended early, and what lacks."""
        traced = self.settings.traced_steps if self.traced is not None and self.traced.complete else "none"
        without = ", and DDP's counters are missing" if self.counters_tell else ""
        return f"{len(self.timed.calls)} of {counted(self.settings.steps, 'step')} were timed, {traced} traced{without}"


@dataclass
class Batches:
    """On how many samples of this process each timed step trained."""

    samples: list[int]
    kept: list[bool]  # steps of training alone, on the usual batch
    per_device: int
    micro_batches: int
    known: bool  # else a step counts as one sample of each device
    findings: list[Finding] = field(default_factory=list)


def save_process(seen: Seen, folder: RepeatFolder) -> SavedPart:
    """Write this process's samples, counters and result; its traces are there already."""
    place = seen.place
    batches = _batches(seen)
    timed = timed_samples(seen.timed, batches.samples, batches.kept)
    traced = seen.traced.samples() if seen.traced is not None else []
    if seen.counted is not None and seen.counted.complete:
        write_json(folder.counters_path(place.node, place.rank), seen.counted.counters)
    save_samples(folder.samples_path(place.node, place.rank), (*timed, *traced))
    options = options_of(seen.told, seen.constructed, batches.micro_batches, seen.calls.precision)
    nodes = min(place.nodes, seen.told.devices) if not seen.told.traits.one_process else 1
    cell = Cell(seen.told.strategy, seen.told.devices, batches.per_device, options=options, nodes=nodes)
    names = tuple(torch.cuda.get_device_name(index) for index in range(seen.told.devices)) if _on_gpus(seen) else ()
    result = RankResult(
        rank=place.rank,
        node=place.node,
        local_rank=place.local_rank,
        world_size=place.world_size,
        device_names=names or (_device_name(seen.device),),
        threads=torch.get_num_threads(),
        backend=seen.transport.backend,
        nccl_engine=seen.transport.nccl_engine,
        loader_workers=None,
        steps_per_epoch=None,
        model=_sizes(seen),
        blocks=(timed_block(seen.timed, timed),),
        memory=seen.timed.memory,
        findings=(*batches.findings, *_findings(seen)),
        attached=AttachedProcess(
            cell=cell,
            reduction_known=seen.told.unknown_hook is None and len(seen.told.ddp) == 1,
            batch_known=batches.known,
            counters_missing=_counters_missing(seen),
            inputs=seen.calls.inputs,
            model_parallel=is_model_parallel(seen.told, seen.trained),
        ),
    )
    write_json(folder.rank_path(place.node, place.rank), result)
    return SavedPart(seen.settings, place.world_size, "cuda" if seen.device.type == "cuda" else "cpu", seen.model)


def _batches(seen: Seen) -> Batches:
    calls, option = seen.timed.calls, seen.settings.batch_size
    devices = seen.told.devices if seen.told.traits.peer_copies else 1  # of this process
    micro_batches = _micro_batches(seen)
    known = option is not None or any(step.first_samples for step in calls)
    samples = [_samples_of(step, micro_batches) if option is None else option * devices for step in calls]
    if not known:
        samples, micro_batches = [devices] * len(calls), 1
    alone = kept_steps(calls)
    of_kept = Counter(count for count, one in zip(samples, alone, strict=True) if one)
    usual, steps = max(of_kept.items(), key=lambda one: (one[1], one[0]))
    if changing := 2 * steps < of_kept.total():  # of another size in every step: each counts as the mean
        usual = round(sum(count * times for count, times in of_kept.items()) / of_kept.total())
        samples = [usual] * len(samples)
    findings = []
    if not known:
        findings = [AttachCode.BATCH_NOT_SEEN.finding("no tensor was seen in the calls of the script's model")]
    elif option is None:
        findings = [AttachCode.BATCH_AS_SEEN.finding(_batch_text(usual, changing, micro_batches))]
    kept = [one and count == usual for one, count in zip(alone, samples, strict=True)]
    if left_out := kept.count(False):
        findings.append(
            AttachCode.STEPS_LEFT_OUT.finding(
                f"{left_out} of {len(kept)} timed steps are left out: {alone.count(False)} held calls of the model in evaluation "
                f"mode, the others trained on another number of samples than {usual}"
            )
        )
    return Batches(samples, kept, -(-usual // devices), micro_batches, known, findings)


def _micro_batches(seen: Seen) -> int:
    """Backward passes of a step where one optimizer steps; of several each may have its own."""
    return max(1, seen.backwards) if len(seen.optimizers) < 2 else 1


def _samples_of(step: StepCalls, micro_batches: int) -> int:
    """Of a step's calls, of which each micro-batch may have several (of a model that is called twice on each sample)."""
    if not step.training or step.training % micro_batches:
        return step.samples if micro_batches > 1 else step.first_samples
    return step.first_samples if micro_batches == 1 else step.samples * micro_batches // step.training


def _batch_text(samples: int, changing: bool, micro_batches: int) -> str:
    cut = f" in {micro_batches} micro-batches" if micro_batches > 1 else ""
    mean = ", the mean of batches that change," if changing else ""
    return f"a step of a process trains on {samples}{mean}{cut}, by the first dimension of the first tensor its model is given"


def _sizes(seen: Seen) -> ParameterSizes:
    """Of the models that were called, and of what the optimizers train beside them."""
    modules: Sequence[nn.Module] = seen.told.ddp or seen.calls.modules
    parameters: dict[int, Tensor] = {id(one): one for module in modules for one in module.parameters()}
    if not seen.told.ddp:
        parameters |= {id(one): one for one in seen.trained}
    buffers = {id(one): one for module in modules for one in module.buffers()}
    return tensor_sizes(parameters.values(), buffers.values(), seen.trained_ids)


def _findings(seen: Seen) -> list[Finding]:
    """What is to be told of this process's measurement beside its batch."""
    found, told = [], seen.told
    if seen.own_profiler.seen:
        traced = seen.traced is not None and seen.traced.complete
        found.append(
            AttachCode.SCRIPT_PROFILES.finding(
                "the script uses torch.profiler itself: "
                + ("its steps were traced before that" if traced else "no trace")
            )
        )
    wrapping = [inner_module(one) for one in seen.calls.modules]
    idle = [len(one.device_ids) for one in wrapping if isinstance(one, DataParallel)]
    if idle and told.traits.baseline:
        found.append(
            AttachCode.DATA_PARALLEL_DID_NOTHING.finding(f"nn.DataParallel has {counted(max(idle), 'GPU')} here")
        )
    if seen.ended_early is not None:
        options = seen.settings.shorter(seen.steps, counted=seen.counters_tell)
        advice = f"attach with {options}, or let the script train longer" if options else "let the script train longer"
        advice += after_another_job(seen.ended_early, seen.settings)
        found.append(AttachCode.SCRIPT_ENDED_EARLY.finding(f"{seen.ended_early}: {seen.early_text()}", advice))
    if seen.settings.warmup_steps < MINIMUM_WARMUP_STEPS:
        found.append(AttachCode.SHORT_WARM_UP.finding(f"the warm-up had {counted(seen.settings.warmup_steps, 'step')}"))
    if seen.traced is not None and (steps := seen.traced.interrupted_steps):
        found.append(
            AttachCode.TRACED_BESIDE_OTHER_WORK.finding(
                f"in {steps} traced steps the model was called in evaluation mode"
            )
        )
    if len(seen.optimizers) > 1:
        kinds = ", ".join(dict.fromkeys(seen.optimizers))
        found.append(
            AttachCode.STEPS_OF_FIRST_OPTIMIZER.finding(
                f"{counted(len(seen.optimizers), 'optimizer')} in use ({kinds}): steps end with the first one's"
            )
        )
    if told.group_size is not None and told.group_size < told.devices:
        found.append(
            AttachCode.REDUCED_IN_GROUPS.finding(f"gradients are reduced among {told.group_size} of {told.devices}")
        )
    if len(told.ddp) > 1 and (why := _counters_missing(seen)) is not None:
        found.append(AttachCode.COUNTERS_NOT_READ.finding(f"DDP's own counters were not read: {why}"))
    if told.unknown_hook is not None:
        found.append(AttachCode.HOOK_NOT_KNOWN.finding(f"gradients travel through {told.unknown_hook}"))
    return found


def _counters_missing(seen: Seen) -> str | None:
    if not seen.told.ddp or (seen.counted is not None and seen.counted.complete):
        return None
    if seen.ended_early is not None:
        return "the script ended before that"
    if seen.own_profiler.seen:
        return "the script has a profiler of its own"
    return f"they tell of one DDP model, and the script has {len(seen.told.ddp)}" if len(seen.told.ddp) > 1 else None


def _on_gpus(seen: Seen) -> bool:
    return seen.device.type == "cuda" and seen.told.traits.peer_copies


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def model_name(modules: Iterable[nn.Module]) -> str:
    """The classes of a script's models, such as ``GPT``."""
    found = [inner_module(module) for module in modules]
    names = [type(inner_module(getattr(module, "module", module))).__name__ for module in found]
    return " and ".join(dict.fromkeys(names)) or "a model that was not seen"
