"""One training step, the same code for every strategy."""

import time

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from dpscope.launch.input_data import BatchStream
from dpscope.launch.workloads import AutocastModel
from dpscope.profiling.phases import BACKWARD, DATA, FORWARD, HOST_TO_DEVICE, OPTIMIZER
from dpscope.profiling.run_types import RunConfig
from dpscope.profiling.step_timer import StepCounts

AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class TrainStep:
    """Fetch a batch, move it, forward, backward, optimizer step; each phase a named range in a trace."""

    def __init__(self, model: nn.Module, batches: BatchStream, config: RunConfig, device: torch.device) -> None:
        self.model = model
        self.batches = batches
        self.last_loss: Tensor | None = None
        self._device = device
        self._optimizer = torch.optim.SGD(
            model.parameters(),
            lr=config.learning_rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
        # Only fp16's range is short enough to need its gradients scaled.
        self._scaler = torch.amp.GradScaler(device.type, enabled=config.amp == "fp16")

    def __call__(self) -> StepCounts:
        """Train on the next batch; on CUDA the work is queued, not finished, when this returns."""
        started = time.perf_counter_ns()
        with record_function(DATA):
            images, labels = self.batches.next_batch()
        data_wait_us = (time.perf_counter_ns() - started) / 1000
        with record_function(HOST_TO_DEVICE):
            images = images.to(self._device, non_blocking=True)
            labels = labels.to(self._device, non_blocking=True)
        with record_function(FORWARD):
            loss = nn.functional.cross_entropy(self.model(images).float(), labels)
        with record_function(BACKWARD):
            self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        with record_function(OPTIMIZER):
            self._scaler.step(self._optimizer)
            self._scaler.update()
            self._optimizer.zero_grad(set_to_none=True)
        self.last_loss = loss.detach()
        return StepCounts(data_wait_us=data_wait_us, samples=len(labels))


def with_precision(model: nn.Module, amp: str, device: torch.device) -> nn.Module:
    """The model, its forward in the precision that `amp` (off, bf16 or fp16) names."""
    return model if amp == "off" else AutocastModel(model, device.type, AUTOCAST_DTYPES[amp])
