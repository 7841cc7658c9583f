"""One process's part in the trainings of one cell of `dpscope equal`: k recorded steps from the
seed, without randomness.
"""

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpscope.launch.jobs.process_group import (
    devices_of,
    join_process_group,
    limit_collectives,
    wait_limit_s,
)
from dpscope.launch.jobs.worker_process import TorchrunPlace, starting_up
from dpscope.launch.learning.recording import TrainingRecorder
from dpscope.launch.workload.input_pipeline import MicroBatching, SyntheticBatches, open_stream
from dpscope.launch.workload.models import build_model
from dpscope.launch.workload.nested import called, mapped, moved
from dpscope.launch.workload.strategies import wrap_for
from dpscope.launch.workload.train_step import TrainStep
from dpscope.profiling.records.equality import EqualityJob, EqualitySettings, TrainingKind
from dpscope.profiling.records.run import Cell


def switch_off_random_layers(model: nn.Module) -> list[str]:
    """Put dropout and similar layers into evaluation mode, where they have no effect; returns their
    names.

    Their random numbers depend on the generator of each process and thread, which differ between
    strategies.
    """
    switched_off = []
    for name, module in model.named_modules():
        if any(word in type(module).__name__.lower() for word in ("dropout", "stochasticdepth")):
            module.eval()
            switched_off.append(name)
    return switched_off


def freeze_batch_norm(model: nn.Module, inputs: Any) -> None:
    """Make every batch norm use the statistics of `inputs`; its weight and bias are still trained.

    Of each batch it would normalise by the mean and variance of what a device gets (Ioffe and
    Szegedy 2015): strategies that divide the batch would differ by design. With the initial
    statistics (mean 0, variance 1) nothing would be normalised, and a deep network's first losses
    overflow.
    """
    norms = [
        module
        for module in model.modules()
        if isinstance(module, _BatchNorm) and module.track_running_stats
    ]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = 1.0  # nothing of earlier batches: those of the batch that it sees
    with torch.no_grad():
        called(model, inputs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()


def to_double(model: nn.Module) -> nn.Module:
    """The model in double precision; it still takes batches in single precision."""

    def widen(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
        return mapped(_doubled, inputs), mapped(_doubled, named)

    model.register_forward_pre_hook(widen, with_kwargs=True)
    return model.double()


def _doubled(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def nudge(model: nn.Module, seed: int) -> None:
    """Move every weight to one of its two neighbouring floating-point numbers, chosen at random.

    Rounding in a sum of products is equivalent to relative changes of its terms by a few units in
    the last place (backward error; Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed.,
    2002, section 3.1): this makes one such change, of one unit.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            up = torch.rand(parameter.shape, generator=generator) < 0.5
            target = torch.where(up, torch.inf, -torch.inf).to(parameter)
            parameter.copy_(torch.nextafter(parameter, target))


def run_job(settings: EqualitySettings, job: EqualityJob, out: Path, place: TorchrunPlace) -> None:
    """Run and save all trainings of a job in this process."""
    torch.set_num_threads(settings.threads_per_process)
    device = devices_of(settings.device, place, job.cell)[0]
    # Full precision and fixed algorithms: TF32 has 10 bits of mantissa, and benchmarks choose
    # algorithms by timing.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    if job.cell.per_device:
        join_process_group(device, wait_limit_s(device, settings.config.timeout_s))
    for training in job.trainings:
        place.report(training)
        _train(settings, job.cell, training, place.rank, device, job.folder(out) / training)
        limit_collectives(device, settings.config.timeout_s)
    if distributed.is_initialized():
        distributed.barrier()


def _train(
    settings: EqualitySettings,
    cell: Cell,
    training: TrainingKind,
    rank: int,
    device: torch.device,
    folder: Path,
) -> None:
    """Take the steps of one training in this process and save their record."""
    workload = settings.config.workload
    share = settings.global_batch_size // settings.devices
    # A single device gets DataParallel's batches, padding included.
    whole_batches = Cell(strategy="dp", devices=settings.devices, batch_size=share)
    torch.manual_seed(workload.seed)
    built = build_model(workload.model)
    model = built.model.to(device).train()
    random_layers = switch_off_random_layers(model)
    here = msgspec.structs.replace(workload, workers=0, workers_total=None)
    # the same for every process
    inputs = open_stream(here, whole_batches, built, 0, device).next_batch()[0]
    freeze_batch_norm(model, moved(inputs, device))
    if settings.precision == "float64":
        model = to_double(model)
        if (loss := built.loss) is not None:  # computed from targets in the training's precision
            built = dataclasses.replace(
                built, loss=lambda outputs, targets: loss(outputs, mapped(_doubled, targets))
            )
    if training == "rounding":
        nudge(model, workload.seed)
    recorder = TrainingRecorder(model)
    stream_cell = whole_batches
    stream_rank = 0
    if cell.per_device:
        stream_cell = msgspec.structs.replace(whole_batches, strategy="ddp")
        stream_rank = rank
    batches = open_stream(workload, stream_cell, built, stream_rank, device)
    # each step trains on the batch that is put there
    fetched = SyntheticBatches((None, None), (), steps_per_epoch=1)
    optimizer = settings.config.optimizer
    whole = MicroBatching(count=1)
    with starting_up():  # the optimizer and DDP import torch's compiler
        wrapped = wrap_for(model, cell, device)
        train_step = TrainStep(wrapped, fetched, optimizer, workload.amp, device, whole, built)
    train_step.optimizer.register_step_pre_hook(lambda *_: recorder.add_gradients())
    for _ in range(settings.steps):
        fetched.batch = batches.next_batch()
        train_step()
        assert train_step.last_loss is not None
        recorder.add_step(train_step.last_loss.item(), batches.samples)
    batches.close()
    recorder.save(folder, rank, random_layers)
