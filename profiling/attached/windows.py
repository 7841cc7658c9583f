"""The windows of an attached measurement, each told of the end of every step: traced, timed, DDP's counters. Never mixed."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

from dpscope.profiling.attached.model_calls import StepCalls
from dpscope.profiling.attached.own_profiler import OwnProfiler
from dpscope.profiling.attached.settings import SETTLING_STEPS
from dpscope.profiling.instruments.ddp_counters import StepCounters
from dpscope.profiling.instruments.step_timer import StepCounts, StepSample, StepTimer
from dpscope.profiling.instruments.trace_recorder import StepTrace
from dpscope.profiling.records.run import DdpCounters, DeviceMemory, TimedBlock


class Window(Protocol):
    """A part of the measurement, some steps long."""

    def begin(self) -> None:
        """Called between two steps, before its first one."""

    def step_ended(self, calls: StepCalls) -> bool:
        """Called at the end of each of its steps; returns whether that was its last one."""

    def end(self) -> None:
        """Called once when it is over, also when the script ends within it."""


def finish_work(device: torch.device) -> None:
    """Wait for this process's device; other processes are not waited for: they belong to the script."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class TimedWindow:
    """Steps timed with nothing on but one reading of a clock a step: the device's on CUDA, the host's on a CPU."""

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
        """End it without waiting for the device: the steps that it has ended by now."""
        if not self.durations_us:
            self._timer.drop_unfinished()
            self.durations_us = self._timer.step_durations_us()
            self.calls = self.calls[: len(self.durations_us)]
            self.duration_s = sum(self.durations_us) / 1e6
            self.memory = _peak_memory(self._device)


def _peak_memory(device: torch.device) -> tuple[DeviceMemory, ...]:
    """The peak since the script began, or since it last reset torch's statistics, which are the script's to reset."""
    if device.type != "cuda":
        return ()
    allocated, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    return (DeviceMemory(device=device.index or 0, allocated_bytes=allocated, reserved_bytes=reserved),)


class SettlingWindow:
    """Steps after a trace that are not measured."""

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
    """Steps under torch.profiler, unless the script has a profiler of its own."""

    def __init__(
        self, traced_steps: int, path: Path, device: torch.device, all_threads: bool, own: OwnProfiler
    ) -> None:
        self.interrupted_steps = 0  # traced steps in which the script did something beside training
        self._trace = StepTrace(traced_steps, path, device, all_threads, lambda: finish_work(device))
        self._own = own
        self._running = False

    @property
    def complete(self) -> bool:
        """Whether the trace was saved."""
        return self._trace.complete

    def begin(self) -> None:
        if self._own.seen:
            return
        self._own.before = self._give_way
        with self._own.ours():
            self._trace.start()
        self._running = True

    def step_ended(self, calls: StepCalls) -> bool:
        if not self._running:
            return True
        self.interrupted_steps += calls.other > 0
        return self._trace.step_ended(StepCounts(samples=calls.samples))

    def end(self) -> None:
        self._give_way()
        self._own.before = lambda: None

    def samples(self) -> list[StepSample]:
        """Those of the traced steps; none where no trace was saved."""
        return self._trace.samples() if self.complete else []

    def _give_way(self) -> None:
        if self._running:
            self._running = False
            self._trace.stop()


class CountedWindow:
    """Traced steps of which DDP's own counters are read as well, and one more step, after which the last are read."""

    def __init__(self, traced: TracedWindow, model: DistributedDataParallel) -> None:
        self.counters: list[DdpCounters] = []
        self._traced = traced
        self._model = model
        self._counting: StepCounters | None = None
        self._step = 0

    @property
    def complete(self) -> bool:
        """Whether trace and counters are whole."""
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
            return over and not self._traced.complete  # the script's own profiler came in between
        self.counters = self._counting.counters
        return True

    def end(self) -> None:
        self._traced.end()


def kept_steps(calls: Sequence[StepCalls]) -> list[bool]:
    """Which steps were training alone: not those with a validation loop or the like, unless that is in most of them."""
    interrupted = [one.other > 0 for one in calls]
    if sum(interrupted) * 2 > len(calls):
        return [True] * len(calls)
    return [not one for one in interrupted]


def timed_samples(window: TimedWindow, samples: Sequence[int], kept: Sequence[bool]) -> list[StepSample]:
    """A sample of every kept step, on as many training samples as are given for it."""
    rows = zip(window.durations_us, samples, kept, strict=True)
    return [
        StepSample("timed", None, index, step_us, math.nan, count)
        for index, (step_us, count, keep) in enumerate(rows)
        if keep
    ]


def timed_block(window: TimedWindow, timed: Sequence[StepSample]) -> TimedBlock:
    """The timed steps as one block; where some are left out, its duration is that of the others."""
    whole = len(timed) == len(window.durations_us)
    return TimedBlock(
        epoch=None,
        steps=len(timed),
        samples=sum(sample.samples for sample in timed),
        duration_s=window.duration_s if whole else sum(sample.step_us for sample in timed) / 1e6,
        data_wait_s=None,
    )
