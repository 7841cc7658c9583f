"""Windows of consecutive steps: timed, or traced with DDP's counters.

`begin` is called between two steps, `step_ended` at the end of each step, which returns whether it
was the last one, and `end` once, also if the script ends within the window.
"""

import time

import torch
from torch.nn.parallel import DistributedDataParallel

from dpscope.profiling.attached.interception import ProfilerWatch
from dpscope.profiling.attached.model_calls import StepCalls
from dpscope.profiling.instruments.ddp_counters import StepCounters
from dpscope.profiling.instruments.step_timer import StepSample, StepTimer
from dpscope.profiling.instruments.trace_recorder import StepTrace
from dpscope.profiling.records.run import DdpCounters, DeviceMemory


def finish_work(device: torch.device) -> None:
    """Wait for this process's device, but not for other processes: synchronising them is up to the
    script.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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
        self._trace = trace
        self._profiler_watch = profiler_watch
        self._counted = counted
        self._counting: StepCounters | None = None
        self._running = False

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
        if self._running:
            self._trace.stop()
            self._running = False  # not where stopping failed: it is tried again


Window = TimedWindow | TracedWindow
"""A part of the measurement: some consecutive steps."""
