"""One process's part in the trainings of one cell of `dpscope equal`: k recorded steps from the seed, without randomness."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpscope.launch.equality.recording import ForwardRecorder, TrainingRecorder
from dpscope.launch.jobs.process_group import devices_of, join_limit_s, join_process_group, limit_collectives
from dpscope.launch.jobs.worker_process import TorchrunPlace, starting_up
from dpscope.launch.workload.image_sets import Batch
from dpscope.launch.workload.input_pipeline import BatchStream, MicroBatching, open_stream
from dpscope.launch.workload.models import build_model
from dpscope.launch.workload.nested import called, mapped, moved
from dpscope.launch.workload.strategies import wrap_for
from dpscope.launch.workload.tasks import BuiltModel
from dpscope.launch.workload.train_step import TrainStep
from dpscope.profiling.records.equality import EqualityJob, EqualitySettings, EqualityTraining
from dpscope.profiling.records.run import Cell

_RANDOM_LAYERS = ("dropout", "stochasticdepth")


def switch_off_random_layers(model: nn.Module) -> list[str]:
    """Put dropout and similar layers into evaluation mode, where they have no effect; returns their names.

    Their random numbers depend on the generator of each process and thread, which differ between strategies.
    """
    found = []
    for name, module in model.named_modules():
        if any(word in type(module).__name__.lower() for word in _RANDOM_LAYERS):
            module.eval()
            found.append(name)
    return found


def freeze_batch_norm(model: nn.Module, inputs: Any) -> None:
    """Make every batch norm use the statistics of `inputs`; its weight and bias are still trained.

    With the initial statistics (mean 0, variance 1) nothing would be normalised, and a deep network's first losses overflow.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a cumulative mean: after one batch, that batch's statistics
    with torch.no_grad():
        called(model, inputs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()


def batch_norms_by_batch(model: nn.Module) -> list[str]:
    """Names of the batch norms that normalise by their batch's statistics rather than by frozen ones."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)
    ]


def to_double(model: nn.Module) -> nn.Module:
    """The model in double precision; it still takes batches in single precision."""

    def doubled(tensor: Tensor) -> Tensor:
        return tensor.double() if tensor.is_floating_point() else tensor

    def widen(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
        return mapped(doubled, inputs), mapped(doubled, named)

    model.register_forward_pre_hook(widen, with_kwargs=True)
    return model.double()


def nudge(model: nn.Module, seed: int) -> None:
    """Move every weight to one of its two neighbouring floating-point numbers, chosen at random.

    Rounding in a sum of products is equivalent to relative changes of its terms by a few units in the last place (backward
    error; Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 2002, section 3.1): this makes one such change,
    of one unit.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            up = torch.rand(parameter.shape, generator=generator) < 0.5
            target = torch.where(up, torch.inf, -torch.inf).to(parameter)
            parameter.copy_(torch.nextafter(parameter, target))


def run_job(
    settings: EqualitySettings, job: EqualityJob, place: TorchrunPlace, out: Path, report: Callable[[str], None]
) -> None:
    """Run and save all trainings of a job in this process; `report` gets the name of each at its start."""
    torch.set_num_threads(settings.threads_per_process)
    device = devices_of(job.cell, settings.device, place)[0]
    _compute_reproducibly()
    if job.cell.per_device:
        join_process_group(device, join_limit_s(device, settings.config.timeout_s))
    for training in job.trainings:
        report(training.kind.replace("_", " "))
        _Process(settings, job.cell, training, place, device).train(job.folder(out) / training.kind)
        limit_collectives(device, settings.config.timeout_s)
    if distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()


def _compute_reproducibly() -> None:
    """Full precision and fixed algorithms: TF32 has 10 bits of mantissa, and benchmarks choose algorithms by timing."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


class _RecordedBatches:
    """A BatchStream that keeps its last inputs."""

    def __init__(self, batches: BatchStream) -> None:
        self._batches = batches
        self.inputs: Any = None

    def next_batch(self) -> Batch:
        self.inputs, targets = self._batches.next_batch()
        return self.inputs, targets

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


class _Process:
    """One process of one training."""

    def __init__(
        self,
        settings: EqualitySettings,
        cell: Cell,
        training: EqualityTraining,
        place: TorchrunPlace,
        device: torch.device,
    ) -> None:
        self._settings = settings
        self._cell = cell
        self._training = training
        self._rank = place.rank
        self._device = device

    def train(self, folder: Path) -> None:
        """Take the steps and save their record."""
        torch.manual_seed(self._settings.config.workload.seed)
        built = build_model(self._settings.config.workload.model)
        model = built.model.to(self._device).train()
        random_layers = switch_off_random_layers(model)
        if self._training.shares > 1 and not batch_norms_by_batch(model):
            return  # dividing the batch would make no difference
        if self._settings.freeze_batch_norm:
            freeze_batch_norm(model, self._first_inputs(built))
        if self._settings.sync_batch_norm and self._cell.per_device:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        if self._settings.precision == "float64":
            model = to_double(model)
        if self._training.kind in ("rounding", "rounding_in_shares"):
            nudge(model, self._settings.config.workload.seed)
        forward = ForwardRecorder(model, outputs_wanted=self._cell.options.compile == "off")
        recorder = TrainingRecorder(model, forward)
        self._take_steps(model, self._stream(built), recorder, built)
        shuffled = self._settings.config.workload.data != "synthetic"
        whole_weights = self._training.kind == "compared" and self._rank == 0
        recorder.save(folder, self._rank, batch_norms_by_batch(model), random_layers, shuffled, whole_weights)

    def _take_steps(
        self, model: nn.Module, batches: BatchStream, recorder: TrainingRecorder, built: BuiltModel
    ) -> None:
        recorded = _RecordedBatches(batches)
        micro_batching = MicroBatching(count=self._training.shares)
        config = self._settings.config
        with starting_up():  # the optimizer and DDP import torch's compiler
            train_step = TrainStep(
                wrap_for(model, self._cell, self._device),
                cast(BatchStream, recorded),
                config.optimizer,
                config.workload.amp,
                self._device,
                micro_batching,
                built=self._in_double(built),
            )

        def before_the_optimizer(optimizer: Any, arguments: Any, keywords: Any) -> None:
            recorder.add_gradients()

        train_step.optimizer.register_step_pre_hook(before_the_optimizer)
        for step in range(self._settings.steps):
            train_step()
            assert train_step.last_loss is not None
            recorder.add_step(train_step.last_loss.item())
            recorder.samples.add(step, batches.epoch, batches.samples, recorded.inputs)
        batches.close()

    def _in_double(self, built: BuiltModel) -> BuiltModel:
        """The model with its own loss, if any, computed from targets in the training's precision."""
        loss = built.loss
        if loss is None or self._settings.precision != "float64":
            return built

        def in_double(outputs: Any, targets: Any) -> torch.Tensor:
            return loss(outputs, mapped(lambda one: one.double() if one.is_floating_point() else one, targets))

        return dataclasses.replace(built, loss=in_double)

    def _stream(self, built: BuiltModel) -> BatchStream:
        rank = self._rank if self._cell.per_device else 0
        return open_stream(self._settings.config.workload, self._fed(self._cell.per_device), built, rank, self._device)

    def _fed(self, one_share: bool) -> Cell:
        """The cell that determines the batches: a single device gets DataParallel's batches, padding included."""
        share = self._settings.global_batch_size // self._settings.devices
        return Cell(strategy="ddp" if one_share else "dp", devices=self._settings.devices, batch_size=share)

    def _first_inputs(self, built: BuiltModel) -> Any:
        """The first global batch, the same for every process."""
        workload = msgspec.structs.replace(self._settings.config.workload, workers=0, workers_total=None)
        return moved(open_stream(workload, self._fed(False), built, 0, self._device).next_batch()[0], self._device)
