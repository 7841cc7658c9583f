"""DDP's own runtime counters, read in a pass of their own: an oracle for what the traces say.

Reading them makes DDP synchronise the device in every iteration, so they share no step with the timed or the
traced pass; their pass is traced too, so that both describe the same steps.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from dpscope.profiling.instruments.step_timer import RunStep, nothing
from dpscope.profiling.instruments.trace_recorder import WARMUP_STEPS, record_trace
from dpscope.profiling.records.run import DdpCounters

_NEVER = 1_000_000_000
_ALWAYS_COUNTED_ITERATIONS = 10  # DDP collects in these whatever the rate


def warmup_iterations(requested: int, device: torch.device) -> int:
    """Warm-up a DDP model needs before its steps may be timed: on CUDA, until DDP stops collecting counters."""
    return max(requested, _ALWAYS_COUNTED_ITERATIONS + 1) if device.type == "cuda" else requested


def stop_counting(model: DistributedDataParallel) -> None:
    """Keep DDP from collecting its counters (and synchronising for it) in every hundredth iteration."""
    model._set_ddp_runtime_logging_sample_rate(_NEVER)  # type: ignore[no-untyped-call]


def record_counters(
    model: DistributedDataParallel,
    run_step: RunStep,
    traced_steps: int,
    trace_path: Path,
    device: torch.device,
    synchronise: Callable[[], None],
) -> list[DdpCounters]:
    """Count and trace the same steps; `step` of a counter is the number in the trace's ``ProfilerStep#``.

    The counters read after iteration k describe iteration k - 1 (`set_runtime_stats_and_log` runs at the start of
    an iteration's forward), so one more step runs after the traced ones.
    """
    counters: list[DdpCounters] = []

    def read_previous(step: int) -> None:
        if step - 1 >= WARMUP_STEPS:
            logged = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
            counters.append(_counters(step - 1, logged))

    model._set_ddp_runtime_logging_sample_rate(1)  # type: ignore[no-untyped-call]
    record_trace(run_step, traced_steps, trace_path, device, False, synchronise, after_step=read_previous)
    run_step(nothing)
    read_previous(WARMUP_STEPS + traced_steps + 1)
    stop_counting(model)
    return counters


def _counters(step: int, logged: Mapping[str, object]) -> DdpCounters:
    def microseconds(name: str) -> float:
        return int(str(logged[name])) / 1000  # DDP counts in nanoseconds

    bucket_bytes = str(logged["rebuilt_bucket_sizes"])
    return DdpCounters(
        step=step,
        forward_compute_us=microseconds("forward_compute_time"),
        backward_compute_us=microseconds("backward_compute_time"),
        backward_comm_us=microseconds("backward_comm_time"),
        overlap_us=microseconds("backward_compute_comm_overlap_time"),
        bucket_bytes=tuple(int(size) for size in bucket_bytes.split(",") if size.strip()),
    )
