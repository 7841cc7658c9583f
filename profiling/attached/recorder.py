"""Writes what one process measured of a script as the files of a repeat."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from dpscope.profiling.attached.batches import Batches, batch_findings, batches_of
from dpscope.profiling.attached.findings import counters_missing, script_findings
from dpscope.profiling.attached.job import SavedPart
from dpscope.profiling.attached.model_calls import ModelCalls, inner_module
from dpscope.profiling.attached.stages import Observed
from dpscope.profiling.attached.warm_up import WarmUp
from dpscope.profiling.attached.wrapped_models import (
    DetectedStrategy,
    is_model_parallel,
    options_of,
)
from dpscope.profiling.instruments.ddp_counters import tensor_sizes
from dpscope.profiling.instruments.step_timer import StepSample, save_samples
from dpscope.profiling.records.run import (
    AttachedProcess,
    Cell,
    ParameterSizes,
    RankResult,
    TimedBlock,
)
from dpscope.profiling.store.files import write_json


def save_process(observed: Observed) -> SavedPart:
    """Write this process's samples, counters and result; its traces are written before."""
    place = observed.place
    folder = observed.folder
    detected = observed.detected
    window = observed.timed
    calls = observed.calls
    batches = batches_of(observed)
    timed = _kept_samples(observed, batches)
    traced = observed.traced.samples() if observed.traced is not None else []
    folder.path.mkdir(parents=True, exist_ok=True)
    save_samples(folder.samples_path(place.node, place.rank), [*timed, *traced])
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
        blocks=(_block(observed, timed),),
        memory=window.memory,
        findings=(*batch_findings(observed, batches), *script_findings(observed, cell.name)),
        attached=AttachedProcess(
            cell=cell,
            reduction_known=detected.unknown_hook is None and len(detected.ddp) == 1,
            batch_known=batches.known,
            counters_missing=counters_missing(observed),
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


def _kept_samples(observed: Observed, batches: Batches) -> list[StepSample]:
    step_us = observed.timed.durations_us
    return [
        StepSample("timed", None, step, step_us[step], math.nan, batches.samples[step])
        for step, is_kept in enumerate(batches.kept)
        if is_kept
    ]


def _block(observed: Observed, timed: Sequence[StepSample]) -> TimedBlock:
    """The kept steps; their whole duration was measured if none is left out."""
    window = observed.timed
    is_whole = len(timed) == len(window.durations_us)
    kept_s = sum(sample.step_us for sample in timed) / 1e6
    return TimedBlock(
        epoch=None,
        steps=len(timed),
        samples=sum(sample.samples for sample in timed),
        duration_s=window.duration_s if is_whole else kept_s,
        data_wait_s=None,
    )


def model_sizes(detected: DetectedStrategy, calls: ModelCalls, warm_up: WarmUp) -> ParameterSizes:
    """Sizes now of the models that were called, and of further parameters that the optimizers
    train.
    """
    modules: Sequence[nn.Module] = detected.ddp or calls.modules
    parameters: dict[int, Tensor] = {
        id(parameter): parameter for module in modules for parameter in module.parameters()
    }
    if not detected.ddp:
        parameters |= {id(parameter): parameter for parameter in warm_up.trained}
    buffers = {id(buffer): buffer for module in modules for buffer in module.buffers()}
    return tensor_sizes(parameters.values(), buffers.values(), warm_up.trained_ids)


def _model_name(modules: Iterable[nn.Module]) -> str:
    """The class names of a script's models, such as ``GPT``."""
    unwrapped = [inner_module(module) for module in modules]
    models = [inner_module(getattr(module, "module", module)) for module in unwrapped]
    names = dict.fromkeys(type(model).__name__ for model in models)
    return " and ".join(names) or "a model that was not seen"
