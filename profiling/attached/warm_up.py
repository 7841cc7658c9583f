"""The steps before the measured ones, from which is learned which optimizer ends a step, which
model the script calls, and its micro-batches.
"""

from collections.abc import Iterable
from itertools import chain

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer
from torch.utils.hooks import RemovableHandle

from dpscope.profiling.attached.model_calls import ModelCalls, outermost_modules
from dpscope.profiling.attached.settings import AttachSettings
from dpscope.profiling.attached.wrapped_models import WrapperLog, is_fully_sharded
from dpscope.profiling.instruments.ddp_counters import ALWAYS_COUNTED_ITERATIONS


class WarmUp:
    """`steps` of the script have ended before the measured ones."""

    def __init__(self, settings: AttachSettings, wrappers: WrapperLog) -> None:
        self.steps = 0
        # those that stepped, in the order of their first steps
        self.optimizers: list[Optimizer] = []
        # of parameters that required a gradient when their optimizer stepped
        self.trained_ids: set[int] = set()
        self.calls: ModelCalls | None = None
        self.backwards = 0  # backward passes of a step, 0 where they could not be counted
        # whether fully_shard leaves all parameters gathered after the forward pass
        self.stays_gathered = False
        self._settings = settings
        self._wrappers = wrappers
        self._over = False
        self._hooks: list[RemovableHandle] = []

    @property
    def trained(self) -> list[Tensor]:
        """The parameters of all optimizers."""
        return list(chain.from_iterable(map(_parameters, self.optimizers)))

    @property
    def device(self) -> torch.device:
        """The device of the trained parameters."""
        return _device(self.trained, self.calls.modules if self.calls is not None else ())

    def ends_step(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer, which has just stepped, ends the script's step.

        The first one that stepped does, unless it steps within the backward pass, as one of each
        parameter does.
        """
        if not self._over:  # collected over steps: in a GAN the models' gradients alternate
            self._note(optimizer)
        within_backward = torch._C._current_graph_task_id() != -1
        if within_backward or self._settings.steps_by != "optimizer":
            return False
        return not self.optimizers or optimizer is self.optimizers[0]

    def _note(self, optimizer: Optimizer) -> None:
        trained = [parameter for parameter in _parameters(optimizer) if parameter.requires_grad]
        self.trained_ids.update(map(id, trained))
        if all(optimizer is not noted for noted in self.optimizers):
            self.optimizers.append(optimizer)

    def leave(self) -> None:
        """Remove all hooks, and all references to objects that the script may want to free."""
        self._remove_hooks()
        if self.calls is not None:
            self.calls.stop()
        self.calls = None
        self.optimizers = []

    def step_ended(self) -> bool:
        """Called at the end of each step; returns whether the warm-up is over."""
        self.steps += 1
        needed = self._settings.warmup_steps
        trained = _parameters(self.optimizers[0]) if self.optimizers else []
        if self.calls is None:
            # the models that hold what is trained; without an optimizer, the wrapped ones
            modules = outermost_modules(trained or self._wrapped_parameters())
            self.calls = ModelCalls(_device(trained, modules).type)
            self.calls.watch(modules)
        elif not self.calls.take().each and self.steps < needed:
            # what was found holds the model, but is not called itself
            self.calls.look_inside()
        if self.steps == needed - 1:
            self._observe_one_step(self.calls, trained)
        if self.steps < needed:
            return False
        self._remove_hooks()
        # DDP reads events in each of its first iterations on GPUs, which waits for the device
        self._over = self.device.type != "cuda" or self.steps > ALWAYS_COUNTED_ITERATIONS
        return self._over

    def _wrapped_parameters(self) -> list[Tensor]:
        """Those of all wrapped models."""
        parameters: list[Tensor] = []
        for module in list(self._wrappers.modules):
            parameters.extend(module.parameters())
        return parameters

    def _remove_hooks(self) -> None:
        for handle in self._hooks:
            handle.remove()
        self._hooks.clear()

    def _observe_one_step(self, calls: ModelCalls, trained: list[Tensor]) -> None:
        """Count its backward passes, and see whether fully_shard keeps the parameters gathered
        after its forward pass.
        """

        def backward_passed(parameter: Tensor) -> None:
            self.backwards += 1

        def forward_ended(module: nn.Module, args: object, outputs: object) -> None:
            self.stays_gathered = not any(
                hasattr(parameter, "placements") for parameter in module.parameters()
            )

        # each backward pass adds to the gradient of every parameter once
        leaf = next((parameter for parameter in trained if parameter.requires_grad), None)
        if leaf is not None and leaf.is_leaf:
            self._hooks.append(leaf.register_post_accumulate_grad_hook(backward_passed))  # type: ignore[no-untyped-call]
        for module in calls.modules:
            if any(is_fully_sharded(part) for part in module.modules()):
                self._hooks.append(module.register_forward_hook(forward_ended))


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _device(trained: Iterable[Tensor], modules: Iterable[nn.Module]) -> torch.device:
    """The device of the first of these parameters."""
    for parameter in trained:
        return parameter.device
    for module in modules:
        for parameter in module.parameters():
            return parameter.device
    return torch.device("cpu")
