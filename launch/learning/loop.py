"""The state of a training: its learning rates and sums over samples; tests of its model."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from dpscope.launch.jobs.worker_process import TorchrunPlace
from dpscope.launch.workload.image_sets import EpochSamples, ImageSet
from dpscope.launch.workload.nested import called, moved
from dpscope.launch.workload.strategies import reshard_all
from dpscope.launch.workload.tasks import BatchLoss, BuiltModel
from dpscope.launch.workload.train_step import TrainStep
from dpscope.profiling.records.training import EpochRecord, TrainConfig
from dpscope.profiling.store.errors import DpscopeError


@dataclass(frozen=True)
class Learned:
    """Means over samples."""

    loss: float | None  # None: not finite
    accuracy: float  # percent
    samples: int


class LearningSums:
    """Sums over one process's samples, on its device, which is not synchronised until they are
    read.
    """

    def __init__(self, device: torch.device) -> None:
        # Loss and correct answers: whole numbers are exact in float64 up to 2^53.
        self._on_device = torch.zeros(2, dtype=torch.float64, device=device)
        self._samples = 0  # known without the device

    def add(self, logits: Tensor, labels: Tensor, mean_loss: Tensor) -> None:
        """Add samples with their mean loss; a sample of several tokens counts by its share of
        correct ones.
        """
        classes = -1 if logits.ndim == labels.ndim + 1 and logits.shape[:-1] == labels.shape else 1
        correct = (logits.argmax(dim=classes) == labels).sum()
        self._on_device[0] += mean_loss.double() * len(labels)
        self._on_device[1] += correct / max(1, labels[0].numel())
        self._samples += len(labels)

    def clear(self) -> None:
        self._on_device.zero_()
        self._samples = 0

    def over_all_processes(self) -> Learned:
        """Means over all processes of the job, which all must call this."""
        total = self._on_device.new_tensor([0.0, 0.0, self._samples])
        total[:2] = self._on_device
        if distributed.is_initialized():
            distributed.all_reduce(total)
        loss, correct, samples = total.tolist()
        return Learned(
            loss / samples if math.isfinite(loss) else None, 100 * correct / samples, round(samples)
        )


def check_learnable(name: str, built: BuiltModel) -> None:
    """Raise DpscopeError for a model whose targets are not classes: trainings are compared by their
    accuracy.
    """
    if built.make_batch is None:
        return
    targets = built.make_batch(0, 1)[1]
    if not isinstance(targets, Tensor) or targets.is_floating_point():
        raise DpscopeError(
            f"--model {name}: its targets are not classes, so there is no accuracy to train to; measure it with dpscope run, or "
            "compare its strategies with dpscope equal"
        )


def shard(samples: int, rank: int, world_size: int) -> range:
    """The samples that one process tests; processes have equal numbers, or one more.

    >>> [list(shard(5, rank, 2)) for rank in (0, 1)]
    [[0, 1], [2, 3, 4]]
    """
    return range(rank * samples // world_size, (rank + 1) * samples // world_size)


def evaluate(
    model: nn.Module,
    images: ImageSet,
    place: TorchrunPlace,
    batch_size: int,
    device: torch.device,
    loss: BatchLoss | None = None,
) -> Learned:
    """Loss (the model's own, else cross-entropy) and accuracy over all processes.

    The model is tested with rank 0's buffers, as it would be saved, in eval mode; afterwards its
    state is as before. All processes take the same number of forward passes, in which FSDP gathers
    the model: one that has run out of samples repeats one that does not count.
    """
    sums = LearningSums(device)
    samples = shard(len(images), place.rank, place.world_size)
    most = math.ceil(len(images) / place.world_size)
    loss_of = loss or _double_cross_entropy
    was_training = model.training
    model.eval()
    with torch.no_grad(), _buffers_of_rank_zero(model):
        for start in range(0, most, batch_size):
            batch = samples[start : start + batch_size]
            inputs, labels = moved(images.__getitems__(EpochSamples(0, batch or [0])), device)
            logits = called(model, inputs).float()
            if batch:
                sums.add(logits, labels, loss_of(logits, labels))
    reshard_all(model)
    model.train(was_training)
    return sums.over_all_processes()


def _double_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.double(), labels)


@contextmanager
def _buffers_of_rank_zero(model: nn.Module) -> Iterator[None]:
    """Use rank 0's buffers on every process: each rank's batch norm has the running statistics of
    its share.
    """
    if not distributed.is_initialized():
        yield
        return
    buffers = list(model.buffers())
    before = [buffer.clone() for buffer in buffers]
    for buffer in buffers:
        distributed.broadcast(buffer, src=0)
    yield
    for buffer, values in zip(buffers, before, strict=True):
        buffer.copy_(values)


class LearningRates:
    """The learning rate of every step, a function of the epoch and the step alone.

    In a warm-up of W steps, step k (from 1) uses k/W of the rate. Milestones count trained epochs;
    at each of them the rate is multiplied by gamma.
    """

    def __init__(self, optimizer: Optimizer, config: TrainConfig, steps_per_epoch: int) -> None:
        self._optimizer = optimizer
        self._config = config
        self._steps_per_epoch = steps_per_epoch
        self._full = [group["lr"] for group in optimizer.param_groups]

    def apply(self, epochs: int, step: int) -> float:
        """Set and return the rate of a step, counted from 0, after so many whole epochs."""
        config = self._config
        factor = config.gamma ** sum(milestone <= epochs for milestone in config.milestones)
        warmup_steps = config.warmup_epochs * self._steps_per_epoch
        if warmup_steps:
            factor *= min(1.0, (epochs * self._steps_per_epoch + step + 1) / warmup_steps)
        for group, full in zip(self._optimizer.param_groups, self._full, strict=True):
            group["lr"] = full * factor
        return float(self._optimizer.param_groups[0]["lr"])


@dataclass
class TrainState:
    """Everything that changes while training.

    `step` holds the wrapped model, the optimizer, the gradient scaler and the batches. `sums` are
    this process's part of the loss and accuracy of the epoch that is being trained.
    """

    model: nn.Module  # unwrapped: its state has the same keys under every strategy
    step: TrainStep
    rates: LearningRates
    sums: LearningSums
    records: list[EpochRecord] = field(default_factory=list)  # of finished epochs
