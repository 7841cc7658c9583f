"""`torch.profiler` around a few steps: one trace per process, written whole or not at all."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from isal import igzip
from torch.profiler import ProfilerActivity, profile, schedule

from dpscope.profiling.instruments.named_ranges import ranges_recorded
from dpscope.profiling.instruments.step_timer import RunStep, StepCounts, StepSample, StepTimer, nothing
from dpscope.profiling.store.files import atomic_path

WARMUP_STEPS = 2  # run under a profiler that is on and discards: its start costs the first steps time


def record_trace(
    run_step: RunStep,
    traced_steps: int,
    path: Path,
    device: torch.device,
    all_threads: bool,
    synchronise: Callable[[], None],
    after_step: Callable[[int], None] | None = None,
) -> list[StepSample]:
    """Trace `traced_steps` whole steps and the one before them, and save the trace (gzip) at `path`.

    Returns a sample of every recorded step, `step` being the number in the trace's ``ProfilerStep#`` ranges.
    A step's time runs from its start to the start of the next, the last one's to its end: what the tracer does
    during steps is in it, writing the trace is not. `all_threads` also records Python threads the profiler has
    not seen before, as those of DataParallel. `after_step` is called with each finished step's number.
    """
    recorded_steps = traced_steps + 1
    timer = StepTimer(device)
    outcomes: list[StepCounts] = []
    synchronise()
    with (
        ranges_recorded(),
        profile(
            activities=_activities(device),
            schedule=schedule(wait=0, warmup=WARMUP_STEPS, active=recorded_steps, repeat=1),
            on_trace_ready=lambda profiler: _export(profiler, path),
            record_shapes=True,
            experimental_config=_all_threads_config() if all_threads else None,
        ) as profiler,
    ):
        for step in range(WARMUP_STEPS + recorded_steps):
            if step >= WARMUP_STEPS:
                timer.boundary()
            outcome = run_step(timer.batch_arrived if step >= WARMUP_STEPS else nothing)
            if after_step is not None:
                after_step(step)
            if step >= WARMUP_STEPS:
                outcomes.append(outcome)
            if step == WARMUP_STEPS + recorded_steps - 1:
                timer.boundary()
            if step == WARMUP_STEPS - 1:
                synchronise()  # else what is still queued would run in the recorded window, launched in none of its steps
            profiler.step()
    synchronise()
    durations = zip(timer.step_durations_us(), timer.data_waits_us(), outcomes, strict=True)
    return [
        StepSample("traced", None, WARMUP_STEPS + index, step_us, wait_us, outcome.samples)
        for index, (step_us, wait_us, outcome) in enumerate(durations)
    ]


def _activities(device: torch.device) -> list[ProfilerActivity]:
    cuda = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    return [ProfilerActivity.CPU, *cuda]


def _all_threads_config() -> torch._C._profiler._ExperimentalConfig:
    # Private, and the only way to see threads that the profiler did not start on.
    return torch._C._profiler._ExperimentalConfig(profile_all_threads=True)


def _export(profiler: profile, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=path.parent) as folder:
        plain = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(plain))
        with (
            atomic_path(path) as temporary,
            open(plain, "rb") as source,
            igzip.open(temporary, "wb") as target,  # type: ignore[no-untyped-call]
        ):
            shutil.copyfileobj(source, target, length=1 << 20)
