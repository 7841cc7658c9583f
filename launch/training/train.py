"""One process's part of a training: process group, model, data, epochs, records."""

import importlib.metadata
import math
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dpscope.launch.jobs.process_group import (
    devices_of,
    join_process_group,
    synchronise,
    wait_limit_s,
)
from dpscope.launch.jobs.stop_request import StopRequest
from dpscope.launch.jobs.worker_process import TorchrunPlace, leave_group, starting_up
from dpscope.launch.training import loop
from dpscope.launch.training.cells import TrainJob
from dpscope.launch.training.checkpoint_state import TrainCheckpoints
from dpscope.launch.training.loop import Learned, LearningSums, TrainState
from dpscope.launch.workload.image_sets import check_classes, image_set, random_words
from dpscope.launch.workload.input_pipeline import micro_batching, open_stream
from dpscope.launch.workload.models import build_model
from dpscope.launch.workload.strategies import compiled_so_far, is_sharded, wrap_for
from dpscope.launch.workload.train_step import TrainStep, with_precision
from dpscope.profiling.instruments.ddp_counters import parameter_sizes
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run import cell_workload
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.training import CheckpointDescription, EpochRecord, TrainResult
from dpscope.profiling.store.files import write_json

# of a collective for a late rank: torch's default for gloo, and enough to save a checkpoint
_LONGEST_WAIT_S = 1800.0


def run_training(job: TrainJob, place: TorchrunPlace) -> TrainResult:
    """Train a cell in this process and return its result; global rank 0 saves each epoch's record.

    The training continues after its last whole epoch. Signal N ends the process with status 128 +
    N.
    """
    torch.set_num_threads(job.threads)
    devices = devices_of(job.kind, place, job.cell)
    if job.cell.per_device:
        limit_s = min(_LONGEST_WAIT_S, wait_limit_s(devices[0], job.config.timeout_s))
        join_process_group(devices[0], limit_s, job.cell.options.nccl_engine)
    with starting_up():  # the optimizer and DDP import torch's compiler
        state, test = prepare(job, place, devices)
    stop = StopRequest()
    checkpoints = TrainCheckpoints(job, _begun(job), place, devices, stop)
    checkpoints.go_on(state)
    place.report("training")
    with stop.listening():
        finished = _Training(job, place, devices, state, test, checkpoints).run()
    state.step.batches.close()
    if not finished:
        leave_group()
        sys.exit(stop.exit_status)
    parameters = parameter_sizes(state.model).parameter_count
    findings = tuple(_compilation_findings(job))
    return TrainResult(
        job.cell, job.seed, "ok", state.epochs, time.time() - place.began_s, parameters, findings
    )


def _compilation_findings(job: TrainJob) -> list[Finding]:
    """How long torch.compile took in this process, or that it compiled nothing."""
    if job.cell.options.compile == "off":
        return []
    compiled, about = compiled_so_far(), f"{job.cell.name}, seed {job.seed}"
    if compiled.graphs == 0:
        text = "no graph was captured, so the model ran as without --compile"
        return [RunCode.NOT_COMPILED.finding(text, about=about)]
    text = f"compiling {counted(compiled.graphs, 'graph')} took {compiled.seconds:.1f} s of its first epoch and test"
    action = "compare total times over equally many epochs; the median epoch excludes the first"
    return [RunCode.COMPILED_LATE.finding(text, action, about=about, severity="info")]


def _begun(job: TrainJob) -> CheckpointDescription:
    """The description of this training's checkpoints before its first step."""
    return CheckpointDescription(
        dpscope_version=importlib.metadata.version("dpscope"),
        torch_version=str(torch.__version__),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        config=job.config,
        cell=job.cell,
        seed=job.seed,
        epochs=0,
        test_accuracy=None,
    )


