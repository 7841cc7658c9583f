"""Loss and accuracy as sums over samples, so that the shares of several processes add up exactly."""

from dataclasses import dataclass

import torch
from torch import Tensor, distributed


@dataclass(frozen=True)
class Learned:
    """Means over samples."""

    loss: float | None  # None: not finite
    accuracy: float  # percent
    samples: int


class LearningSums:
    """Sums over the samples one process has seen, kept on its device: nothing waits for it until they are read."""

    def __init__(self, device: torch.device) -> None:
        # Loss, correct answers, samples: whole numbers are exact in float64 up to 2^53.
        self.values = torch.zeros(3, dtype=torch.float64, device=device)

    def clear(self) -> None:
        """Begin anew."""
        self.values.zero_()

    def add(self, logits: Tensor, labels: Tensor, mean_loss: Tensor) -> None:
        """Count samples whose mean loss is known."""
        correct = (logits.argmax(dim=1) == labels).sum()
        self.values[0] += mean_loss.double() * len(labels)
        self.values[1] += correct
        self.values[2] += len(labels)

    def over_all_processes(self) -> Learned:
        """Means over what all processes of the job counted; each must ask."""
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
