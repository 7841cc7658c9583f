"""Models for the tests on GPUs: `--model tests.gpu.models:NAME`."""

import os
import time

import torch
from torch import Tensor, nn

from dpscope.launch.workload.models import build_model

LATE_S = 0.02


def _late_on_rank_1(model: nn.Module) -> nn.Module:
    """Before every forward rank 1 waits for its device and then LATE_S: work that is queued would
    hide the delay.
    """

    def wait(model: nn.Module, inputs: tuple[Tensor]) -> None:
        if os.environ.get("RANK") == "1":
            if inputs[0].is_cuda:
                torch.cuda.synchronize(inputs[0].device)
            time.sleep(LATE_S)

    model.register_forward_pre_hook(wait)
    return model


def late_on_rank_1() -> nn.Module:
    """ResNet-18 for CIFAR, late on one rank."""
    return _late_on_rank_1(build_model("resnet18_cifar").model)


def channels_last() -> nn.Module:
    """ResNet-18 for CIFAR in channels_last, its batches too."""
    model = build_model("resnet18_cifar").model.to(memory_format=torch.channels_last)
    model.register_forward_pre_hook(
        lambda model, inputs: inputs[0].contiguous(memory_format=torch.channels_last)
    )
    return model
