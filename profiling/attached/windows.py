"""The parts of an attached measurement: warm-up, traced steps, timed steps, DDP's counters. No step
is in two of them.

In the warm-up is found out what ends the script's steps, the model that it calls, and its
micro-batches. Of a window `begin` is called between two steps, `step_ended` at the end of each of
its steps, which returns whether it was the last one, and `end` once, also if the script ends within
it.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer
from torch.utils.hooks import RemovableHandle

from dpscope.profiling.attached.interception import ProfilerWatch
from dpscope.profiling.attached.model_calls import ModelCalls, StepCalls, outermost_modules
from dpscope.profiling.attached.settings import AttachSettings, StepsBy
from dpscope.profiling.attached.step_cycles import (
    UNSETTLED_STEPS,
    CollectiveCount,
    StepEvents,
    cycle_of,
)
from dpscope.profiling.attached.wrapped_models import WrapperLog, is_fully_sharded
from dpscope.profiling.instruments.ddp_counters import StepCounters
from dpscope.profiling.instruments.step_timer import StepSample, StepTimer
from dpscope.profiling.instruments.trace_recorder import StepTrace
from dpscope.profiling.records.run import DdpCounters, DeviceMemory

_MOST_WARM_UP = 3  # times the steps asked for, while the cycle of unlike steps is looked for
# of another optimizer without the first one's; after more, the first is no longer in use
_MAX_OTHER_STEPS = 10


class WarmUp:
    """The steps before the timed ones; `steps` of them have ended."""

    def __init__(
        self, settings: AttachSettings, wrappers: WrapperLog, step_ended: Callable[[], None]
    ) -> None:
        self.steps = 0
        self.calls: ModelCalls | None = None
        self.backwards = 0  # backward passes of a step, 0 where they could not be counted
        # whether fully_shard leaves all parameters gathered after the forward pass
        self.stays_gathered = False
        # of parameters that required a gradient when their optimizer stepped
        self.trained_ids: set[int] = set()
        # those that stepped, in the order of their first steps
        self.optimizers: list[Optimizer] = []
        # Of those that first stepped after the warm-up, by id: a script may make and drop one in
        # every step.
        self.late_optimizers: dict[int, type[Optimizer]] = {}
        self._settings = settings
        self._wrappers = wrappers
        self._end_step = step_ended
        self.restarts = 0  # how often the warm-up began again with another optimizer
        # steps of each other optimizer since the first one's last step
        self._since_first: Counter[int] = Counter()
        self._hooks: list[RemovableHandle] = []
        self._over = False
        # steps after which the script does the same again; None: not found
        self.cycle: int | None = 1
        self._events: list[StepEvents] = []  # of the steps after the first
        self._others = 0  # steps of optimizers other than the first within the current step
        self._collectives = CollectiveCount()
        self.steps_by: StepsBy = settings.steps_by
        if settings.steps_by == "forward":
            self._find_model()

    @property
    def trained(self) -> list[Tensor]:
        """The parameters of all optimizers."""
        return [one for optimizer in self.optimizers for one in _parameters(optimizer)]

    @property
    def device(self) -> torch.device:
        """The device of the trained parameters."""
        return _device(self.trained, self.calls.modules if self.calls is not None else ())

    def is_first(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer, which has just stepped, is the one whose steps end the script's
        steps.

        This is the first one that stepped. If others keep stepping without it, as after a short
        training before the real one, the warm-up restarts with the current one.
        """
        if (
            not self.optimizers
            and self.steps_by == "optimizer"
            and torch._C._current_graph_task_id() != -1
        ):
            # it steps within a backward pass, as one optimizer per parameter does
            self.steps_by = "forward"
            self._find_model()
        warming_up = not self._over
        if warming_up:  # collected over steps: in a GAN the models' gradients alternate
            self.trained_ids |= {id(one) for one in _parameters(optimizer) if one.requires_grad}
        if not self.optimizers or optimizer is self.optimizers[0]:
            self.optimizers = self.optimizers or [optimizer]
            self._since_first.clear()
            return True
        self._others += 1
        is_new = all(optimizer is not one for one in self.optimizers)
        if not warming_up:
            if is_new:
                self.late_optimizers[id(optimizer)] = type(optimizer)
            return False
        if is_new:
            self.optimizers.append(optimizer)
        self._since_first[id(optimizer)] += 1
        most = max(_MAX_OTHER_STEPS, self._settings.warmup_steps)
        if self.steps_by != "optimizer" or self._since_first[id(optimizer)] <= most:
            return False
        self.leave()
        self.steps = self.backwards = 0
        self.restarts += 1
        self._since_first.clear()
        self._events.clear()
        self.optimizers = [optimizer]
        return True

    def leave(self) -> None:
        """Remove all hooks, and all references to objects that the script may want to free."""
        self.stop()
        if self.calls is not None:
            self.calls.stop()
        self.calls, self.optimizers, self.late_optimizers = None, [], {}

    def other_steps(self) -> int:
        """How often other optimizers than the first have stepped since the last call."""
        count, self._others = self._others, 0
        return count

    def step_ended(self) -> bool:
        """Called at the end of each step; returns whether the warm-up is over."""
        self.steps += 1
        needed, others = self._settings.warmup_steps, self.other_steps()
        trained = _parameters(self.optimizers[0]) if self.optimizers else []
        if self.calls is None:  # without an optimizer, the wrapped models are watched
            wrapped = [
                one for module in list(self._wrappers.modules) for one in module.parameters()
            ]
            modules = outermost_modules(trained or wrapped)
            self.calls = ModelCalls(_device(trained, modules).type)
            self.calls.watch(modules)
        else:
            calls = self.calls.take().each
            self._events.append(StepEvents(others, len(calls), self._collectives.take()))
            if not calls and self.steps_by != "forward" and self.steps < needed:
                self.calls.look_inside()
                self._events.clear()
        if self.steps == needed - 1:
            self._observe_one_step(self.calls, trained)
        if self.steps < needed:
            return False
        self.stop()
        settled = self._events[UNSETTLED_STEPS:]
        self.cycle = cycle_of(settled) if len(settled) > 1 else 1
        self._over = self.cycle is not None or self.steps >= _MOST_WARM_UP * needed
        return self._over

    def stop(self) -> None:
        """Remove the hooks of the warm-up alone."""
        for handle in self._hooks:
            handle.remove()
        self._hooks.clear()

    def _find_model(self) -> None:
        """Find the model when it is called."""
        self._hooks.append(register_module_forward_pre_hook(self._first_called))

    def _first_called(self, module: nn.Module, args: object) -> None:
        """Watch the first module that is called for training, an outermost one: its calls begin the
        steps.
        """
        training = torch.is_grad_enabled() and module.training
        if torch.compiler.is_compiling() or not training or self.calls is not None:
            return
        if any(parameter.requires_grad for parameter in module.parameters()):
            self.stop()
            self.calls = ModelCalls(_device([], [module]).type, on_training=self._end_step)
            self.calls.watch([module])

    def _observe_one_step(self, calls: ModelCalls, trained: list[Tensor]) -> None:
        """Count its backward passes, and see whether fully_shard keeps the parameters gathered
        after its forward pass.
        """
        leaf = next((one for one in trained if one.requires_grad), None)

        def backward_passed(parameter: Tensor) -> None:
            self.backwards += 1

        def forward_ended(module: nn.Module, args: object, outputs: object) -> None:
            self.stays_gathered = not any(hasattr(one, "placements") for one in module.parameters())

        # each backward pass adds to the gradient of every parameter once
        if leaf is not None and leaf.is_leaf:
            self._hooks.append(leaf.register_post_accumulate_grad_hook(backward_passed))  # type: ignore[no-untyped-call]
        for module in calls.modules:
            if any(is_fully_sharded(part) for part in module.modules()):
                self._hooks.append(module.register_forward_hook(forward_ended))


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _device(trained: Iterable[Tensor], modules: Iterable[nn.Module]) -> torch.device:
    tensors = [*trained, *(one for module in modules for one in module.parameters())]
    return next((one.device for one in tensors), torch.device("cpu"))


