"""One process of a script while it is measured: from its first step through the windows to the files."""

import os
import threading
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path

from torch.optim.optimizer import Optimizer

from dpscope.profiling.attached.ending_signals import EndingSignals
from dpscope.profiling.attached.finished_job import SavedPart, finish_job
from dpscope.profiling.attached.messages import (
    after_another_job,
    no_group,
    no_optimizer,
    started_alone,
    without_measurement,
)
from dpscope.profiling.attached.model_calls import inner_module
from dpscope.profiling.attached.optimizer_hook import BackwardCount, OptimizerHook
from dpscope.profiling.attached.own_profiler import OwnProfiler
from dpscope.profiling.attached.place import attached_place, join_job, missing_processes, name_of_job, transport_of
from dpscope.profiling.attached.recorder import Seen, model_name, save_process
from dpscope.profiling.attached.settings import AttachSettings
from dpscope.profiling.attached.unfinished_jobs import HeldFolder, gathering_folder, remove_unfinished_jobs
from dpscope.profiling.attached.warm_up import WarmUp
from dpscope.profiling.attached.windows import CountedWindow, SettlingWindow, TimedWindow, TracedWindow, Window
from dpscope.profiling.attached.wrapped_models import Constructed, tell_strategy
from dpscope.profiling.instruments.ddp_counters import ALWAYS_COUNTED_ITERATIONS, count_by_default, stop_counting
from dpscope.profiling.store.folders import RepeatFolder

MEASURED = "measured whole"


