"""The measurement of one process of a script: from its first step through the stages to the
files.
"""

import contextlib
import os
import threading
import traceback
from collections.abc import Callable

from torch.optim.optimizer import Optimizer

from dpscope.profiling.attached import job
from dpscope.profiling.attached.interception import OptimizerHook, ProfilerWatch, recording
from dpscope.profiling.attached.model_calls import ModelCalls, inner_module
from dpscope.profiling.attached.recorder import model_sizes, save_process
from dpscope.profiling.attached.settings import (
    STEP_RECORDED,
    AttachSettings,
    no_group,
    not_measured,
    started_alone,
)
from dpscope.profiling.attached.signals import EndingSignals
from dpscope.profiling.attached.stages import STAGES, Observed
from dpscope.profiling.attached.warm_up import WarmUp
from dpscope.profiling.attached.windows import TimedWindow, Window
from dpscope.profiling.attached.wrapped_models import WrapperLog, detect_strategy
from dpscope.profiling.instruments.ddp_counters import count_by_default, stop_counting
from dpscope.profiling.store.errors import DpscopeError, error_line

_COMPLETE = "measured completely"


class Session:
    """Measures the process in which it is constructed. Call `step_ended` at the end of each step
    and `close` at the script's end.

    Its states: the warm-up (`_observed` is None), then each of STAGES in turn (`_window` is that of
    the current one), then `_over`. It observes optimizers, wrapped models, profilers and signals
    from its construction on. An error in dpscope is reported in one line, and the script continues
    unmeasured.
    """

    def __init__(self, settings: AttachSettings, note: Callable[[str], None]) -> None:
        self.saved = False
        # why nothing is measured: other processes run the script without dpscope
        self.incomplete: str | None = None
        self._settings = settings
        self._note = note
        self._process_id = os.getpid()
        self._observed: Observed | None = None
        self._stages = iter(STAGES)
        self._window: Window | None = None
        self._part: job.SavedPart | None = None
        self._over = False
        self._steps = 0  # of the script, warm-up and stages
        self._is_recorded = False  # whether steps continue in a CUDA graph, unseen
        self._working = threading.Lock()  # a signal's thread saves between two steps
        if os.environ.get("RANK", "0") == "0":
            job.remove_unfinished_jobs(settings.out)

        def stepped(optimizer: Optimizer, args: object, kwargs: object) -> None:
            if not self._over and self._warm_up.ends_step(optimizer):
                self.step_ended()

        # in a child that the script forked, such as a loader's worker
        def left_to_parent() -> None:
            self._over = True

        # a check in each step would cost a system call
        os.register_at_fork(after_in_child=left_to_parent)
        self._wrappers = WrapperLog()
        self._profiler_watch = ProfilerWatch()
        self._optimizer_hook = OptimizerHook(stepped)
        self._warm_up = WarmUp(settings, self._wrappers)
        self._signals = EndingSignals(self._ended_by_signal)

    def step_called(self) -> None:
        """End a step of a `watch_steps` loop, with `--steps-by call`."""
        if self._settings.steps_by == "call":
            self.step_ended()

    def step_ended(self) -> None:
        if self._over:
            return
        if recording():  # this step has not run, and its replays call no optimizer
            self._is_recorded = self._settings.steps_by == "optimizer"
            return
        if self._is_recorded:
            self.close(STEP_RECORDED)
            return
        with self._working:
            try:
                self._step_ended()
            except Exception as error:
                self._give_up(error)
        if self._over and self.saved and self._settings.stop_after:
            raise SystemExit(0)

    def close(self, how: str) -> None:
        """Save what was measured, unless it is saved; `how` the script ended, such as ``the script
        raised ValueError``.
        """
        if os.getpid() != self._process_id:
            return
        with self._working:
            try:
                if not self._over:
                    self._finish(STEP_RECORDED if self._is_recorded else how)
                elif self.incomplete is not None:  # printed at the end, as the last line
                    self._note_first(self.incomplete)
                elif self._part is not None:
                    # the other processes' files may have become visible late
                    job.finish_job(self._part)
            except Exception as error:
                self._give_up(error)
        self._optimizer_hook.stop()

    def _ended_by_signal(self, how: str) -> None:
        """Like `close`, in another thread and without waiting: the main thread may be stuck in a
        collective.
        """
        with self._working:
            if self._over:
                return
            self._over = True
            try:
                if isinstance(self._window, TimedWindow):
                    self._window.cut()
                self._save(how)
            except Exception as error:
                self._note(f"{how}, and saving failed ({error_line(error)})")

    def _note_first(self, text: str) -> None:
        """Note what holds for all processes once, in the first."""
        if os.environ.get("RANK", "0") == "0":
            self._note(text)

    def _step_ended(self) -> None:
        self._steps += 1
        if self._observed is None or self._window is None:
            is_over = self._warm_up.step_ended()
            if is_over and self._warm_up.calls is not None:
                self._begin_measuring(self._warm_up.calls)
            return
        calls = self._observed.calls.take()
        calls.profiled = self._profiler_watch.busy
        if self._window.step_ended(calls):
            self._window.end()
            if not self._is_incomplete(self._observed):
                self._enter_next_stage(self._observed)

    def _begin_measuring(self, calls: ModelCalls) -> None:
        warm_up = self._warm_up
        place = job.current_place(warm_up.device)
        if place is None:
            self._note_first(no_group())
            self._leave()
            return
        modules = [inner_module(module) for module in calls.modules]
        detected = detect_strategy(
            modules, warm_up.trained, self._wrappers, place.world_size, warm_up.stays_gathered
        )
        self._observed = Observed(
            self._settings,
            job.join_job(place, self._settings.out),
            place,
            warm_up.device,
            detected,
            self._wrappers,
            warm_up,
            calls,
            self._profiler_watch,
            model_sizes(detected, calls, warm_up),
            TimedWindow(self._settings.steps, warm_up.device),
        )
        for model in detected.ddp:
            stop_counting(model)
        calls.take()
        self._enter_next_stage(self._observed)

    def _enter_next_stage(self, observed: Observed) -> None:
        stage = next((stage for stage in self._stages if stage.applies(observed)), None)
        if stage is None:
            self._finish(_COMPLETE)
            return
        self._window = stage.window(observed)
        self._window.begin()

    def _is_incomplete(self, observed: Observed) -> bool:
        """Whether processes of the job run without dpscope; then the measurement has ended."""
        missing = job.missing_processes(observed.place)
        if missing:
            processes = observed.place.world_size
            script = self._settings.script
            self.incomplete = started_alone(missing, processes, script)
            self._leave()
        return missing > 0

    def _finish(self, how: str) -> None:
        self._over = True
        if self._window is not None:
            self._window.end()
        self._save(how)
        self._leave()

    def _save(self, how: str) -> None:
        observed = self._observed
        if observed is None or not observed.timed.calls:
            self._note_first(not_measured(how, self._steps, self._settings))
            return
        if how != _COMPLETE:
            observed.ended_early = how
            observed.steps = self._steps
        self._part = save_process(observed)
        self.saved = True
        is_whole = job.finish_job(self._part)
        if how != _COMPLETE and observed.place.rank == 0:
            kept = f"saved, once all {observed.place.world_size} processes have saved theirs"
            if is_whole:
                kept = "what was measured is saved"
            self._note(f"{how}: {observed.early_text()}; {kept}")

    def _give_up(self, error: Exception) -> None:
        self._over, self._part = True, None
        if self._window is not None:
            with contextlib.suppress(Exception):  # the first error is reported
                self._window.end()
        self._leave()
        where = traceback.extract_tb(error.__traceback__)[-1]
        at = f", {os.path.basename(where.filename)}:{where.lineno}"
        if isinstance(error, DpscopeError):
            at = ""
        self._note(
            f"the measurement failed ({error_line(error)}{at}); the script continues without it"
        )

    def _leave(self) -> None:
        """Remove all hooks, and all references to objects that the script may want to free."""
        self._over = True
        self._optimizer_hook.stop_within_step()
        self._wrappers.stop()
        self._profiler_watch.stop()
        self._warm_up.leave()
        self._signals.stop()
        if self._observed is not None:
            for model in self._observed.detected.ddp:
                count_by_default(model)
        self._observed, self._window = None, None