def finish_work(device: torch.device) -> None:
    """Wait for this process's device, but not for other processes: synchronising them is up to the
    script.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def whole_cycles(steps: int, cycle: int) -> int:
    """The fewest steps from `steps` on that are whole cycles."""
    return -(-steps // cycle) * cycle


class TimedWindow:
    """Timed steps: the only addition is one clock reading per step, of the device on CUDA and of
    the host on a CPU.
    """

    def __init__(self, steps: int, device: torch.device) -> None:
        self.calls: list[StepCalls] = []
        self.duration_s = 0.0
        self.durations_us: list[float] = []
        self.memory: tuple[DeviceMemory, ...] = ()
        self._steps = steps
        self._device = device
        self._timer = StepTimer(device)
        self._began_s = self._ended_s = 0.0

    def begin(self) -> None:
        finish_work(self._device)
        self._began_s = self._ended_s = time.perf_counter()
        self._timer.boundary()

    def step_ended(self, calls: StepCalls) -> bool:
        self._timer.boundary()
        self.calls.append(calls)
        if len(self.calls) < self._steps:
            return False
        finish_work(self._device)
        self._ended_s = time.perf_counter()
        return True

    def end(self) -> None:
        finish_work(self._device)
        self._read()
        if len(self.calls) >= self._steps:
            self.duration_s = self._ended_s - self._began_s

    def cut(self) -> None:
        """End the window without waiting for the device, with the steps that the device has
        finished.
        """
        if not self.durations_us:
            self._timer.drop_unfinished()
            self._read()
            self.calls = self.calls[: len(self.durations_us)]

    def _read(self) -> None:
        """Read the durations, and the peak memory since the script began or last reset torch's
        statistics.
        """
        device = self._device
        self.durations_us = self._timer.step_durations_us()
        self.duration_s = sum(self.durations_us) / 1e6
        if device.type == "cuda":
            used_bytes = (
                torch.cuda.max_memory_allocated(device),
                torch.cuda.max_memory_reserved(device),
            )
            self.memory = (DeviceMemory(device.index or 0, *used_bytes),)


class TracedWindow:
    """Steps under torch.profiler, unless the script uses a profiler itself.

    With `counted`, a DDP model, its counters are read too, and one more step follows, after which
    the last ones are read.
    """

    def __init__(
        self,
        trace: StepTrace,
        profiler_watch: ProfilerWatch,
        counted: DistributedDataParallel | None = None,
    ) -> None:
        self.interrupted_steps = 0  # traced steps with calls outside of training
        self.counters: list[DdpCounters] = []  # empty unless they are complete
        self._trace, self._profiler_watch, self._counted = trace, profiler_watch, counted
        self._counting: StepCounters | None = None
        self._running = False
        self._alone = ExitStack()

    @property
    def complete(self) -> bool:
        """Whether the trace was saved."""
        return self._trace.complete

    def begin(self) -> None:
        if self._counted is not None:
            self._counting = StepCounters(self._counted)
        if self._profiler_watch.busy:
            return
        self._profiler_watch.before = self._give_way
        self._alone.enter_context(self._profiler_watch.alone(self._trace.profiler))
        with self._profiler_watch.ignored():
            self._trace.start()
        self._running = True

    def step_ended(self, calls: StepCalls) -> bool:
        if self._counting is not None:
            self._counting.step_ended()
            if self.complete:
                self.counters = self._counting.counters
                return True
        if not self._running:
            return True
        self.interrupted_steps += calls.other > 0
        return self._trace.step_ended(sum(calls.each)) and self._counting is None

    def end(self) -> None:
        self._give_way()
        self._profiler_watch.before = lambda: None

    def samples(self) -> list[StepSample]:
        """The traced steps; empty if no trace was saved."""
        return self._trace.samples() if self.complete else []

    def _give_way(self) -> None:
        self._alone.close()
        if self._running:
            self._trace.stop()
            self._running = False  # not where stopping failed: it is tried again


Window = TimedWindow | TracedWindow
"""A part of the measurement: some consecutive steps."""
