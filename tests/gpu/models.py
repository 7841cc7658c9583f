"""Models for the tests on GPUs: `--model tests.gpu.models:NAME`."""

import os
import time

import torch
from torch import Tensor, nn

from dpscope.launch.workload.models import build_model

LATE_S = 0.02


class _LateOnRank1(nn.Module):
    """Before every forward rank 1 waits for its device and then LATE_S: work that is queued would hide the delay."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        if os.environ.get("RANK") == "1":
            if images.is_cuda:
                torch.cuda.synchronize(images.device)
            time.sleep(LATE_S)
        outputs: Tensor = self.model(images)
        return outputs


def late_on_rank_1() -> nn.Module:
    """ResNet-18 for CIFAR, late on one rank."""
    return _LateOnRank1(build_model("resnet18_cifar").model)


def late_tiny() -> nn.Module:
    """A small model, late on one rank."""
    return _LateOnRank1(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)))


class _ChannelsLast(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.model(images.contiguous(memory_format=torch.channels_last))
        return outputs


def channels_last() -> nn.Module:
    """ResNet-18 for CIFAR in channels_last, its batches too."""
    return _ChannelsLast(build_model("resnet18_cifar").model)
