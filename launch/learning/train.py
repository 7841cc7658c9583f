"""One process's part of a training: process group, model, data, epochs, records."""

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

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
from dpscope.launch.jobs.worker_process import TorchrunPlace, starting_up
from dpscope.launch.learning import loop, train_state
from dpscope.launch.learning.loop import Learned, LearningSums, TrainState
from dpscope.launch.learning.train_plan import TrainJob
from dpscope.launch.workload.image_sets import check_classes, image_set, random_words
from dpscope.launch.workload.input_pipeline import micro_batching, open_stream
from dpscope.launch.workload.models import build_model
from dpscope.launch.workload.strategies import compiled_so_far, is_sharded, wrap_for
from dpscope.launch.workload.train_step import TrainStep, with_precision
from dpscope.profiling.instruments.ddp_counters import parameter_sizes
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run import cell_workload
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.training import EpochRecord, TrainResult
from dpscope.profiling.store.files import write_json

# of a collective for a late rank: torch's default for gloo, and enough to save a checkpoint
_LONGEST_WAIT_S = 1800.0


def run_training(job: TrainJob, place: TorchrunPlace) -> TrainResult:
    """Train a cell in this process and return its result; global rank 0 saves each epoch.

    The training continues after its last whole epoch; whatever ends the process in the middle of
    one only loses that epoch.
    """
    torch.set_num_threads(job.threads)
    devices = devices_of(job.kind, place, job.cell)
    if job.cell.per_device:
        limit_s = min(_LONGEST_WAIT_S, wait_limit_s(devices[0], job.config.timeout_s))
        join_process_group(devices[0], limit_s, job.cell.options.nccl_engine)
    with starting_up():  # the optimizer and DDP import torch's compiler
        state, test = prepare(job, place, devices)
    train_state.resume(job, state, place, devices[0])
    place.report("training")
    _Training(job, place, devices, state, test).run()
    state.step.batches.close()
    return TrainResult(
        cell=job.cell,
        seed=job.seed,
        status="ok",
        epochs=state.epochs,
        duration_s=time.time() - place.began_s,
        parameter_count=parameter_sizes(state.model).parameter_count,
        findings=tuple(_compilation_findings(job)),
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
    rates = loop.LearningRates(step.optimizer, job.config, batches.steps_per_epoch)
    images = image_set(job.workload, built, train=False)
    tested, shares = (precise, 1) if cell.per_device else (wrapped, cell.devices)
    batch_size = shares * job.config.eval_batch_size
    together = (
        math.ceil(math.ceil(len(images) / place.world_size) / batch_size)
        if is_sharded(wrapped)
        else None
    )
    samples = loop.shard(len(images), place.rank, place.world_size)
    state = TrainState(model=model, step=step, rates=rates, sums=sums)
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

    def run(self) -> None:
        """Train until all epochs are finished."""
        state = self.state
        while state.epochs < self.job.config.epochs:
            train_s = self._steps_s()
            began_s = time.perf_counter()
            tested = self.test()
            synchronise(self.devices)
            evaluation_s = time.perf_counter() - began_s
            self._record(state.sums.over_all_processes(), tested, train_s, evaluation_s)
            state.epochs += 1
            state.sums.clear()
            train_state.save(self.job, state, self.place)

    def _steps_s(self) -> float:
        """Take an epoch's steps; how long they took."""
        state, batches = self.state, self.state.step.batches
        # Each process and epoch has its own random numbers: dropout differs between ranks, and a
        # training that is resumed draws the same ones.
        words = random_words(self.job.seed, state.epochs, [self.place.rank])
        _seed_all(int(words[0] >> np.uint64(1)))
        synchronise(self.devices)
        began_s = time.perf_counter()
        batches.start_epoch(state.epochs)
        for step in range(batches.steps_per_epoch):
            state.learning_rate = state.rates.apply(state.epochs, step)
            state.step()
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
