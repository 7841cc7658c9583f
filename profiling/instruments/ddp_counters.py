"""DDP's runtime counters, read in a separate traced pass to check the traces, and the sizes of a
model's parameters.

Reading them makes DDP synchronise the device in every iteration, so they are not read in the timed
or the traced pass.
"""

import contextlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dpscope.profiling.instruments.step_timer import RunStep, nothing
from dpscope.profiling.instruments.trace_recorder import WARMUP_STEPS, StepTrace
from dpscope.profiling.records.run import DdpCounters, ParameterSizes, TensorSize

_NEVER = 1_000_000_000
ALWAYS_COUNTED_ITERATIONS = 10  # DDP collects in these whatever the rate


def stop_counting(model: DistributedDataParallel) -> None:
    """Keep DDP from collecting its counters (and synchronising for it) in every hundredth
    iteration.
    """
    model._set_ddp_runtime_logging_sample_rate(_NEVER)  # type: ignore[no-untyped-call]


def count_by_default(model: DistributedDataParallel) -> None:
    """Let DDP collect its counters at its default rate."""
    model._set_ddp_runtime_logging_sample_rate(100)  # type: ignore[no-untyped-call]  # torch's kDDPRuntimeLoggingSampleRate


class StepCounters:
    """Reads DDP's counters step by step during the steps that a `StepTrace` records.

    The counters read after iteration k describe iteration k - 1 (`set_runtime_stats_and_log` runs
    at the start of an iteration's forward), so one more step runs after the traced ones. An
    iteration is a forward pass that reduces gradients: a script that accumulates gradients without
    `no_sync` has several in a step, and the one before the last belongs to the same step. Call
    `stop_counting` when all are read.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self.counters: list[DdpCounters] = []
        self._model = model
        self._iteration: int | None = None  # DDP's number of the last one read
        self._step = 0  # counted from the trace's first
        self._waited_us = cpu_wait_us()
        self._step_waits_us: dict[int, float] = {}
        model._set_ddp_runtime_logging_sample_rate(1)  # type: ignore[no-untyped-call]

    def step_ended(self) -> None:
        """Read the counters of the step before the one that has ended; called after each step from
        the trace's first.
        """
        step = self._step
        self._step = self._step + 1
        before_us = self._waited_us
        after_us = cpu_wait_us()
        self._waited_us = after_us
        if before_us is not None and after_us is not None:
            self._step_waits_us[step] = max(after_us - before_us, 0.0)
        if step < WARMUP_STEPS:
            return
        logged = self._model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        iteration = int(logged["iteration"])
        if self._iteration is not None:
            iterations = iteration - self._iteration
            described = step - 1 if iterations < 2 else step
            waited_us = self._step_waits_us.get(described)
            self.counters.append(counters_of(described, logged, iterations, waited_us))
        self._iteration = iteration


def record_counters(
    model: DistributedDataParallel, run_step: RunStep, trace: StepTrace
) -> list[DdpCounters]:
    """Count and trace the same steps; a counter's `step` is the number in the trace's
    ``ProfilerStep#``.
    """
    counting = StepCounters(model)
    trace.record(run_step, counting.step_ended)
    run_step(nothing)
    counting.step_ended()
    stop_counting(model)
    return counting.counters


def cpu_wait_us() -> float | None:
    """Total time that this process's threads were ready to run but waited for a core; None if the
    kernel does not count it.

    Source: run_delay, the second field of ``/proc/self/task/*/schedstat`` (Linux,
    Documentation/scheduler/sched-stats), in ns.
    """
    waited_ns = 0
    try:
        for path in Path("/proc/self/task").glob("*/schedstat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
                waited_ns += int(path.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return waited_ns / 1000 if waited_ns else None


def counters_of(
    step: int, logged: Mapping[str, object], iterations: int = 1, cpu_wait_us: float | None = None
) -> DdpCounters:
    """One step's counters from DDP's logging data, whose times are nanoseconds; `iterations`: DDP's
    in a step.
    """

    def microseconds(name: str) -> float:
        return int(str(logged[name])) / 1000

    # With find_unused_parameters DDP rebuilds no buckets and logs no rebuilt sizes.
    bucket_bytes = str(logged.get("rebuilt_bucket_sizes") or logged["bucket_sizes"])
    return DdpCounters(
        step=step,
        iterations=iterations,
        forward_compute_us=microseconds("forward_compute_time"),
        backward_compute_us=microseconds("backward_compute_time"),
        backward_comm_us=microseconds("backward_comm_time"),
        overlap_us=microseconds("backward_compute_comm_overlap_time"),
        bucket_bytes=tuple(int(size) for size in bucket_bytes.split(",") if size.strip()),
        cpu_wait_us=cpu_wait_us,
    )


def parameter_sizes(model: nn.Module) -> ParameterSizes:
    """The sizes of this model; shared parameters count once."""
    return tensor_sizes(model.parameters(), model.buffers())


def tensor_sizes(
    parameters: Iterable[Tensor], buffers: Iterable[Tensor], trained_ids: Collection[int] = ()
) -> ParameterSizes:
    """The sizes of distinct tensors; those in `trained_ids` have gradients even if they currently
    require none.
    """

    def size(tensor: Tensor) -> TensorSize:  # `nbytes` is not defined for sparse tensors
        return TensorSize(
            str(tensor.dtype).removeprefix("torch."), tensor.numel() * tensor.element_size()
        )

    parameters = list(parameters)
    trained = [
        parameter
        for parameter in parameters
        if parameter.requires_grad or id(parameter) in trained_ids
    ]
    parameter_tensors = tuple(map(size, parameters))
    buffer_tensors = tuple(map(size, buffers))
    return ParameterSizes(
        parameter_count=sum(parameter.numel() for parameter in parameters),
        parameter_bytes=sum(tensor.bytes for tensor in parameter_tensors),
        gradient_bytes=sum(size(weight).bytes for weight in trained),
        buffer_bytes=sum(tensor.bytes for tensor in buffer_tensors),
        gradient_elements=sum(weight.numel() for weight in trained),
        gradient_shapes=tuple(tuple(weight.shape) for weight in trained),
        parameter_tensors=parameter_tensors,
        buffer_tensors=buffer_tensors,
    )
