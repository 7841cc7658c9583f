"""The windows of an attached measurement: traced steps, timed steps, DDP's counters. No step is in two of them."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

from dpscope.profiling.attached.interception import ProfilerWatch
from dpscope.profiling.attached.model_calls import StepCalls
from dpscope.profiling.attached.settings import SETTLING_STEPS
from dpscope.profiling.instruments.ddp_counters import StepCounters
from dpscope.profiling.instruments.step_timer import StepCounts, StepSample, StepTimer
from dpscope.profiling.instruments.trace_recorder import StepTrace
from dpscope.profiling.records.run import DdpCounters, DeviceMemory, TimedBlock


class Window(Protocol):
    """A part of the measurement: some consecutive steps."""

    def begin(self) -> None:
        """Called between two steps, before the window's first one."""

    def step_ended(self, calls: StepCalls) -> bool:
        """Called at the end of each step of the window; returns whether it was the last one."""

    def end(self) -> None:
        """Called once at the end of the window, also if the script ends within it."""


def finish_work(device: torch.device) -> None:
    """Wait for this process's device, but not for other processes: synchronising them is up to the script."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class TimedWindow:
    """Timed steps: the only addition is one clock reading per step, of the device on CUDA and of the host on a CPU."""

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
        self.durations_us = self._timer.step_durations_us()
        whole = len(self.calls) >= self._steps
        self.duration_s = self._ended_s - self._began_s if whole else sum(self.durations_us) / 1e6
        self.memory = _peak_memory(self._device)

    def cut(self) -> None:
        """End the window without waiting for the device, with the steps that the device has finished."""
        if not self.durations_us:
            self._timer.drop_unfinished()
            self.durations_us = self._timer.step_durations_us()
            self.calls = self.calls[: len(self.durations_us)]
            self.duration_s = sum(self.durations_us) / 1e6
            self.memory = _peak_memory(self._device)


def _peak_memory(device: torch.device) -> tuple[DeviceMemory, ...]:
    """The peak since the script began or last reset torch's statistics; dpscope does not reset them."""
    if device.type != "cuda":
        return ()
    allocated, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    return (DeviceMemory(device=device.index or 0, allocated_bytes=allocated, reserved_bytes=reserved),)


class SettlingWindow:
    """Unmeasured steps after a trace."""

    def __init__(self) -> None:
        self._left = SETTLING_STEPS

    def begin(self) -> None:
        pass

    def step_ended(self, calls: StepCalls) -> bool:
        self._left -= 1
        return self._left <= 0

    def end(self) -> None:
        pass


class TracedWindow:
    """Steps under torch.profiler, unless the script uses a profiler itself."""

    def __init__(
        self, traced_steps: int, path: Path, device: torch.device, all_threads: bool, profiler_watch: ProfilerWatch
    ) -> None:
        self.interrupted_steps = 0  # traced steps with calls outside of training
        self._trace = StepTrace(traced_steps, path, device, all_threads, lambda: finish_work(device))
        self._profiler_watch = profiler_watch
        self._running = False

    @property
    def complete(self) -> bool:
        """Whether the trace was saved."""
        return self._trace.complete

    def begin(self) -> None:
        if self._profiler_watch.seen:
            return
        self._profiler_watch.before = self._give_way
        with self._profiler_watch.ignored():
            self._trace.start()
        self._running = True

    def step_ended(self, calls: StepCalls) -> bool:
        if not self._running:
            return True
        self.interrupted_steps += calls.other > 0
        return self._trace.step_ended(StepCounts(samples=calls.samples))

    def end(self) -> None:
        self._give_way()
        self._profiler_watch.before = lambda: None

    def samples(self) -> list[StepSample]:
        """The traced steps; empty if no trace was saved."""
        return self._trace.samples() if self.complete else []

    def _give_way(self) -> None:
        if self._running:
            self._running = False
            self._trace.stop()


class CountedWindow:
    """Traced steps in which DDP's counters are read too, and one more step, after which the last counters are read."""

    def __init__(self, traced: TracedWindow, model: DistributedDataParallel) -> None:
        self.counters: list[DdpCounters] = []
        self._traced = traced
        self._model = model
        self._counting: StepCounters | None = None
        self._step = 0

    @property
    def complete(self) -> bool:
        """Whether trace and counters are complete."""
        return bool(self.counters)

    def begin(self) -> None:
        self._counting = StepCounters(self._model)
        self._traced.begin()

    def step_ended(self, calls: StepCalls) -> bool:
        assert self._counting is not None
        self._counting.read_previous(self._step)
        self._step += 1
        if not self._traced.complete:
            over = self._traced.step_ended(calls)
            return over and not self._traced.complete  # interrupted by the script's profiler
        self.counters = self._counting.counters
        return True

    def end(self) -> None:
        self._traced.end()


def kept_steps(calls: Sequence[StepCalls]) -> list[bool]:
    """Which steps only trained: not those with a validation loop or the like, unless most steps contain one."""
    interrupted = [one.other > 0 for one in calls]
    if sum(interrupted) * 2 > len(calls):
        return [True] * len(calls)
    return [not one for one in interrupted]


def timed_samples(window: TimedWindow, samples: Sequence[int], kept: Sequence[bool]) -> list[StepSample]:
    """One sample per kept step, with its number of training samples."""
    rows = zip(window.durations_us, samples, kept, strict=True)
    return [
        StepSample("timed", None, index, step_us, math.nan, count)
        for index, (step_us, count, keep) in enumerate(rows)
        if keep
    ]


def timed_block(window: TimedWindow, timed: Sequence[StepSample]) -> TimedBlock:
    """The timed steps as one block; if some steps are left out, its duration is the sum of the others."""
    whole = len(timed) == len(window.durations_us)
    return TimedBlock(
        epoch=None,
        steps=len(timed),
        samples=sum(sample.samples for sample in timed),
        duration_s=window.duration_s if whole else sum(sample.step_us for sample in timed) / 1e6,
        data_wait_s=None,
    )
