"""The measurement of one process of a script: from its first step through the windows to the
files.
"""

import contextlib
import ctypes
import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from dpscope.profiling.attached import job
from dpscope.profiling.attached.interception import (
    BackwardCount,
    GraphWatch,
    OptimizerHook,
    ProfilerWatch,
)
from dpscope.profiling.attached.model_calls import inner_module
from dpscope.profiling.attached.recorder import Observed, model_sizes, save_process
from dpscope.profiling.attached.settings import (
    NO_OPTIMIZER,
    REASONS_VARIABLE,
    SETTLING_STEPS,
    STEP_RECORDED,
    AttachSettings,
    further_hint,
    no_group,
    not_measured,
    started_alone,
)
from dpscope.profiling.attached.windows import (
    TimedWindow,
    TracedWindow,
    WarmUp,
    Window,
    finish_work,
    whole_cycles,
)
from dpscope.profiling.attached.wrapped_models import WrapperLog, detect_strategy
from dpscope.profiling.instruments.ddp_counters import (
    ALWAYS_COUNTED_ITERATIONS,
    count_by_default,
    stop_counting,
)
from dpscope.profiling.instruments.trace_recorder import StepTrace
from dpscope.profiling.store.errors import DpscopeError, error_line
from dpscope.profiling.store.files import write_text

_MAX_SAVING_S = 5.0  # after which the process ends in any case; torchrun waits 30 s


