"""Traces of one process that trains with `nn.DataParallel` on several GPUs."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from typing import Literal

from tests.generated_traces import dp_schedule as schedule
from tests.generated_traces.builder import ZERO_US, DeviceWork, TraceBuilder
from tests.generated_traces.dp_schedule import StepPlan
from tests.generated_traces.model import Expected, GeneratedTrace, Trace
from tests.generated_traces.nccl_names import KERNEL_NAMES
from tests.generated_traces.raster import Steps, device_steps

Transport = Literal["nccl", "peer_copy"]
Inputs = Literal["host", "device"]

MAIN = 4100
STEPS = (5, 6, 7)


def dp_trace(
    devices: int = 2,
    transport: Transport = "nccl",
    inputs: Inputs = "host",
    named_ranges: bool = True,
    lag: bool = False,
    rccl: bool = False,
    reused_threads: bool = False,
) -> GeneratedTrace:
    """Three steps, ProfilerStep#5 to 7, on 2 or 4 devices.

    `transport`: NCCL broadcasts and reductions, or the copies and additions `nn.DataParallel` falls back on.
    `inputs`: batches scattered from the host, or moved to device 0 first and scattered from there by peer copies.
    `named_ranges`: with dpscope's own ranges, or without, as any other program's trace.
    `lag`: the CPU has launched all three steps before the devices have finished the first.
    `rccl`: kernels and calls as AMD's: no kernel's name identifies its collective, no copy's name its devices.
    `reused_threads`: the replicas' threads, which end with the forward, leave their ids to the next step's and to autograd's.
    The last four change no expected value, except that without named ranges there are no times by range.
    """
    if devices not in (2, 4):
        raise ValueError(f"devices is {devices}; the schedule has 2 or 4")
    steps = _expected_steps(devices, transport, inputs)
    if not named_ranges:
        steps = {place: replace(step, range_us={}) for place, step in steps.items()}
    program = _Program(devices, transport, inputs, named_ranges, rccl, reused_threads)
    expected = Expected(
        ZERO_US,
        steps,
        gradient_bytes=sum(schedule.REDUCE_BYTES),
        parameter_bytes=sum(schedule.REDUCE_BYTES),
        buffer_bytes=sum(schedule.BROADCAST_BYTES[2:]),
    )
    return GeneratedTrace(program.run(lag, rccl), expected)


@cache
def _expected_steps(devices: int, transport: Transport, inputs: Inputs) -> Steps:
    """Of the plain trace: with named ranges and names that identify collectives."""
    program = _Program(devices, transport, inputs, named_ranges=True, rccl=False, reused_threads=False)
    return device_steps(program.run(lag=False, rccl=False))


def as_rocm_names(trace: Trace) -> None:
    """Kernels of RCCL, copies of ROCm's tracer, and the calls that launch copies between devices."""
    between = set()
    for event in trace["traceEvents"]:
        if event.get("cat") == "kernel" and event["name"].startswith("ncclDevKernel"):
            event["name"] = KERNEL_NAMES["rccl"]["broadcast"]
        if event.get("cat") == "gpu_memcpy":
            if "PtoP" in event["name"]:
                between.add(event["args"]["correlation"])
            event["name"] = "CopyHostToDevice" if "HtoD" in event["name"] else "CopyDeviceToDevice"
    for event in trace["traceEvents"]:
        if event.get("cat") == "cuda_runtime" and event["args"].get("correlation") in between:
            event["name"] = "hipMemcpyPeerAsync"


def _dims(*elements: int) -> dict[str, object]:
    """Shapes as recorded for an autograd function: its first argument is no tensor."""
    dims: list[list[int]] = [[], *([count] for count in elements)]
    return {"Input Dims": dims, "Input type": ["", *(["float"] * len(elements))]}


