"""What is found out about a script before it is timed: what ends its steps, the model that it calls, its micro-batches."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer
from torch.utils.hooks import RemovableHandle

from dpscope.profiling.attached.model_calls import ModelCalls, outermost_modules
from dpscope.profiling.attached.settings import AttachSettings
from dpscope.profiling.attached.wrapped_models import WrapperLog, is_fully_sharded

_MAX_OTHER_STEPS = 10  # of other optimizers in a row; after more, the first optimizer is no longer in use


class WarmUp:
    """The steps before the timed ones; `steps` of them have ended."""

    def __init__(self, settings: AttachSettings, wrappers: WrapperLog, step_ended: Callable[[], None]) -> None:
        self.steps = 0
        self.calls: ModelCalls | None = None
        self.backwards = 0  # backward passes of a step, 0 where they could not be counted
        self.stays_gathered = False  # whether fully_shard leaves all parameters gathered after the forward pass
        self.trained_ids: set[int] = set()  # of parameters that required a gradient when their optimizer stepped
        self.optimizers: list[Optimizer] = []  # those that stepped, in the order of their first steps
        self._settings = settings
        self._wrappers = wrappers
        self._end_step = step_ended
        self._since_first = 0
        self._hooks: list[RemovableHandle] = []
        if settings.steps_by == "forward":  # the model is found when it is called
            self._hooks.append(register_module_forward_pre_hook(self._first_called))

    @property
    def trained(self) -> list[Tensor]:
        """The parameters of all optimizers."""
        return [one for optimizer in self.optimizers for one in _parameters(optimizer)]

    @property
    def device(self) -> torch.device:
        """The device of the trained parameters."""
        return _device(self.trained, self.calls.modules if self.calls is not None else ())

    def is_first(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer, which has just stepped, is the one whose steps end the script's steps.

        This is the first one that stepped. If others keep stepping without it, as after a short training before the real one,
        the warm-up restarts with the current one.
        """
        warming_up = self.steps < self._settings.warmup_steps
        if warming_up:  # collected over steps: in a GAN the models' gradients alternate
            self.trained_ids |= {id(one) for one in _parameters(optimizer) if one.requires_grad}
        if not self.optimizers or optimizer is self.optimizers[0]:
            self.optimizers = self.optimizers or [optimizer]
            self._since_first = 0
            return True
        if not warming_up:
            return False
        if all(optimizer is not one for one in self.optimizers):
            self.optimizers.append(optimizer)
        self._since_first += 1
        most = max(_MAX_OTHER_STEPS, self._settings.warmup_steps)
        if self._settings.steps_by != "optimizer" or self._since_first <= most:
            return False
        self.leave()
        self.steps = self.backwards = self._since_first = 0
        self.optimizers = [optimizer]
        return True

    def leave(self) -> None:
        """Remove all hooks, and all references to objects that the script may want to free."""
        self.stop()
        if self.calls is not None:
            self.calls.stop()
        self.calls, self.optimizers = None, []

    def step_ended(self) -> bool:
        """Called at the end of each step; returns whether the warm-up is over."""
        self.steps += 1
        needed = self._settings.warmup_steps
        if self.calls is None:
            self._find_model()
        elif not self.calls.take().each and self._settings.steps_by != "forward" and self.steps < needed:
            self.calls.look_inside()
        if self.steps == needed - 1:
            self._count_backwards()
            self._check_after_forward()
        elif self.steps >= needed:
            self.stop()
            return True
        return False

    def stop(self) -> None:
        """Remove the hooks of the warm-up alone."""
        for handle in self._hooks:
            handle.remove()
        self._hooks.clear()

    def _find_model(self) -> None:
        """Watch the modules that hold the first optimizer's parameters, or without an optimizer the wrapped models."""
        trained = _parameters(self.optimizers[0]) if self.optimizers else []
        wrapped = list(self._wrappers.modules)
        modules = outermost_modules(trained or [one for module in wrapped for one in module.parameters()])
        self.calls = ModelCalls(_device(trained, modules).type)
        self.calls.watch(modules)

    def _first_called(self, module: nn.Module, args: object) -> None:
        """Watch the first module that is called for training, an outermost one: its calls begin the steps."""
        training = torch.is_grad_enabled() and module.training
        if torch.compiler.is_compiling() or not training or self.calls is not None:
            return
        if any(parameter.requires_grad for parameter in module.parameters()):
            self.stop()
            self.calls = ModelCalls(_device([], [module]).type, on_training=self._end_step)
            self.calls.watch([module])

    def _count_backwards(self) -> None:
        """In one step: each backward pass adds to the gradient of every parameter once."""
        trained = _parameters(self.optimizers[0]) if self.optimizers else []
        leaf = next((one for one in trained if one.requires_grad), None)
        if leaf is not None and leaf.is_leaf:
            hook = leaf.register_post_accumulate_grad_hook(self._backward_passed)  # type: ignore[no-untyped-call]
            self._hooks.append(hook)

    def _check_after_forward(self) -> None:
        """In one step: the parameters after a forward pass show whether fully_shard keeps them gathered."""
        for module in self.calls.modules if self.calls is not None else ():
            if any(is_fully_sharded(part) for part in module.modules()):
                self._hooks.append(module.register_forward_hook(self._forward_ended))

    def _forward_ended(self, module: nn.Module, args: object, outputs: object) -> None:
        self.stays_gathered = not any(hasattr(one, "placements") for one in module.parameters())

    def _backward_passed(self, parameter: Tensor) -> None:
        self.backwards += 1


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _device(trained: Iterable[Tensor], modules: Iterable[nn.Module]) -> torch.device:
    tensors = [*trained, *(one for module in modules for one in module.parameters())]
    return next((one.device for one in tensors), torch.device("cpu"))
