"""`torch.profiler` around a few steps: one trace per process, written whole or not at all, with
dpscope's named ranges.

Ranges are entered only while a trace is recorded: a `record_function` costs time even if nothing
records it.
"""

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from isal import igzip
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from dpscope.profiling.instruments.step_timer import RunStep, StepSample, StepTimer, nothing
from dpscope.profiling.machine.host_memory import touched_heap
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import atomic_path

WARMUP_STEPS = 2  # with a profiler that discards its events, as its start slows the first steps
_EVENT_BYTES = 8 << 20  # for what the profiler keeps of a step with about a thousand operators

_UNNAMED = nullcontext()
# Whether this process records a trace, visible to the threads of replicas, unlike torch's
# thread-local state.
_recording = threading.Event()


@contextmanager
def ranges_recorded() -> Iterator[None]:
    """Within this context `named_range` is a range of the trace."""
    _recording.set()
    try:
        yield
    finally:
        _recording.clear()


def named_range(name: str) -> AbstractContextManager[Any]:
    """A range called `name` in the trace that is being recorded; without one, nothing."""
    return record_function(name) if _recording.is_set() else _UNNAMED


class StepTrace:
    """A trace that is recorded step by step: started between two steps, then called at the end of
    each step, or by `record`.

    It covers `traced_steps` whole steps and the one before them, after WARMUP_STEPS with a profiler
    that discards its events, and is saved (gzip) at `path` when the last of its `steps` ends.
    `all_threads` also records Python threads on which the profiler was not started, such as those
    of DataParallel, of which each step starts `replica_threads` at a time. `synchronise` waits for
    the device's work, and may wait for other processes.
    """

    def __init__(
        self,
        traced_steps: int,
        path: Path,
        device: torch.device,
        all_threads: bool,
        synchronise: Callable[[], None],
        replica_threads: int = 0,
    ) -> None:
        self.steps = WARMUP_STEPS + traced_steps + 1
        self.complete = False
        self._path = path
        self._synchronise = synchronise
        self._replica_threads = replica_threads
        self._step = 0
        self._timer = StepTimer(device)
        self._counts: list[int] = []
        self._heap = ExitStack()
        cuda = [ProfilerActivity.CUDA] if device.type == "cuda" else []
        self.profiler = profile(
            activities=[ProfilerActivity.CPU, *cuda],
            schedule=schedule(wait=0, warmup=WARMUP_STEPS, active=traced_steps + 1, repeat=1),
            record_shapes=True,
            # Private, but the only way to record threads on which the profiler was not started.
            experimental_config=_ExperimentalConfig(profile_all_threads=True)
            if all_threads
            else None,
        )

    def start(self) -> None:
        self._synchronise()
        self._heap.enter_context(
            touched_heap(self.steps - WARMUP_STEPS, _EVENT_BYTES, self._replica_threads)
        )
        self.profiler.start()

    def batch_arrived(self) -> None:
        """Mark the arrival of the current step's batch."""
        if self._step >= WARMUP_STEPS:
            self._timer.batch_arrived()

    def step_ended(self, samples: int) -> bool:
        """End a step with this number of samples and begin the next; returns whether it was the
        last: the trace is then saved.
        """
        step = self._step
        last = step == self.steps - 1
        if step >= WARMUP_STEPS:
            self._counts.append(samples)
        if last:
            self._timer.boundary()
            self.complete = True
        if step == WARMUP_STEPS - 1:
            # else queued work would run in the recorded window, launched in none of its steps
            self._synchronise()
        self.profiler.step()
        # not by on_trace_ready: the profiler is in a reference cycle and would keep this object
        # alive
        if last:
            _export(self.profiler, self._path)
        self._step += 1
        if WARMUP_STEPS <= self._step < self.steps:
            self._timer.boundary()
        return last

    def stop(self) -> None:
        """Stop the profiler; a trace whose last step has not ended is not saved."""
        self.profiler.stop()
        self._heap.close()

    def record(
        self, run_step: RunStep, after_step: Callable[[], None] = nothing
    ) -> list[StepSample]:
        """Run and trace all steps, calling `after_step` after each; returns a sample of each
        recorded step.
        """
        with ranges_recorded():
            self.start()
            try:
                for _ in range(self.steps):
                    samples = run_step(self.batch_arrived)
                    after_step()
                    self.step_ended(samples)
            finally:
                self.stop()
        self._synchronise()
        return self.samples()

    def samples(self) -> list[StepSample]:
        """A sample per recorded step, with the number in the trace's ``ProfilerStep#`` as `step`;
        call after a synchronisation.

        A step's time runs from its start to the start of the next, the last one's to its end: what
        the tracer does during steps is in it, writing the trace is not. Its wait is missing if no
        batch's arrival was reported.
        """
        return self._timer.samples("traced", self._counts, WARMUP_STEPS)


def _export(profiler: profile, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=path.parent) as folder:
        plain = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(plain))
        _check_written(plain, path)
        with (
            atomic_path(path) as temporary,
            open(plain, "rb") as source,
            igzip.open(temporary, "wb") as target,  # type: ignore[no-untyped-call]
        ):
            shutil.copyfileobj(source, target, length=1 << 20)


def _check_written(plain: Path, path: Path) -> None:
    """Raise DpscopeError unless a trace is there and whole: Kineto reports no error where it cannot
    write.
    """
    end = b""
    with contextlib.suppress(FileNotFoundError), open(plain, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 16))
        end = file.read().rstrip()
    if not end.endswith(b"}"):
        free = shutil.disk_usage(path.parent).free
        raise DpscopeError(
            f"{path}: the trace could not be written ({free / 1e6:.1f} MB are free on its disk); make room there, or choose "
            "another folder"
        )