class Session:
    """Measures the process that it is made in. `step_ended` is called at the end of each step, `close` when all is over.

    What goes wrong in dpscope is told in one line, and the script goes on unmeasured.
    """

    def __init__(self, settings: AttachSettings, note: Callable[[str], None]) -> None:
        self.saved = False
        self.incomplete: str | None = None  # why nothing can come of it: other processes run the script without dpscope
        self._settings = settings
        self._note = note
        self._process_id = os.getpid()
        _leave_forked_children(weakref.ref(self))
        self._constructed = Constructed()
        self._own_profiler = OwnProfiler()
        self._signals = EndingSignals(self._ended_by_signal)
        self._warm_up = WarmUp(settings, self._constructed, self.step_ended)
        self._backwards = BackwardCount(self._no_optimizer)
        self._optimizer_hook = OptimizerHook()
        self._seen: Seen | None = None
        self._folder: RepeatFolder | None = None
        self._held: HeldFolder | None = None
        self._window: Window | None = None
        self._part: SavedPart | None = None
        self._over = False
        self._steps = 0  # of the script, warm-up and windows
        self._working = threading.Lock()  # a signal's thread saves between two steps

    def listen(self) -> None:
        """Begin to notice optimizers, wrapped models, profilers and signals."""
        if os.environ.get("RANK", "0") == "0":
            remove_unfinished_jobs(self._settings.out)
        self._constructed.listen()
        self._own_profiler.listen()
        self._signals.listen()
        by_optimizer = self._settings.steps_by == "optimizer"

        def stepped(optimizer: Optimizer, args: object, kwargs: object) -> None:
            self._backwards.stop()
            if not self._over and self._warm_up.is_first(optimizer) and by_optimizer:
                self.step_ended()

        self._optimizer_hook.listen(stepped)
        if by_optimizer:
            self._backwards.listen()
        self._warm_up.listen()

    def step_called(self) -> None:
        """The end of a step that the script's own loop tells, where it is asked to."""
        if self._settings.steps_by == "call":
            self.step_ended()

    def step_ended(self) -> None:
        """The end of a step and the beginning of the next."""
        if self._over:
            return
        with self._working:
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
        with self._working:
            try:
                if not self._over:
                    self._finish(how)
                elif self.incomplete is not None:  # at the end, where it is the last line
                    self._note(self.incomplete)
                elif self._part is not None and self._folder is not None:
                    finish_job(
                        self._folder, self._part
                    )  # another process may have saved last, where files are seen late
            except Exception as error:
                self._give_up(error)
        self._optimizer_hook.stop()
        self._backwards.stop()

    def leave_to_parent(self) -> None:
        """In a child that the script forked, such as a loader's worker: nothing is measured there."""
        self._over = True

    def _ended_by_signal(self, how: str) -> None:
        """As `close`, beside the main thread, which may wait for what never comes: nothing is waited for."""
        with self._working:
            if self._over:
                return
            self._over = True
            try:
                if isinstance(self._window, TimedWindow):
                    self._window.cut()
                self._save(how)
            except Exception as error:
                self._note(f"{how}, and saving failed ({type(error).__name__}: {error})")

    def _no_optimizer(self) -> None:
        if os.environ.get("RANK", "0") == "0":
            self._note(no_optimizer())

    def _step_ended(self) -> None:
        self._steps += 1
        if self._window is None:
            if self._warm_up.step_ended():
                self._begin_measuring()
            return
        assert self._seen is not None
        if self._window.step_ended(self._seen.calls.take()):
            self._next_window()

    def _begin_measuring(self) -> None:
        warm_up, calls = self._warm_up, self._warm_up.calls
        assert calls is not None
        place = attached_place()
        if place is None:
            if os.environ.get("RANK", "0") == "0":
                self._note(no_group())
            self._leave()
            return
        device = warm_up.device
        modules = [inner_module(module) for module in calls.modules]
        told = tell_strategy(modules, warm_up.trained, self._constructed, place.world_size, warm_up.stays_gathered)
        if device.type == "cuda" and warm_up.steps <= ALWAYS_COUNTED_ITERATIONS:
            return
        self._folder = gathering_folder(self._settings.out, name_of_job(place))
        join_job(place)
        self._seen = Seen(
            settings=self._settings,
            place=place,
            transport=transport_of(place, device),
            device=device,
            told=told,
            constructed=self._constructed,
            calls=calls,
            model=model_name(calls.modules),
            trained=warm_up.trained,
            trained_ids=frozenset(warm_up.trained_ids),
            optimizers=tuple(type(one).__name__ for one in warm_up.optimizers),
            backwards=warm_up.backwards,
            own_profiler=self._own_profiler,
            timed=TimedWindow(self._settings.steps, device),
        )
        for model in told.ddp:
            stop_counting(model)
        calls.take()
        self._held = HeldFolder(self._folder, place.node, place.rank)
        if self._settings.traced_steps:
            self._seen.traced = self._trace_to(self._seen, self._folder.trace_path(place.node, place.rank))
        self._window = self._seen.traced or self._seen.timed
        self._window.begin()

    def _next_window(self) -> None:
        """End the window that is over; begin the next, or save."""
        seen, window, folder = self._seen, self._window, self._folder
        assert seen is not None
        assert window is not None
        assert folder is not None
        window.end()
        if missing := missing_processes(seen.place):
            self.incomplete = started_alone(missing, seen.place.world_size, self._settings.script)
            self._leave()
            return
        if window is seen.traced and seen.traced.complete:
            self._window = SettlingWindow()
        elif window is seen.traced or isinstance(window, SettlingWindow):
            self._window = seen.timed
        elif window is seen.timed and seen.traced is not None and seen.traced.complete and seen.counters_tell:
            path = folder.counters_trace_path(seen.place.node, seen.place.rank)
            seen.counted = CountedWindow(self._trace_to(seen, path), seen.told.ddp[0])
            self._window = seen.counted
        else:
            self._finish(MEASURED)
            return
        self._window.begin()

    def _trace_to(self, seen: Seen, path: Path) -> TracedWindow:
        all_threads = seen.told.traits.peer_copies
        return TracedWindow(self._settings.traced_steps, path, seen.device, all_threads, self._own_profiler)

    def _finish(self, how: str) -> None:
        self._over = True
        if self._window is not None and how != MEASURED:
            self._window.end()
        self._save(how)
        self._leave()

    def _save(self, how: str) -> None:
        seen, folder = self._seen, self._folder
        if seen is None or folder is None or not seen.timed.calls:
            if os.environ.get("RANK", "0") == "0":
                self._note(without_measurement(how, self._steps, self._backwards.count, self._settings))
            return
        if how != MEASURED:
            seen.ended_early, seen.steps = how, self._steps
        self._part = save_process(seen, folder)
        self.saved = True
        another = after_another_job(how, self._settings)
        whole = finish_job(folder, self._part)
        if how != MEASURED and seen.place.rank == 0:
            processes = seen.place.world_size
            kept = "what was measured is saved" if whole else f"saved, once all {processes} processes have saved theirs"
            self._note(f"{how}: {seen.early_text()}; {kept}{another}")

    def _give_up(self, error: Exception) -> None:
        self._over = True
        if self._window is not None:
            try:
                self._window.end()
            except Exception as second:  # what is told is the first error
                error.add_note(f"and then {second}")
        self._leave()
        where = traceback.extract_tb(error.__traceback__)[-1]
        self._note(
            f"the measurement failed ({type(error).__name__}: {error}, {os.path.basename(where.filename)}:{where.lineno}); "
            "the script goes on without it"
        )

    def _leave(self) -> None:
        """Leave the script alone: without hooks, and without a hold on what it may want to free."""
        self._over = True
        self._optimizer_hook.leave()
        self._backwards.stop()
        self._warm_up.stop()
        if self._warm_up.calls is not None:
            self._warm_up.calls.stop()
        self._constructed.stop()
        self._own_profiler.stop()
        self._signals.stop()
        if self._held is not None:
            self._held.release(keep=self.saved)
        for model in self._seen.told.ddp if self._seen is not None else ():
            count_by_default(model)
        self._seen, self._window = None, None
        self._warm_up = WarmUp(self._settings, self._constructed, self.step_ended)


def _leave_forked_children(own: "weakref.ref[Session]") -> None:
    """Told at the fork, since each step would have to ask the system whose it is."""

    def forked() -> None:
        if (session := own()) is not None:
            session.leave_to_parent()

    os.register_at_fork(after_in_child=forked)
