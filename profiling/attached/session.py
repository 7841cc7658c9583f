"""One process of a script while it is measured: from its first step through the windows to the files."""

import os
import traceback
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from dpscope.profiling.attached.finished_job import finish_job
from dpscope.profiling.attached.model_calls import ModelCalls, inner_module, outermost_modules
from dpscope.profiling.attached.own_profiler import OwnProfiler
from dpscope.profiling.attached.place import attached_place, shared_folder
from dpscope.profiling.attached.recorder import Seen, model_name, save_process
from dpscope.profiling.attached.settings import AttachSettings
from dpscope.profiling.attached.windows import CountedWindow, TimedWindow, TracedWindow, Window
from dpscope.profiling.attached.wrapped_models import Constructed, tell_strategy
from dpscope.profiling.instruments.ddp_counters import ALWAYS_COUNTED_ITERATIONS, stop_counting
from dpscope.profiling.store.folders import RepeatFolder

MEASURED = "measured whole"


class Session:
    """Measures the process that it is made in. `step_ended` is called at the end of each step, `close` when all is over.

    What goes wrong in dpscope is told in one line, and the script goes on unmeasured.
    """

    def __init__(self, settings: AttachSettings, note: Callable[[str], None]) -> None:
        self.saved = False
        self._settings = settings
        self._note = note
        self._process_id = os.getpid()
        self._constructed = Constructed()
        self._own_profiler = OwnProfiler()
        self._calls: ModelCalls | None = None
        self._warmed_up = 0
        self._warmup_steps = settings.warmup_steps
        self._optimizers: dict[int, Optimizer] = {}  # those that stepped, the first one first
        self._optimizer_hook: RemovableHandle | None = None
        self._warmup_hooks: list[RemovableHandle] = []
        self._backwards = 0
        self._seen: Seen | None = None
        self._folder: RepeatFolder | None = None
        self._window: Window | None = None
        self._over = False

    def listen(self) -> None:
        """Begin to notice optimizers, wrapped models and profilers."""
        self._constructed.listen()
        self._own_profiler.listen()
        # A compiled optimizer calls the hook after its graph, and not within it. torch's own decorator, since the public one
        # loads the compiler at once, and this one when it is first called: optimizers have loaded it by then.
        stepped = _disable_dynamo(lambda *call: self._optimizer_stepped(*call))
        self._optimizer_hook = register_optimizer_step_post_hook(stepped)
        if self._settings.steps_by == "forward":
            self._warmup_hooks.append(register_module_forward_pre_hook(self._first_called))

    def step_called(self) -> None:
        """The end of a step that the script's own loop tells, where it is asked to."""
        if self._settings.steps_by == "call":
            self.step_ended()

    def step_ended(self) -> None:
        """The end of a step and the beginning of the next."""
        if self._over or os.getpid() != self._process_id:
            return
        try:
            self._step_ended()
        except Exception as error:
            self._give_up(error)
        if self._over and self.saved and self._settings.stop_after:
            raise SystemExit(0)

    def close(self, how: str) -> None:
        """Save what was measured, if that has not been done; `how` the script ended, such as ``it raised ValueError``."""
        if os.getpid() != self._process_id:
            return
        try:
            if not self._over:
                self._finish(how)
            elif self._folder is not None and self._seen is not None:
                finish_job(self._folder, self._seen)  # another process may have saved last, where files are seen late
        except Exception as error:
            self._give_up(error)

    def _optimizer_stepped(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        if self._over:
            return
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = optimizer
        if self._settings.steps_by == "optimizer" and id(optimizer) == next(iter(self._optimizers)):
            self.step_ended()

    def _first_called(self, module: nn.Module, args: object) -> None:
        """Steps begin with the calls of the first module that is called to be trained: it is no part of another one."""
        if (
            torch.compiler.is_compiling()
            or not (torch.is_grad_enabled() and module.training)
            or self._calls is not None
        ):
            return
        if any(parameter.requires_grad for parameter in module.parameters()):
            self._remove_warmup_hooks()
            self._calls = ModelCalls(_device([], [module]).type, on_training=self.step_ended)
            self._calls.watch([module])

    def _step_ended(self) -> None:
        if self._window is None:
            self._warm_up()
            return
        assert self._calls is not None
        if self._window.step_ended(self._calls.take()):
            self._next_window()

    def _warm_up(self) -> None:
        self._warmed_up += 1
        if self._calls is None:
            self._find_model()
        elif (
            not self._calls.take().training
            and self._settings.steps_by != "forward"
            and self._warmed_up < self._warmup_steps
        ):
            self._calls.look_inside()
        if self._warmed_up == self._warmup_steps - 1:
            self._count_backwards()
        elif self._warmed_up >= self._warmup_steps:
            self._begin_measuring()

    def _find_model(self) -> None:
        """Watch the modules that hold what the first optimizer trains; a loop without one has those that wrap a model."""
        first = next(iter(self._optimizers.values()), None)
        trained = _parameters(first) if first is not None else []
        wrapped = list(self._constructed.modules)
        modules = outermost_modules(trained or [one for module in wrapped for one in module.parameters()])
        self._calls = ModelCalls(_device(trained, modules).type)
        self._calls.watch(modules)

    def _count_backwards(self) -> None:
        """For one step: each backward pass adds to the gradient of every parameter once."""
        first = next(iter(self._optimizers.values()), None)
        leaf = next((one for one in _parameters(first) if one.requires_grad), None) if first is not None else None
        if leaf is not None and leaf.is_leaf:
            hook = leaf.register_post_accumulate_grad_hook(self._backward_passed)  # type: ignore[no-untyped-call]
            self._warmup_hooks.append(hook)

    def _backward_passed(self, parameter: Tensor) -> None:
        self._backwards += 1

    def _begin_measuring(self) -> None:
        assert self._calls is not None
        self._remove_warmup_hooks()
        place = attached_place()
        if place is None:
            self._over = True
            self._stop_listening()
            return
        trained = [one for optimizer in self._optimizers.values() for one in _parameters(optimizer)]
        device = _device(trained, self._calls.modules)
        modules = [inner_module(module) for module in self._calls.modules]
        told = tell_strategy(modules, trained, self._constructed, place.world_size)
        if device.type == "cuda" and self._warmed_up <= ALWAYS_COUNTED_ITERATIONS:
            return
        for model in told.ddp:
            stop_counting(model)
        self._folder = shared_folder(self._settings.out, place)
        self._seen = Seen(
            settings=self._settings,
            place=place,
            device=device,
            told=told,
            constructed=self._constructed,
            calls=self._calls,
            model=model_name(self._calls.modules),
            trained=trained,
            optimizers=tuple(type(one).__name__ for one in self._optimizers.values()),
            backwards=self._backwards,
            own_profiler=self._own_profiler,
            timed=TimedWindow(self._settings.steps, device),
        )
        self._window = self._seen.timed
        self._calls.take()
        self._window.begin()

    def _next_window(self) -> None:
        """End the window that is over; begin the next, or save."""
        seen, window = self._seen, self._window
        assert seen is not None
        assert window is not None
        assert self._folder is not None
        window.end()
        place, steps = seen.place, self._settings.traced_steps
        all_threads = seen.told.strategy == "dp"
        if window is seen.timed:
            path = self._folder.trace_path(place.node, place.rank)
            seen.traced = TracedWindow(steps, path, seen.device, all_threads, self._own_profiler)
            self._window = seen.traced
        elif window is seen.traced and seen.traced.complete and self._counters_tell(seen):
            path = self._folder.counters_trace_path(place.node, place.rank)
            traced = TracedWindow(steps, path, seen.device, all_threads, self._own_profiler)
            seen.counted = CountedWindow(traced, seen.told.ddp[0])
            self._window = seen.counted
        else:
            self._finish(MEASURED)
            return
        self._window.begin()

    @staticmethod
    def _counters_tell(seen: Seen) -> bool:
        """Whether DDP's counters describe all that is reduced in a step."""
        return len(seen.told.ddp) == 1 and seen.place.world_size > 1

    def _finish(self, how: str) -> None:
        self._over = True
        seen, window = self._seen, self._window
        self._stop_listening()
        if seen is None or window is None or self._folder is None:
            self._note(self._nothing_measured(how))
            return
        if how != MEASURED:
            seen.ended_early = how
            window.end()
        if not seen.timed.calls:
            self._note(self._nothing_measured(how))
            return
        save_process(seen, self._folder)
        seen.calls.stop()
        self.saved = True
        finish_job(self._folder, seen)
        if how != MEASURED and seen.place.rank == 0:
            self._note(
                f"{how}: {len(seen.timed.calls)} of {self._settings.steps} steps were timed; what was measured is saved"
            )

    def _nothing_measured(self, how: str) -> str:
        if not self._warmed_up:
            what = "no step was seen, as no optimizer of torch's has stepped; use --steps-by forward, or watch_steps"
        else:
            what = (
                f"nothing was measured: {self._warmed_up} steps were seen, and the first {self._warmup_steps} are warm-up; "
                "use a smaller --warmup, or let the script train longer"
            )
        return f"{how}: {what}"

    def _give_up(self, error: Exception) -> None:
        self._over = True
        self._stop_listening()
        if self._window is not None:
            try:
                self._window.end()
            except Exception as second:  # what is told is the first error
                error.add_note(f"and then {second}")
        where = traceback.extract_tb(error.__traceback__)[-1]
        self._note(
            f"the measurement failed ({type(error).__name__}: {error}, {os.path.basename(where.filename)}:{where.lineno}); "
            "the script goes on without it"
        )

    def _stop_listening(self) -> None:
        if self._optimizer_hook is not None:
            self._optimizer_hook.remove()
        self._remove_warmup_hooks()
        self._constructed.stop()
        self._own_profiler.stop()

    def _remove_warmup_hooks(self) -> None:
        for handle in self._warmup_hooks:
            handle.remove()
        self._warmup_hooks.clear()


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _device(trained: Iterable[Tensor], modules: Iterable[nn.Module]) -> torch.device:
    """The device of what is trained."""
    tensors = [*trained, *(one for module in modules for one in module.parameters())]
    return next((one.device for one in tensors), torch.device("cpu"))