def prepare(
    job: TrainJob, place: TorchrunPlace, devices: tuple[torch.device, ...]
) -> tuple[TrainState, Callable[[], Learned]]:
    """The state of a training that has not begun, and its test.

    All devices test together under DataParallel; else each process tests its share of the samples,
    under DDP with its own copy of the model. FSDP gathers the model in every forward pass, so that
    all processes need the same number of them.
    """
    cell, device = job.cell, devices[0]
    workload = cell_workload(job.workload, cell)
    _seed_all(job.seed)
    built = build_model(workload.model)
    check_classes(workload, built)
    loop.check_learnable(workload.model, built)
    model = built.model.to(device).train()
    precise = with_precision(model, workload.amp, device)
    wrapped = wrap_for(precise, cell, device)
    # From here on each process has its own random numbers, so that dropout differs between ranks.
    _seed_all(int(random_words(job.seed, 0, [place.rank])[0] >> np.uint64(1)))
    batches = open_stream(workload, cell, built, place.rank, device, job.config.augment)
    sums = LearningSums(device)

    def counted_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        own, smoothing = built.loss, job.config.label_smoothing
        loss = (
            own(outputs, targets)
            if own
            else cross_entropy(outputs, targets, label_smoothing=smoothing)
        )
        sums.add(outputs.detach(), targets, loss.detach())
        return loss

    fed = replace(built, loss=counted_loss)
    step = TrainStep(
        wrapped, batches, job.optimizer, workload.amp, device, micro_batching(cell), fed
    )
    schedule = loop.LearningRateSchedule(step.optimizer, job.config, batches.steps_per_epoch)
    images = image_set(job.workload, built, train=False)
    tested, shares = (precise, 1) if cell.per_device else (wrapped, cell.devices)
    batch_size = shares * job.config.eval_batch_size
    together = (
        math.ceil(math.ceil(len(images) / place.world_size) / batch_size)
        if is_sharded(wrapped)
        else None
    )
    samples = loop.shard(len(images), place.rank, place.world_size)
    state = TrainState(model=model, step=step, schedule=schedule, sums=sums)
    return state, lambda: loop.evaluate(
        tested, images, samples, batch_size, device, together, built.loss
    )


def _seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % (1 << 32))


@dataclass(frozen=True)
class _Training:
    """The epochs of a training in one process, trained and tested, each timed separately."""

    job: TrainJob
    place: TorchrunPlace
    devices: tuple[torch.device, ...]
    state: TrainState
    test: Callable[[], Learned]
    checkpoints: TrainCheckpoints

    def run(self) -> bool:
        """Train until all epochs are finished; False when a signal stopped it before."""
        state, epochs = self.state, self.job.config.epochs
        while state.epochs < epochs:
            train_s = self._steps_s()
            if train_s is None:
                return False
            began_s = time.perf_counter()
            tested = self.test()
            synchronise(self.devices)
            evaluation_s = time.perf_counter() - began_s
            self._record(state.sums.over_all_processes(), tested, train_s, evaluation_s)
            state.schedule.after_epoch()
            state.epochs += 1
            state.sums.clear()
            if self.checkpoints.after_epoch(state) and state.epochs < epochs:
                return False
        return True

    def _steps_s(self) -> float | None:
        """Take an epoch's steps; how long they took, None when a signal stopped them."""
        state, batches = self.state, self.state.step.batches
        synchronise(self.devices)
        began_s = time.perf_counter()
        batches.start_epoch(state.epochs)
        for _ in range(batches.steps_per_epoch):
            state.learning_rate = state.schedule.learning_rate
            state.step()
            state.schedule.after_step()
            if self.checkpoints.stopped_after_step():
                return None
        synchronise(self.devices)
        return time.perf_counter() - began_s

    def _record(
        self, learned: Learned, tested: Learned, train_s: float, evaluation_s: float
    ) -> None:
        """Record an epoch; rank 0 saves it."""
        state, cell = self.state, self.job.cell
        record = EpochRecord(
            cell=cell.name,
            strategy=cell.strategy,
            devices=cell.devices,
            variant=cell.variant,
            batch_size=cell.batch_size,
            global_batch_size=cell.global_batch_size,
            seed=self.job.seed,
            epoch=state.epochs + 1,
            train_loss=learned.loss,
            train_accuracy=learned.accuracy,
            test_loss=tested.loss,
            test_accuracy=tested.accuracy,
            learning_rate=state.learning_rate,
            train_s=train_s,
            evaluation_s=evaluation_s,
            trained_s=sum(one.train_s for one in state.records) + train_s,
            ended_at_s=time.time(),
            train_samples=learned.samples,
            test_samples=tested.samples,
        )
        state.records.append(record)
        if self.place.rank == 0:
            write_json(self.job.folder.epochs_path, state.records)