class EndingSignals:
    """Calls `ended` in a separate thread on the first signal that would end this process, then ends
    it by that signal.

    The main thread may wait in a collective for a process that has already ended, where Python's
    handlers do not run. A signal for which the script installs a handler, before or later, is the
    script's.
    """

    def __init__(self, ended: Callable[[str], None]) -> None:
        self._ended = ended
        self._process_id = os.getpid()
        self._handled: list[signal.Signals] = []
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        if not _is_main_thread():  # where alone Python allows handlers
            return
        self._sockets = reading, writing = socket.socketpair()
        writing.setblocking(False)
        self._install()
        if not self._handled:
            self._close()
            return
        # A child would report its signals to this process. A fork from the main thread removes the
        # handlers beforehand; another thread cannot, but becomes the main thread of the child that
        # it forks.
        os.register_at_fork(
            before=self._restore, after_in_parent=self._install, after_in_child=self._restore
        )
        threading.Thread(
            target=self._watch, args=(reading,), name="dpscope signals", daemon=True
        ).start()

    def stop(self) -> None:
        """Restore the default actions, in the main thread."""
        if _is_main_thread() and os.getpid() == self._process_id:
            self._restore()
            self._close()

    def _install(self) -> None:
        """Handle the signals that have no handler."""
        if self._sockets is None or os.getpid() != self._process_id or not _is_main_thread():
            return
        unhandled = [
            one
            for one in (signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(one) is signal.SIG_DFL
        ]
        if not unhandled:
            return
        before = signal.set_wakeup_fd(self._sockets[1].fileno(), warn_on_full_buffer=False)
        if before != -1 and _woken_by(before):  # an event loop's
            return
        self._handled = unhandled
        for one in self._handled:
            signal.signal(one, self._arrived)

    def _restore(self) -> None:
        if self._sockets is None or not _is_main_thread():
            return
        if (now := signal.set_wakeup_fd(-1)) != self._sockets[1].fileno():
            _woken_by(now)
        handled, self._handled = self._handled, []
        for one in handled:
            if signal.getsignal(one) == self._arrived:
                signal.signal(one, signal.SIG_DFL)

    def _close(self) -> None:
        if self._sockets is not None:
            for one in self._sockets:
                # after the shutdown the thread reads the end of file and ends
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
            self._sockets = None

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        """The thread handles it. The script may have stored this handler and restore it after
        `stop`: then end at once.
        """
        if not self._handled and signal.getsignal(number) == self._arrived:
            _end_by(number)

    def _watch(self, reading: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while number := reading.recv(1):
                if number[0] in self._handled and signal.getsignal(number[0]) == self._arrived:
                    late = threading.Timer(_MAX_SAVING_S, _end_by, (number[0],))
                    late.daemon = True
                    late.start()
                    self._ended(f"{signal.Signals(number[0]).name} ended the script")
                    _end_by(number[0])


def _woken_by(descriptor: int) -> bool:
    """Have signals written to this descriptor again, if it is still one for that; whoever set it
    may have closed it since.
    """
    try:
        signal.set_wakeup_fd(descriptor)
    except (OSError, ValueError):  # closed, or the number of a file opened since
        return False
    return True


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _end_by(number: int) -> None:
    """End this process by a signal. The default action is restored in C: Python allows it in the
    main thread only.
    """
    ctypes.CDLL(None).signal(number, 0)
    os.kill(os.getpid(), number)


_COMPLETE = "measured completely"


class Session:
    """Measures the process in which it is constructed. Call `step_ended` at the end of each step
    and `close` at the script's end.

    It observes optimizers, wrapped models, profilers and signals from its construction on. An error
    in dpscope is reported in one line, and the script continues unmeasured.
    """

    def __init__(self, settings: AttachSettings, note: Callable[[str], None]) -> None:
        self.saved = False
        # why nothing is measured: other processes run the script without dpscope
        self.incomplete: str | None = None
        self._settings = settings
        self._note = note
        self._process_id = os.getpid()
        self._observed: Observed | None = None
        self._held: job.HeldFolder | None = None
        self._windows: Iterator[Window] = iter(())
        self._window: Window | None = None
        self._part: job.SavedPart | None = None
        # one that could not be ended when the measurement failed
        self._unended: Window | None = None
        self._over = False
        self._steps = 0  # of the script, warm-up and windows
        self._working = threading.Lock()  # a signal's thread saves between two steps
        if os.environ.get("RANK", "0") == "0":
            job.remove_unfinished_jobs(settings.out)

        def stepped(optimizer: Optimizer, args: object, kwargs: object) -> None:
            self._backwards.stop()
            if (
                not self._over
                and self._warm_up.is_first(optimizer)
                and self._warm_up.steps_by == "optimizer"
            ):
                self.step_ended()

        # in a child that the script forked, such as a loader's worker
        def left_to_parent() -> None:
            self._over = True

        # a check in each step would cost a system call
        os.register_at_fork(after_in_child=left_to_parent)
        self._wrappers = WrapperLog()
        self._profiler_watch = ProfilerWatch()
        self._graphs = GraphWatch(self._step_recorded)
        self._optimizer_hook = OptimizerHook(stepped)
        self._backwards = BackwardCount(lambda: self._note_first(NO_OPTIMIZER))
        if settings.steps_by != "optimizer":
            self._backwards.stop()
        self._warm_up = WarmUp(settings, self._wrappers, self.step_ended)
        self._signals = EndingSignals(self._ended_by_signal)

    def step_called(self) -> None:
        """End a step of a `watch_steps` loop, with `--steps-by call`."""
        if self._settings.steps_by == "call":
            self.step_ended()

    def step_ended(self) -> None:
        if self._over:
            return
        if self._graphs.recording():  # the step has not run
            self._graphs.use()
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
                    self._finish(how)
                elif self.incomplete is not None:  # printed at the end, as the last line
                    self._note(self.incomplete)
                elif self._part is not None:
                    # the other processes' files may have become visible late
                    job.finish_job(self._part)
            except Exception as error:
                self._give_up(error)
        self._end_again()
        self._optimizer_hook.stop()
        self._backwards.stop()

    def _step_recorded(self) -> None:
        """End the measurement after a step was recorded into a CUDA graph, whose replays call no
        optimizer.

        They do call a model whose passes alone were recorded, which ends steps with `--steps-by
        forward`.
        """
        if self._settings.steps_by == "optimizer" and not self._over:
            self.close(STEP_RECORDED)

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

    def _note_unmeasured(self, text: str) -> None:
        """Note why nothing is measured in the first process, and leave it to `dpscope attach` in
        each, which may differ.
        """
        self._note_first(text)
        if (reasons := os.environ.get(REASONS_VARIABLE)) is not None:
            write_text(Path(reasons) / os.environ.get("RANK", "0"), text)

    def _step_ended(self) -> None:
        if self._window is None:
            warmed_up = self._warm_up.step_ended()
            self._steps = self._warm_up.steps
            if warmed_up:
                self._begin_measuring()
            return
        assert self._observed is not None
        self._steps += 1
        calls = self._observed.calls.take()
        calls.profiled, calls.other_optimizers = (
            self._profiler_watch.busy,
            self._warm_up.other_steps(),
        )
        if self._window.step_ended(calls):
            self._next_window(self._observed, self._window)

    def _begin_measuring(self) -> None:
        warm_up, calls = self._warm_up, self._warm_up.calls
        assert calls is not None
        device = warm_up.device
        place = job.current_place(device)
        if place is None:
            self._note_unmeasured(no_group())
            self._leave()
            return
        modules = [inner_module(module) for module in calls.modules]
        detected = detect_strategy(
            modules, warm_up.trained, self._wrappers, place.world_size, warm_up.stays_gathered
        )
        if device.type == "cuda" and warm_up.steps <= ALWAYS_COUNTED_ITERATIONS:
            return
        folder = job.join_job(place, self._settings.out)
        self._observed = Observed(
            self._settings,
            folder,
            place,
            device,
            detected,
            self._wrappers,
            warm_up,
            calls,
            self._profiler_watch,
            timed=TimedWindow(whole_cycles(self._settings.steps, warm_up.cycle or 1), device),
            sizes=model_sizes(detected, calls, warm_up),
        )
        for model in detected.ddp:
            stop_counting(model)
        calls.take()
        self._held = job.HeldFolder(folder, place.node, place.rank)
        self._windows = self._windows_of(self._observed)
        self._window = next(self._windows)
        self._window.begin()

    def _windows_of(self, observed: Observed) -> Iterator[Window]:
        """The windows in turn: each is made when the one before it has ended."""
        place, folder, device, steps = (
            observed.place,
            observed.folder,
            observed.device,
            self._settings.traced_steps,
        )
        steps = whole_cycles(steps, observed.cycle)

        def tracing(path: Path, counted: DistributedDataParallel | None = None) -> TracedWindow:
            all_threads = observed.detected.traits.peer_copies
            trace = StepTrace(steps, path, device, all_threads, lambda: finish_work(device))
            return TracedWindow(trace, self._profiler_watch, counted)

        if steps:
            observed.traced = tracing(folder.trace_path(place.node, place.rank))
            yield observed.traced
            if observed.is_traced:
                yield TimedWindow(SETTLING_STEPS, device)  # its times are not kept
        yield observed.timed
        # the script's profiler has ended
        if steps and not observed.is_traced and not self._profiler_watch.busy:
            observed.traced = tracing(folder.trace_path(place.node, place.rank))
            yield observed.traced
        if observed.is_traced and observed.counters_apply:
            path = folder.counters_trace_path(place.node, place.rank)
            observed.counted = tracing(path, observed.detected.ddp[0])
            yield observed.counted

    def _next_window(self, observed: Observed, window: Window) -> None:
        window.end()
        if missing := job.missing_processes(observed.place):
            self.incomplete = started_alone(
                missing, observed.place.world_size, self._settings.script
            )
            self._leave()
            return
        self._window = next(self._windows, None)
        if self._window is None:
            self._finish(_COMPLETE)
        else:
            self._window.begin()

    def _finish(self, how: str) -> None:
        self._over = True
        if self._window is not None:
            self._window.end()
        self._save(how)
        self._leave()

    def _save(self, how: str) -> None:
        observed = self._observed
        if observed is None or len(observed.timed.calls) < observed.cycle:
            passes, restarts = self._backwards.count, self._warm_up.restarts
            self._note_unmeasured(not_measured(how, self._steps, passes, self._settings, restarts))
            return
        if how != _COMPLETE:
            observed.ended_early, observed.steps = how, self._steps
        self._part = save_process(observed)
        self.saved = True
        hint = further_hint(how, self._settings)  # before this job makes `out` a run folder
        whole = job.finish_job(self._part)
        if how != _COMPLETE and observed.place.rank == 0:
            processes = observed.place.world_size
            kept = (
                "what was measured is saved"
                if whole
                else f"saved, once all {processes} processes have saved theirs"
            )
            self._note(f"{how}: {observed.early_text()}; {kept}{hint}")

    def _give_up(self, error: Exception) -> None:
        self._over, self._part = True, None
        if self._window is not None:
            try:
                self._window.end()
            except Exception as second:  # the first error is reported
                error.add_note(f"and then {second}")
                self._unended = self._window
        self._leave()
        where = traceback.extract_tb(error.__traceback__)[-1]
        at = (
            ""
            if isinstance(error, DpscopeError)
            else f", {os.path.basename(where.filename)}:{where.lineno}"
        )
        self._note(
            f"the measurement failed ({error_line(error)}{at}); the script continues without it"
        )

    def _end_again(self) -> None:
        """At the script's end, end a window that could not be ended before: a process with a half
        stopped profiler crashes.
        """
        if self._unended is not None:
            with contextlib.suppress(Exception):
                self._unended.end()
            self._unended = None

    def _leave(self) -> None:
        """Remove all hooks, and all references to objects that the script may want to free."""
        self._over = True
        self._optimizer_hook.stop_within_step()
        self._backwards.stop()
        self._warm_up.leave()
        self._wrappers.stop()
        self._profiler_watch.stop()
        self._graphs.stop()
        self._signals.stop()
        if self._held is not None:
            self._held.release(keep=self.saved)
        for model in self._observed.detected.ddp if self._observed is not None else ():
            count_by_default(model)
        self._observed, self._window, self._windows = None, None, iter(())
