"""Models for the acceptance that set what is no option of a run: `--model dpscope.launch.acceptance.models:NAME`."""

import torch
from torch import Tensor, nn

from dpscope.launch.workload.models import build_model


class _ChannelsLast(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        answer: Tensor = self.model(images.contiguous(memory_format=torch.channels_last))
        return answer


def channels_last() -> nn.Module:
    """ResNet-18 in channels_last, its batches too."""
    return _ChannelsLast(build_model("resnet18_cifar").model)


def tf32() -> nn.Module:
    """ResNet-18 whose products may be TF32's."""
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    return build_model("resnet18_cifar").model


def deterministic() -> nn.Module:
    """ResNet-8 by kernels that give the same bits every time."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    return build_model("resnet8_cifar").model


class _LateOnRank1(nn.Module):
    """Rank 1 thinks for 20 ms before every forward."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        import os
        import time

        if os.environ.get("RANK") == "1":
            time.sleep(0.02)
        answer: Tensor = self.model(images)
        return answer


def late_on_rank_1() -> nn.Module:
    """ResNet-18, late on one rank."""
    return _LateOnRank1(build_model("resnet18_cifar").model)
