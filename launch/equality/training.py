"""One process's part in the trainings of one cell of `dpscope equal`: k steps from the seed, everything kept."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import distributed, nn

from dpscope.launch.equality.forward_recorder import ForwardRecorder
from dpscope.launch.equality.models import (
    batch_norms_by_batch,
    freeze_batch_norm,
    nudge,
    switch_off_random_layers,
    to_double,
)
from dpscope.launch.equality.recording import TrainingRecorder
from dpscope.launch.jobs.place import TorchrunPlace
from dpscope.launch.jobs.process_group import devices_of, join_limit_s, join_process_group, limit_collectives
from dpscope.launch.jobs.worker_process import starting_up
from dpscope.launch.workload.image_sets import Batch
from dpscope.launch.workload.input_pipeline import BatchStream, MicroBatching, open_stream
from dpscope.launch.workload.models import build_model
from dpscope.launch.workload.nested import mapped, moved
from dpscope.launch.workload.strategies import wrap_for
from dpscope.launch.workload.tasks import BuiltModel
from dpscope.launch.workload.train_step import TrainStep
from dpscope.profiling.records.equality import EqualityJob, EqualitySettings, EqualityTraining
from dpscope.profiling.records.run import Cell


def run_job(
    settings: EqualitySettings, job: EqualityJob, place: TorchrunPlace, out: Path, report: Callable[[str], None]
) -> None:
    """Train and save all of a job's trainings in this process; `report` is told which training begins."""
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
    """Full precision and one algorithm per operation: TF32 keeps 10 bits of a mantissa, and timing chooses algorithms."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


class KeptBatches:
    """A stream that keeps the inputs it handed out last."""

    def __init__(self, batches: BatchStream) -> None:
        self._batches = batches
        self.steps_per_epoch = batches.steps_per_epoch
        self.loader_workers = batches.loader_workers
        self.epoch = batches.epoch
        self.samples = batches.samples
        self.inputs: Any = None

    def next_batch(self) -> Batch:
        """The next (inputs, targets)."""
        self.inputs, targets = self._batches.next_batch()
        self.epoch, self.samples = self._batches.epoch, self._batches.samples
        return self.inputs, targets

    def start_epoch(self, epoch: int, step: int = 0) -> None:
        """The next batch is that of `epoch` and its `step`."""
        self._batches.start_epoch(epoch, step)

    def leave_out_short_batches(self) -> None:
        """From the next epoch on, hand out whole batches only."""
        self._batches.leave_out_short_batches()

    def close(self) -> None:
        """End the loader workers."""
        self._batches.close()


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
        """Take the steps and save what was kept of them."""
        torch.manual_seed(self._settings.config.workload.seed)
        built = build_model(self._settings.config.workload.model)
        model = built.model.to(self._device).train()
        random_layers = switch_off_random_layers(model)
        if self._training.shares > 1 and not batch_norms_by_batch(model):
            return  # shares would make no difference
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
        kept = KeptBatches(batches)
        micro_batching = MicroBatching(count=self._training.shares)
        config = self._settings.config
        with starting_up():  # the optimizer and DDP import torch's compiler
            train_step = TrainStep(
                wrap_for(model, self._cell, self._device),
                kept,
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
            recorder.samples.add(step, kept.epoch, kept.samples, kept.inputs)
        kept.close()

    def _in_double(self, built: BuiltModel) -> BuiltModel:
        """The model's own loss, of targets in the precision in which is trained."""
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
        """The cell as its batches are cut: a single device gets what DataParallel gets, padding included."""
        share = self._settings.global_batch_size // self._settings.devices
        return Cell(strategy="ddp" if one_share else "dp", devices=self._settings.devices, batch_size=share)

    def _first_inputs(self, built: BuiltModel) -> Any:
        """The first global batch, the same for every process."""
        workload = msgspec.structs.replace(self._settings.config.workload, workers=0, workers_total=None)
        return moved(open_stream(workload, self._fed(False), built, 0, self._device).next_batch()[0], self._device)
