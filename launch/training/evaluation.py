"""Tests of a model on the test samples, each of them once, divided among the processes of a job."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn

from dpscope.launch.workload.image_sets import EpochSamples, ImageSet
from dpscope.launch.workload.nested import called, moved
from dpscope.launch.workload.sharding import reshard_all
from dpscope.launch.workload.tasks import BatchLoss, BuiltModel
from dpscope.profiling.store.errors import DpscopeError


@dataclass(frozen=True)
class Learned:
    """Means over samples."""

    loss: float | None  # None: not finite
    accuracy: float  # percent
    samples: int


class LearningSums:
    """Sums over one process's samples, on its device, which is not synchronised until they are read."""

    def __init__(self, device: torch.device) -> None:
        # Loss, correct answers, samples: whole numbers are exact in float64 up to 2^53.
        self.values = torch.zeros(3, dtype=torch.float64, device=device)

    def clear(self) -> None:
        """Reset the sums."""
        self.values.zero_()

    def add(self, logits: Tensor, labels: Tensor, mean_loss: Tensor) -> None:
        """Add samples with their mean loss; a sample of several tokens counts by its share of correct ones."""
        classes = -1 if logits.ndim == labels.ndim + 1 and logits.shape[:-1] == labels.shape else 1
        correct = (logits.argmax(dim=classes) == labels).sum()
        self.values[0] += mean_loss.double() * len(labels)
        self.values[1] += correct / max(1, labels[0].numel())
        self.values[2] += len(labels)

    def over_all_processes(self) -> Learned:
        """Means over all processes of the job, which all must call this."""
        total = self.values.clone()
        if distributed.is_initialized():
            distributed.all_reduce(total)
        loss, correct, samples = total.tolist()
        mean_loss = loss / samples
        return Learned(
            loss=mean_loss if torch.isfinite(total[0]) else None,
            accuracy=100 * correct / samples,
            samples=round(samples),
        )


def check_learnable(name: str, built: BuiltModel) -> None:
    """Raise DpscopeError for a model whose targets are not classes: trainings are compared by their accuracy."""
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
    samples: range,
    batch_size: int,
    device: torch.device,
    together: int | None = None,
    loss: BatchLoss | None = None,
) -> Learned:
    """Loss (the model's own, else cross-entropy) and accuracy over all processes; `samples` are this process's.

    The model is tested with rank 0's buffers, as it would be saved, in eval mode; afterwards its state is as before. For a model
    that is sharded over the processes, `together` is the number of forward passes that all of them take: a process with fewer
    batches repeats one that does not count.
    """
    sums = LearningSums(device)
    was_training = model.training
    model.eval()
    with torch.no_grad(), _buffers_of_rank_zero(model):
        for start in range(0, len(samples), batch_size):
            chosen = samples[start : start + batch_size]
            inputs, labels = moved(images.__getitems__(EpochSamples(0, chosen)), device)
            logits = called(model, inputs).float()
            mean = nn.functional.cross_entropy(logits.double(), labels) if loss is None else loss(logits, labels)
            sums.add(logits, labels, mean)
        for _ in range(math.ceil(len(samples) / batch_size), together or 0):
            called(model, moved(images.__getitems__(EpochSamples(0, [0]))[0], device))
    if together is not None:
        reshard_all(model)
    model.train(was_training)
    return sums.over_all_processes()


@contextmanager
def _buffers_of_rank_zero(model: nn.Module) -> Iterator[None]:
    """Use rank 0's buffers on every process: each rank's batch norm has the running statistics of its share."""
    if not distributed.is_initialized():
        yield
        return
    buffers = list(model.buffers())
    own = [buffer.clone() for buffer in buffers]
    for buffer in buffers:
        distributed.broadcast(buffer, src=0)
    yield
    _copy(own, buffers)


def _copy(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)
