"""One process's part of a training: process group, model, data, epochs, records."""

import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

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
from dpscope.launch.learning import checkpoints, loop
from dpscope.launch.learning.loop import Learned, LearningSums, TrainState
from dpscope.launch.learning.train_plan import TrainJob
from dpscope.launch.workload.image_sets import check_classes, image_set, random_words
from dpscope.launch.workload.input_pipeline import micro_batching, open_stream
from dpscope.launch.workload.models import build_model
from dpscope.launch.workload.strategies import compiled_so_far, wrap_for
from dpscope.launch.workload.train_step import TrainStep, with_precision
from dpscope.profiling.instruments.ddp_counters import parameter_sizes
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run import cell_workload
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.training import EpochRecord, TrainResult

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
    checkpoints.resume(job.folder, state, place, devices[0])
    place.report("training")
    while len(state.records) < job.config.epochs:
        _train_epoch(job, place, devices, state, test)
        checkpoints.save(job.folder, state, place.rank)
    state.step.batches.close()
    return TrainResult(
        cell=job.cell,
        seed=job.seed,
        status="ok",
        epochs=len(state.records),
        duration_s=time.time() - place.began_s,
        parameter_count=parameter_sizes(state.model).parameter_count,
        findings=_not_compiled(job),
    )


def _not_compiled(job: TrainJob) -> tuple[Finding, ...]:
    if job.cell.options.compile == "off" or compiled_so_far().graphs > 0:
        return ()
    text = "no graph was captured, so the model ran as without --compile"
    return (RunCode.NOT_COMPILED.finding(text, about=f"{job.cell.name}, seed {job.seed}"),)


def prepare(
    job: TrainJob, place: TorchrunPlace, devices: tuple[torch.device, ...]
) -> tuple[TrainState, Callable[[], Learned]]:
    """The state of a training that has not begun, and its test.

    All devices test together under DataParallel; else each process tests its share of the samples,
    under DDP with its own copy of the model.
    """
    cell = job.cell
    device = devices[0]
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
    loss_of = built.loss or partial(cross_entropy, label_smoothing=job.config.label_smoothing)

    def counted_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        loss = loss_of(outputs, targets)
        sums.add(outputs.detach(), targets, loss.detach())
        return loss

    counting = replace(built, loss=counted_loss)
    step = TrainStep(
        wrapped, batches, job.optimizer, workload.amp, device, micro_batching(cell), counting
    )
    rates = loop.LearningRates(step.optimizer, job.config, batches.steps_per_epoch)
    images = image_set(job.workload, built, train=False)
    batch_size = job.config.eval_batch_size
    tested = precise
    if not cell.per_device:
        batch_size *= cell.devices
        tested = wrapped
    state = TrainState(model=model, step=step, rates=rates, sums=sums)
    return state, lambda: loop.evaluate(tested, images, place, batch_size, device, built.loss)


def _seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % (1 << 32))


def _train_epoch(
    job: TrainJob,
    place: TorchrunPlace,
    devices: tuple[torch.device, ...],
    state: TrainState,
    test: Callable[[], Learned],
) -> None:
    """Train and test one epoch, each timed separately, and record it."""
    epochs = len(state.records)
    batches = state.step.batches
    # Each process and epoch has its own random numbers: dropout differs between ranks, and a
    # training that is resumed draws the same ones.
    words = random_words(job.seed, epochs, [place.rank])
    _seed_all(int(words[0] >> np.uint64(1)))
    synchronise(devices)
    began_s = time.perf_counter()
    batches.start_epoch(epochs)
    for step in range(batches.steps_per_epoch):
        learning_rate = state.rates.apply(epochs, step)
        state.step()
    synchronise(devices)
    trained_s = time.perf_counter()
    tested = test()
    synchronise(devices)
    evaluated_s = time.perf_counter()
    learned = state.sums.over_all_processes()
    state.sums.clear()
    cell = job.cell
    record = EpochRecord(
        cell=cell.name,
        strategy=cell.strategy,
        devices=cell.devices,
        variant=cell.variant,
        batch_size=cell.batch_size,
        global_batch_size=cell.global_batch_size,
        seed=job.seed,
        epoch=epochs + 1,
        train_loss=learned.loss,
        train_accuracy=learned.accuracy,
        test_loss=tested.loss,
        test_accuracy=tested.accuracy,
        learning_rate=learning_rate,
        train_s=trained_s - began_s,
        evaluation_s=evaluated_s - trained_s,
        trained_s=sum(earlier.train_s for earlier in state.records) + trained_s - began_s,
        ended_at_s=time.time(),
        train_samples=learned.samples,
        test_samples=tested.samples,
    )
    state.records.append(record)
