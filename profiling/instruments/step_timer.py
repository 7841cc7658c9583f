"""Untraced timing: a boundary between every two steps, and one synchronised block around all of
them.
"""

import io
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import cast

import msgspec
import torch

from dpscope.profiling.records.run import TimedBlock
from dpscope.profiling.store.files import atomic_path

_COLUMNS = {
    "measuring_pass": ("large_string", "unicode", "str"),
    "epoch": ("int64", "int64", "Int64"),
    "step": ("int64", "int64", "int64"),
    "step_us": ("float64", "float64", "float64"),
    "data_wait_us": ("float64", "float64", "float64"),
    "samples": ("int64", "int64", "int64"),
}
"""Types of each column for Arrow, and for pandas the kind and dtype that it would write, so that an
epoch with missing values is read as an integer."""

SAMPLE_COLUMNS = tuple(_COLUMNS)
"""Columns of `samples_<node>_<rank>.parquet`, a row per step. `measuring_pass` is timed or traced;
`step_us` includes `data_wait_us`, the wait for the loader on the same clock (on CUDA the device's,
so a wait hidden by queued work does not count); transfer and optimizer are part of the step."""

BatchArrived = Callable[[], None]
"""A step calls it as soon as its batch has arrived."""

_Mark = torch.cuda.Event | int
"""A moment on the device's clock, or in nanoseconds on the host's if the device is the CPU."""


@dataclass(frozen=True)
class StepSample:
    """One row of a samples file, as SAMPLE_COLUMNS describes it."""

    measuring_pass: str
    epoch: int | None
    step: int
    step_us: float
    data_wait_us: float
    samples: int


class StepTimer:
    """Time between consecutive boundaries, and of it until the batch was there: device events on
    CUDA, the wall clock on the CPU.

    A device event waits for nothing: the host runs ahead as in an untimed run, and the durations
    are read only after a synchronisation. The host's wait for a batch costs a device nothing while
    work is still queued there: on CUDA only what is left of it between the two marks is counted.
    """

    def __init__(self, device: torch.device) -> None:
        # Called within timed steps: the device type is checked only once.
        self._mark: Callable[[], _Mark] = (
            partial(_event_on, device) if device.type == "cuda" else time.perf_counter_ns
        )
        self._boundaries: list[_Mark] = []
        self._arrivals: list[_Mark] = []

    def boundary(self) -> None:
        self._boundaries.append(self._mark())

    def batch_arrived(self) -> None:
        """Mark that the loader has handed out the batch of the step that began at the last
        boundary.
        """
        self._arrivals.append(self._mark())

    def drop_unfinished(self) -> None:
        """Drop the boundaries that the device has not reached yet, without waiting."""
        there = [isinstance(mark, int) or bool(mark.query()) for mark in self._boundaries]  # type: ignore[no-untyped-call]
        if False in there:
            del self._boundaries[there.index(False) :]

    def step_durations_us(self) -> list[float]:
        """Microseconds between boundaries, one fewer than there are; call after a
        synchronisation.
        """
        return [_between_us(first, second) for first, second in pairwise(self._boundaries)]

    def data_waits_us(self) -> list[float]:
        """Microseconds from each step's start until its batch had arrived; call after a
        synchronisation.

        All are missing (NaN) if no arrival was marked.
        """
        if not self._arrivals:
            return [math.nan] * (len(self._boundaries) - 1)
        return [
            _between_us(start, arrival)
            for start, arrival in zip(self._boundaries[:-1], self._arrivals, strict=True)
        ]

    def samples(
        self,
        measuring_pass: str,
        counts: Sequence[int],
        first_step: int = 0,
        epoch: int | None = None,
    ) -> list[StepSample]:
        """A sample per step, numbered from `first_step`, with the step's count; call after a
        synchronisation.
        """
        rows = zip(self.step_durations_us(), self.data_waits_us(), counts, strict=True)
        return [
            StepSample(measuring_pass, epoch, step, *row)
            for step, row in enumerate(rows, first_step)
        ]


def _event_on(device: torch.device) -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def _between_us(first: _Mark, second: _Mark) -> float:
    if isinstance(first, int) or isinstance(second, int):
        return (cast(int, second) - cast(int, first)) / 1000
    elapsed_ms: float = first.elapsed_time(second)
    return elapsed_ms * 1000


RunStep = Callable[[BatchArrived], int]
"""Runs one step, calls its argument once the step's batch has arrived, and returns this process's
number of samples.
"""


def nothing() -> None:
    """Ignore a batch's arrival: for steps that are not timed."""


def time_block(
    run_step: RunStep,
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
    counts: list[int] = []
    synchronise()
    started = time.perf_counter()
    timer.boundary()
    for _ in range(steps):
        counts.append(run_step(timer.batch_arrived))
        timer.boundary()
    synchronise()
    duration_s = time.perf_counter() - started
    samples = timer.samples("timed", counts, first_step, epoch)
    block = TimedBlock(
        epoch=epoch,
        steps=steps,
        samples=sum(counts),
        duration_s=duration_s,
        data_wait_s=sum(sample.data_wait_us for sample in samples) / 1e6,
    )
    return block, samples


def save_samples(path: Path, samples: Iterable[StepSample]) -> None:
    """Write samples as parquet with the columns SAMPLE_COLUMNS, whole or not at all."""
    # From JSON lines: for Python's or numpy's values pyarrow imports pandas, which takes longer
    # than the measurement.
    import pyarrow as pa
    import pyarrow.json
    import pyarrow.parquet

    fields = [(name, getattr(pa, kind)()) for name, (kind, *_) in _COLUMNS.items()]
    for_pandas = [
        {
            "name": name,
            "field_name": name,
            "pandas_type": kind,
            "numpy_type": dtype,
            "metadata": None,
        }
        for name, (_, kind, dtype) in _COLUMNS.items()
    ]
    metadata = {"index_columns": [], "column_indexes": [], "columns": for_pandas}
    schema = pa.schema(fields, {"pandas": json.dumps(metadata)})
    lines = b"\n".join(map(msgspec.json.encode, samples))  # NaN becomes null
    table = pa.Table.from_batches([], schema)
    if lines:
        table = pa.json.read_json(
            io.BytesIO(lines), parse_options=pa.json.ParseOptions(explicit_schema=schema)
        )
    with atomic_path(path) as temporary:
        pa.parquet.write_table(table.replace_schema_metadata(schema.metadata), temporary)
