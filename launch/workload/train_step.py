"""One training step, the same code for every strategy.

The timed pass runs it, so it does little besides training; benchmarks/timed_pass_cost.py measures
what it adds to a plain loop (docs/measures.md).
"""

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dpscope.launch.workload.input_pipeline import BatchStream, MicroBatching
from dpscope.launch.workload.models import AutocastModel
from dpscope.launch.workload.nested import batch_size, called, mapped, moved
from dpscope.launch.workload.strategies import is_composed, is_sharded, unreduced
from dpscope.launch.workload.tasks import BuiltModel
from dpscope.profiling.instruments.step_timer import BatchArrived, nothing
from dpscope.profiling.instruments.trace_recorder import named_range
from dpscope.profiling.records.config import Optimizer
from dpscope.profiling.records.matrix import Amp
from dpscope.profiling.records.range_names import BACKWARD, DATA, FORWARD, HOST_TO_DEVICE, OPTIMIZER
from dpscope.profiling.store.errors import DpscopeError

AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

_NAMED = 4  # parameters in a message


class TrainStep:
    """Fetch a batch, move it, forward, backward, optimizer step; each phase is a named range in a
    trace.

    With micro-batches, forward and backward run for each of them, and the gradients add up to those
    of the whole batch; DDP reduces them in the last backward pass only. There is one optimizer
    step. The loss is that of `built`, else cross entropy.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: BatchStream,
        optimizer: Optimizer,
        amp: Amp,
        device: torch.device,
        micro_batching: MicroBatching = MicroBatching(),  # noqa: B008 (frozen)
        built: BuiltModel | None = None,
    ) -> None:
        self.model = model
        self.batches = batches
        self.last_loss: Tensor | None = None  # of the whole batch
        # Kept until the next graph exists, as by a plain loop's variable: without a graph, autograd
        # drops each parameter's gradient accumulator and creates another one.
        self._graph: Tensor | None = None
        self._micro_batching = micro_batching
        self._composed = is_composed(model)
        is_ddp = isinstance(model, DistributedDataParallel)
        # Whether DDP's reducer reduces the gradients, under DDP or `replicate`.
        self._reduces_in_buckets = is_ddp or (self._composed and not is_sharded(model))
        static_graph = bool(getattr(model, "static_graph", False))
        # DDP learns a static graph from its first backward pass, which therefore must reduce, and
        # then waits only for the gradients of that pass.
        self._graph_to_learn = is_ddp and static_graph
        self._needs_all_gradients = self._reduces_in_buckets and not static_graph
        self._device = device
        built = built or BuiltModel(model)
        self._loss = built.loss or nn.functional.cross_entropy
        make = built.make_optimizer or functools.partial(
            torch.optim.SGD, momentum=optimizer.momentum, weight_decay=optimizer.weight_decay
        )
        self.optimizer = make(model.parameters(), optimizer.learning_rate)
        # Only fp16's range is short enough to need its gradients scaled.
        self.scaler = torch.amp.GradScaler(device.type, enabled=amp == "fp16")
        self._scaled = self.scaler.is_enabled()

    def __call__(self, batch_arrived: BatchArrived = nothing) -> int:
        """Train on the next batch; returns its samples. On CUDA the work is queued, not finished,
        on return.
        """
        with named_range(DATA):
            batch = self.batches.next_batch()
        batch_arrived()
        with named_range(HOST_TO_DEVICE):
            inputs, targets = moved(batch, self._device)
        samples = batch_size(inputs)
        if self._micro_batching.count == 1:
            loss = self._add_gradients(inputs, targets)
        else:
            losses = []
            parts = self._micro_batching.cut(inputs, targets)
            for index, part in enumerate(parts):
                with nullcontext() if index == len(parts) - 1 else self._without_reduction():
                    losses.append(self._add_gradients(*part, batch_size(part[0]) / samples))
            loss = torch.stack(losses).sum()
        self._check_gradients()
        self._graph_to_learn = False
        with named_range(OPTIMIZER):
            if self._scaled:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        self.last_loss = loss
        return samples

    def learn_graph(self) -> None:
        """Let DDP learn what it takes from its first steps: the graph, and the buckets of all later
        steps.

        A training that resumes from a checkpoint then sums gradients in the same order as before.
        It is not counted as a step; the caller restores what it changes (batch norm's statistics,
        random states, the position in the batches).
        """
        if not self._reduces_in_buckets:
            return
        self.batches.start_epoch(0)
        inputs, targets = moved(self.batches.next_batch(), self._device)
        # With a static graph, the first backward pass learns the graph and the second one the order
        # of the buckets.
        for _ in range(2 if getattr(self.model, "static_graph", False) else 1):
            self._add_gradients(*self._micro_batching.cut(inputs, targets)[0])
            self._check_gradients()
            self.optimizer.zero_grad(set_to_none=True)
        self._graph_to_learn = False

    def _add_gradients(self, inputs: Any, targets: Any, weight: float = 1.0) -> Tensor:
        """Forward and backward of a part of the batch; returns its share of the batch's mean
        loss.
        """
        with named_range(FORWARD):
            outputs = called(self.model, inputs)
            # Losses are computed in single precision.
            outputs = mapped(
                lambda tensor: (
                    tensor.float() if tensor.dtype in AUTOCAST_DTYPES.values() else tensor
                ),
                outputs,
            )
            loss = self._loss(outputs, targets)
            if weight != 1:
                loss = loss * weight
            self._graph = loss
        with named_range(BACKWARD):
            (self.scaler.scale(loss) if self._scaled else loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _check_gradients(self) -> None:
        """After the first backward pass, raise DpscopeError for parameters that DDP would wait for
        in the next forward.
        """
        if not self._needs_all_gradients:
            return
        self._needs_all_gradients = False
        inner = getattr(self.model, "module", self.model)
        without = [
            name.removeprefix("module.").removeprefix(
                "model." if isinstance(inner, AutocastModel) else ""
            )
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad and parameter.grad is None
        ]
        if without:
            more = f" and {len(without) - _NAMED} more" if len(without) > _NAMED else ""
            raise DpscopeError(
                f"parameters without gradient: {', '.join(without[:_NAMED])}{more}; DDP waits for all of them: see "
                "docs/variants.md"
            )

    def _without_reduction(self) -> AbstractContextManager[None]:
        """Accumulate gradients without reducing them; DataParallel cannot, and reduces in every
        backward pass.
        """
        if isinstance(self.model, DistributedDataParallel) and not self._graph_to_learn:
            return self.model.no_sync()
        return unreduced(self.model) if self._composed else nullcontext()


def with_precision(model: nn.Module, amp: str, device: torch.device) -> nn.Module:
    """The model with its forward pass in the precision `amp` (off, bf16 or fp16)."""
    return model if amp == "off" else AutocastModel(model, device.type, AUTOCAST_DTYPES[amp])