class _Program:
    """The training loop; each method is one part of a step and launches that part's work."""

    def __init__(
        self, devices: int, transport: Transport, inputs: Inputs, named_ranges: bool, rccl: bool, reused_threads: bool
    ) -> None:
        self.reused_threads = reused_threads
        self.builder = TraceBuilder(pid=MAIN, hip=rccl)
        self.devices = devices
        self.transport = transport
        self.inputs = inputs
        self.named_ranges = named_ranges
        self.builder.clock[MAIN] = -18.0
        self._convolutions: dict[int, tuple[int, float]] = {}

    def _range(self, phase: str) -> AbstractContextManager[None]:
        return self.builder.annotation(f"dpscope::{phase}", MAIN) if self.named_ranges else nullcontext()

    def _op(self, name: str, thread: int, *works: DeviceWork) -> None:
        with self.builder.op(name, thread):
            self.builder.launch(thread, *works)

    def run(self, lag: bool, rccl: bool) -> Trace:
        for index, step in enumerate(STEPS):
            self._step(index, step, lag)
        trace = self.builder.trace(["AMD Instinct MI300X" if rccl else "NVIDIA A100-SXM4-80GB"] * self.devices)
        if rccl:
            as_rocm_names(trace)
        return trace

    def _step(self, index: int, step: int, lag: bool) -> None:
        plan = StepPlan(self.devices, index)
        builder = self.builder
        with builder.annotation(f"ProfilerStep#{step}", MAIN):
            self._load(plan)
            with builder.annotation("Optimizer.zero_grad#SGD.zero_grad", MAIN):
                pass
            with self._range("forward"):
                with builder.annotation("DataParallel.forward", MAIN):
                    self._forward(plan)
                self._op("aten::cross_entropy_loss", MAIN, plan.kernel("nll_loss_forward", schedule.LOSS))
            with self._range("backward"):
                self._backward(plan)
            with self._range("optimizer"), builder.annotation("Optimizer.step#SGD.step", MAIN):
                self._op("aten::_foreach_add_", MAIN, *plan.optimizer())
            if not lag or index == len(STEPS) - 1:
                builder.synchronize(MAIN, schedule.WINDOW_ENDS_US[index] + 4.0)
        span = (schedule.ORIGINS_US[index] + 6.0, schedule.WINDOW_ENDS_US[index])
        builder.device_annotation(f"ProfilerStep#{step}", 0, schedule.COMPUTE_STREAM, span)
        builder.clock[MAIN] += 1.0

    def _load(self, plan: StepPlan) -> None:
        with self._range("data"):
            pass
        with self._range("host_to_device"):
            size = schedule.TARGET_BYTES * self.devices
            self._op("aten::_to_copy", MAIN, plan.from_host(schedule.TARGETS, size))
            if self.inputs == "device":
                size = schedule.INPUT_BYTES * self.devices
                self._op("aten::_to_copy", MAIN, plan.from_host(schedule.INPUTS_TO_ROOT, size))

    def _forward(self, plan: StepPlan) -> None:
        with self._range("dp_scatter"), self.builder.op("Scatter", MAIN):
            for work in self._scatter(plan):
                self._op("aten::copy_", MAIN, work)
        with self._range("dp_replicate"):
            self._replicate(plan)
        with self._range("dp_parallel_apply"):
            self._parallel_apply(plan)
        with self._range("dp_gather"), self.builder.op("Gather", MAIN):
            own = plan.copy(schedule.OWN_OUTPUT, schedule.OUTPUT_BYTES, 0, 0)
            self._op("aten::copy_", MAIN, own)
            for source in range(1, self.devices):
                output = plan.copy(schedule.GATHER[source], schedule.OUTPUT_BYTES, source, 0)
                self._op("aten::copy_", MAIN, output)

    def _scatter(self, plan: StepPlan) -> list[DeviceWork]:
        size = schedule.INPUT_BYTES
        if self.inputs == "device":  # the first chunk stays where it is
            targets = range(1, self.devices)
            return [plan.copy(schedule.SCATTER_FROM_ROOT[target], size, 0, target) for target in targets]
        row = schedule.SCATTER_FROM_HOST
        return [plan.from_host(row[d], size, d, schedule.COPY_STREAM) for d in range(self.devices)]

    def _replicate(self, plan: StepPlan) -> None:
        """Parameters go through the autograd function Broadcast, buffers do not."""
        with self.builder.op("Broadcast", MAIN, **_dims(*schedule.PARAMETER_ELEMENTS)):
            self._broadcast(plan, 0)
            self._broadcast(plan, 1)
        self._broadcast(plan, 2)
        self._broadcast(plan, 3)

    def _broadcast(self, plan: StepPlan, chunk: int) -> None:
        self._flatten(plan, MAIN, schedule.BROADCAST_CONCATENATIONS[chunk], (0,))
        if self.transport == "nccl":
            works = plan.kernels(schedule.BROADCAST, schedule.BROADCASTS[chunk])
            self.builder.launch(MAIN, *works)
            return
        for target in range(1, self.devices):
            slot = schedule.BROADCAST_COPIES[chunk][target]
            copy = plan.copy(slot, schedule.BROADCAST_BYTES[chunk], 0, target)
            self._op("aten::copy_", MAIN, copy)

    def _flatten(self, plan: StepPlan, thread: int, slot: schedule.Slot | None, devices: tuple[int, ...]) -> None:
        """A chunk of several tensors is concatenated, a single tensor is only viewed."""
        for device in devices:
            with self.builder.op("aten::flatten_dense_tensors", thread):
                if slot is None:
                    self._op("aten::view", thread)
                else:
                    self._op("aten::cat", thread, plan.kernel(schedule.CONCATENATE, slot, device))

    def _parallel_apply(self, plan: StepPlan) -> None:
        """Every replica runs on a separate thread, new in every step."""
        first = 4150 if self.reused_threads else 4200 + 10 * plan.step_index  # 4150: the first of autograd's
        threads = [first + device for device in range(self.devices)]
        for device, thread in enumerate(threads):
            self.builder.clock[thread] = self.builder.clock[MAIN] + 2.0 * device
            self._convolutions[device] = (thread, self.builder.clock[thread])
            operators = ("aten::conv2d", "aten::batch_norm", "aten::linear")
            for name, work in zip(operators, plan.forward(device), strict=True):
                self._op(name, thread, work)
        self.builder.join(MAIN, *threads)

    def _backward(self, plan: StepPlan) -> None:
        """Autograd has one thread per device; the functions of several devices run on the first one's."""
        threads = [4150 + device for device in range(self.devices)]
        self.builder.join(MAIN, *threads)
        root = threads[0]
        with self._node("NllLossBackward0", root):
            self.builder.launch(root, plan.kernel("nll_loss_backward", schedule.LOSS_BACKWARD))
        with self._node("GatherBackward", root), self.builder.op("Scatter", root):
            for target in range(1, self.devices):
                slot = schedule.GRADIENT_SCATTER[target]
                copy = plan.copy(slot, schedule.OUTPUT_BYTES, 0, target)
                self._op("aten::copy_", root, copy)
        self.builder.join(*threads)
        nodes = ("AddmmBackward0", "CudnnBatchNormBackward0", "ConvolutionBackward0")
        for device, thread in enumerate(threads):
            for name, work in zip(nodes, plan.backward(device), strict=True):
                start = self.builder.clock[thread]
                with self._node(name, thread):
                    self.builder.launch(thread, work)
            self.builder.forward_backward(self._convolutions[device], (thread, start))
        self.builder.join(*threads)
        with self._node("BroadcastBackward", root):
            self._reduce(plan, root)
        self.builder.join(MAIN, *threads)

    def _node(self, name: str, thread: int) -> AbstractContextManager[None]:
        return self.builder.op(f"autograd::engine::evaluate_function: {name}", thread)

    def _reduce(self, plan: StepPlan, thread: int) -> None:
        gradients = schedule.PARAMETER_ELEMENTS * self.devices
        with (
            self.builder.op("BroadcastBackward", thread),
            self.builder.op("ReduceAddCoalesced", thread, **_dims(*gradients)),
        ):
            for chunk in range(len(schedule.REDUCE_BYTES)):
                devices = tuple(range(self.devices))
                self._flatten(plan, thread, schedule.REDUCE_CONCATENATIONS[chunk], devices)
                self._reduce_chunk(plan, thread, chunk)

    def _reduce_chunk(self, plan: StepPlan, thread: int, chunk: int) -> None:
        if self.transport == "nccl":
            works = plan.kernels(schedule.REDUCE, schedule.REDUCES[chunk])
            self.builder.launch(thread, *works)
            return
        for source in range(1, self.devices):
            slot = schedule.REDUCE_COPIES[chunk][source]
            copy = plan.copy(slot, schedule.REDUCE_BYTES[chunk], source, 0)
            self._op("aten::_to_copy", thread, copy)
            addition = plan.kernel(schedule.ADD, schedule.REDUCE_ADDITIONS[chunk][source])
            self._op("aten::add" if source == 1 else "aten::add_", thread, addition)
