"""Untraced timing: a boundary between every two steps, and one synchronised block around all of them."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from dpscope.profiling.run_store import atomic_path
from dpscope.profiling.run_types import SAMPLE_COLUMNS, TimedBlock


class StepTimer:
    """Time between consecutive boundaries: device events on CUDA, the wall clock on the CPU.

    A device event waits for nothing: the host runs ahead as in an untimed run, and the durations are read only
    after a synchronisation.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []
        self._times_ns: list[int] = []

    def boundary(self) -> None:
        """Mark the end of a step and the start of the next."""
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self._device))
            self._events.append(event)
        else:
            self._times_ns.append(time.perf_counter_ns())

    def step_durations_us(self) -> list[float]:
        """Microseconds between boundaries, one fewer than there are; call after a synchronisation."""
        if self._device.type == "cuda":
            pairs = zip(self._events, self._events[1:], strict=False)
            return [first.elapsed_time(second) * 1000 for first, second in pairs]
        return [(second - first) / 1000 for first, second in zip(self._times_ns, self._times_ns[1:], strict=False)]


@dataclass(frozen=True)
class StepSample:
    """One row of a samples file, as SAMPLE_COLUMNS describes it."""

    measuring_pass: str
    epoch: int | None
    step: int
    step_us: float
    data_wait_us: float
    samples: int


@dataclass(frozen=True)
class StepCounts:
    """What one step reports of itself."""

    data_wait_us: float  # wall clock, waiting for the loader
    samples: int  # of this process


def time_block(
    run_step: Callable[[], StepCounts],
    steps: int,
    device: torch.device,
    synchronise: Callable[[], None],
    first_step: int = 0,
    epoch: int | None = None,
) -> tuple[TimedBlock, list[StepSample]]:
    """Run `steps` steps between two synchronisations; samples are numbered from `first_step`.

    `synchronise` waits for this process's devices and for the other processes.
    """
    timer = StepTimer(device)
    outcomes: list[StepCounts] = []
    synchronise()
    started = time.perf_counter()
    timer.boundary()
    for _ in range(steps):
        outcomes.append(run_step())
        timer.boundary()
    synchronise()
    duration_s = time.perf_counter() - started
    samples = [
        StepSample("timed", epoch, first_step + index, step_us, outcome.data_wait_us, outcome.samples)
        for index, (step_us, outcome) in enumerate(zip(timer.step_durations_us(), outcomes, strict=True))
    ]
    block = TimedBlock(
        epoch=epoch,
        steps=steps,
        samples=sum(outcome.samples for outcome in outcomes),
        duration_s=duration_s,
        data_wait_s=sum(outcome.data_wait_us for outcome in outcomes) / 1e6,
    )
    return block, samples


def save_samples(path: Path, samples: Iterable[StepSample]) -> None:
    """Write samples as parquet with the columns SAMPLE_COLUMNS, whole or not at all."""
    rows = [(row.measuring_pass, row.epoch, row.step, row.step_us, row.data_wait_us, row.samples) for row in samples]
    frame = pd.DataFrame(rows, columns=list(SAMPLE_COLUMNS)).astype(
        {"measuring_pass": "str", "epoch": "Int64", "step": "int64", "step_us": "float64",
         "data_wait_us": "float64", "samples": "int64"}
    )  # fmt: skip
    with atomic_path(path) as temporary:
        frame.to_parquet(temporary, index=False)
