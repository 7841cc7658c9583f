"""Traces of one process that trains with `nn.DataParallel` on several GPUs, and when each kernel
and copy of a step runs.

One row per kernel, one (start, duration) per device, in microseconds after the step's origin. A
step's window begins LEAD_US before its origin (where the previous step's last kernel ended), except
the first, which begins at its first event, 6 us after. Two devices use the first two columns.

The model: three fp32 parameters of 6, 6 and 3 MiB, buffers of 38,400 B (fp32) and 160 B (int64);
128 samples a device. Broadcast chunks are closed once they reach 10 MiB
(torch/csrc/utils/tensor_flatten.cpp), so 6 + 6 | 3; reduce chunks never pass it (torch/_utils.py,
_take_tensors), so 6 | 6 + 3.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

from tests.generated_traces.builder import ZERO_US, DeviceWork, TraceBuilder
from tests.generated_traces.model import (
    DP_BROADCAST_BYTES,
    DP_REDUCE_BYTES,
    Expected,
    GeneratedTrace,
    Trace,
)
from tests.generated_traces.raster import Steps, device_steps

Slot = tuple[float, float]
Row = tuple[Slot, Slot, Slot, Slot]

LEAD_US = 24.0
PARAMETER_ELEMENTS = (1572864, 1572864, 786432)
BUFFER_ELEMENTS = (9600, 20)
INPUT_BYTES = 1572864  # 128 x 3 x 32 x 32 fp32
TARGET_BYTES = 1024  # 128 int64
OUTPUT_BYTES = 5120  # 128 x 10 fp32

COMPUTE_STREAM = 7
COPY_STREAM = 20

BROADCAST = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE = "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
CONCATENATE = (
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 1, 64, 64>"
)
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"

TARGETS: Slot = (6, 2)
INPUTS_TO_ROOT: Slot = (10, 40)
SCATTER_FROM_HOST: Row = ((12, 40), (14, 42), (16, 44), (18, 46))
SCATTER_FROM_ROOT: dict[int, Slot] = {1: (52, 5), 2: (58, 5), 3: (64, 5)}

# By broadcast chunk: the concatenation on device 0 (none for a chunk of one tensor), then the
# broadcast.
BROADCAST_CONCATENATIONS: tuple[Slot | None, ...] = ((70, 12), None, (170, 3), (188, 2))
BROADCASTS: tuple[Row, ...] = (
    ((84, 60), (85, 59), (86, 58), (87, 57)),
    ((150, 18), (151, 17), (152, 16), (153, 15)),
    ((176, 10), (177, 9), (178, 8), (179, 7)),
    ((192, 8), (193, 7), (194, 6), (195, 5)),
)
# The same by copies from device 0 to each other one.
BROADCAST_COPIES: tuple[dict[int, Slot], ...] = (
    {1: (84, 20), 2: (104, 20), 3: (124, 20)},
    {1: (150, 6), 2: (156, 6), 3: (162, 6)},
    {1: (176, 3), 2: (179, 3), 3: (182, 3)},
    {1: (192, 2), 2: (194, 2), 3: (196, 2)},
)

# The last kernel of device 1 takes 30 us more in the second step.
FORWARD: tuple[tuple[str, Row], ...] = (
    ("sm80_xmma_fprop_implicit_gemm_f32f32", ((214, 100), (216, 100), (218, 100), (220, 100))),
    ("void cudnn::bn_fw_tr_1C11_singleread<float>", ((320, 90), (321, 90), (322, 90), (323, 90))),
    ("ampere_sgemm_128x64_tn", ((412, 120.5), (414, 130), (416, 110), (418, 125))),
)
SECOND_STEP_DELAY: Slot = (1, 30)

OWN_OUTPUT: Slot = (580, 2)
GATHER: dict[int, Slot] = {1: (584, 4), 2: (585, 4), 3: (586, 4)}
LOSS: Slot = (594, 6)
LOSS_BACKWARD: Slot = (604, 8)
GRADIENT_SCATTER: dict[int, Slot] = {1: (616, 3), 2: (620, 3), 3: (624, 3)}
BACKWARD: tuple[tuple[str, Row], ...] = (
    ("ampere_sgemm_128x64_nn", ((630, 200), (632, 200), (634, 200), (636, 200))),
    ("void cudnn::bn_bw_1C11_singleread<float>", ((840, 180), (840, 170), (842, 160), (844, 150))),
    (
        "sm80_xmma_wgrad_implicit_gemm_indexed_f32f32",
        ((1024, 60), (1014, 80), (1006, 70), (998, 76)),
    ),
)

# By reduce chunk: the concatenation on every device (none for one tensor), then the reduction.
REDUCE_CONCATENATIONS: tuple[Slot | None, ...] = (None, (1142, 8))
REDUCES: tuple[Row, ...] = (
    ((1104, 36), (1105, 35), (1106, 34), (1107, 33)),
    ((1154, 50), (1155, 49), (1156, 48), (1157, 47)),
)
# The same by a copy from each other device to device 0, and an addition there.
REDUCE_COPIES: tuple[dict[int, Slot], ...] = (
    {1: (1104, 10), 2: (1116, 10), 3: (1128, 10)},
    {1: (1154, 14), 2: (1170, 14), 3: (1186, 14)},
)
REDUCE_ADDITIONS: tuple[dict[int, Slot], ...] = (
    {1: (1115, 3), 2: (1127, 3), 3: (1139, 3)},
    {1: (1169, 4), 2: (1185, 4), 3: (1201, 4)},
)

OPTIMIZER: Slot = (1220, 60)
OPTIMIZER_LAST: tuple[Slot, ...] = ((1284, 100), (1284, 120), (1284, 110))  # by step
ORIGINS_US = (0.0, 1408.0, 2836.0)  # LEAD_US after the end of the step before: 1384, then 2812
WINDOW_ENDS_US = (1384.0, 2812.0, 4230.0)


class StepPlan:
    """The device work of one step, placed in time."""

    def __init__(self, devices: int, step_index: int) -> None:
        self.devices = devices
        self.step_index = step_index
        self._origin = ORIGINS_US[step_index]

    def kernel(self, name: str, slot: Slot, device: int = 0) -> DeviceWork:
        return DeviceWork(device, COMPUTE_STREAM, name, self._origin + slot[0], slot[1])

    def kernels(self, name: str, row: Row) -> list[DeviceWork]:
        """The same kernel on every device, as one grouped NCCL call launches it."""
        return [self.kernel(name, row[device], device) for device in range(self.devices)]

    def from_host(
        self, slot: Slot, size: int, device: int = 0, stream: int = COMPUTE_STREAM
    ) -> DeviceWork:
        name = "Memcpy HtoD (Pinned -> Device)"
        return DeviceWork(device, stream, name, self._origin + slot[0], slot[1], "gpu_memcpy", size)

    def copy(self, slot: Slot, size: int, source: int, target: int) -> DeviceWork:
        """A copy between devices runs on, and is recorded on, its source's compute stream."""
        is_peer = source != target
        name = f"Memcpy {'PtoP' if is_peer else 'DtoD'} (Device -> Device)"
        start, duration = self._origin + slot[0], slot[1]
        to_device = target if is_peer else None
        return DeviceWork(
            source, COMPUTE_STREAM, name, start, duration, "gpu_memcpy", size, to_device
        )

    def forward(self, device: int) -> list[DeviceWork]:
        works = [self.kernel(name, row[device], device) for name, row in FORWARD]
        if (self.step_index, device) == (1, SECOND_STEP_DELAY[0]):
            name, row = FORWARD[-1]
            works[-1] = self.kernel(
                name, (row[device][0], row[device][1] + SECOND_STEP_DELAY[1]), device
            )
        return works

    def backward(self, device: int) -> list[DeviceWork]:
        return [self.kernel(name, row[device], device) for name, row in BACKWARD]

    def optimizer(self) -> list[DeviceWork]:
        name = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<BinaryOpListAlphaFunctor<float>>"
        return [self.kernel(name, OPTIMIZER), self.kernel(name, OPTIMIZER_LAST[self.step_index])]


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
) -> GeneratedTrace:
    """Three steps, ProfilerStep#5 to 7, on 2 or 4 devices.

    `transport`: NCCL broadcasts and reductions, or the copies and additions `nn.DataParallel` falls
    back on. `inputs`: batches scattered from the host, or moved to device 0 first and scattered
    from there by peer copies. `named_ranges`: with dpscope's own ranges, or without, as any other
    program's trace. `lag`: the CPU has launched all three steps before the devices have finished
    the first. The last two change no expected value, except that without named ranges there are no
    times by range.
    """
    if devices not in (2, 4):
        raise ValueError(f"devices is {devices}; the schedule has 2 or 4")
    steps = _expected_steps(devices, transport, inputs)
    if not named_ranges:
        steps = {place: replace(step, range_us={}) for place, step in steps.items()}
    gradients, buffers = sum(DP_REDUCE_BYTES), sum(DP_BROADCAST_BYTES[2:])
    expected = Expected(
        ZERO_US, steps, gradient_bytes=gradients, parameter_bytes=gradients, buffer_bytes=buffers
    )
    return GeneratedTrace(_Program(devices, transport, inputs, named_ranges, lag).run(), expected)


@cache
def _expected_steps(devices: int, transport: Transport, inputs: Inputs) -> Steps:
    """Of the plain trace: with named ranges and names that identify collectives."""
    return device_steps(_Program(devices, transport, inputs).run())


def _dims(*elements: int) -> dict[str, object]:
    """Shapes as recorded for an autograd function: its first argument is no tensor."""
    dims: list[list[int]] = [[], *([count] for count in elements)]
    return {"Input Dims": dims, "Input type": ["", *(["float"] * len(elements))]}


@dataclass
class _Program:
    """The training loop; each method is one part of a step and launches that part's work."""

    devices: int
    transport: Transport
    inputs: Inputs
    named_ranges: bool = True
    lag: bool = False
    builder: TraceBuilder = field(init=False)

    def _range(self, phase: str) -> AbstractContextManager[None]:
        return (
            self.builder.annotation(f"dpscope::{phase}", MAIN)
            if self.named_ranges
            else nullcontext()
        )

    def _op(self, name: str, thread: int, *works: DeviceWork) -> None:
        with self.builder.op(name, thread):
            self.builder.launch(thread, *works)

    def run(self) -> Trace:
        self.builder = TraceBuilder(pid=MAIN)
        self.builder.clock[MAIN] = -18.0
        for index, step in enumerate(STEPS):
            self._step(index, step)
        return self.builder.trace(["NVIDIA A100-SXM4-80GB"] * self.devices)

    def _step(self, index: int, step: int) -> None:
        plan = StepPlan(self.devices, index)
        builder = self.builder
        with builder.annotation(f"ProfilerStep#{step}", MAIN):
            self._load(plan)
            with builder.annotation("Optimizer.zero_grad#SGD.zero_grad", MAIN):
                pass
            with self._range("forward"):
                with builder.annotation("DataParallel.forward", MAIN):
                    self._forward(plan)
                self._op("aten::cross_entropy_loss", MAIN, plan.kernel("nll_loss_forward", LOSS))
            with self._range("backward"):
                self._backward(plan)
            with self._range("optimizer"), builder.annotation("Optimizer.step#SGD.step", MAIN):
                self._op("aten::_foreach_add_", MAIN, *plan.optimizer())
            if not self.lag or index == len(STEPS) - 1:
                builder.synchronize(MAIN, WINDOW_ENDS_US[index] + 4.0)
        span = (ORIGINS_US[index] + 6.0, WINDOW_ENDS_US[index])
        builder.device_annotation(f"ProfilerStep#{step}", 0, COMPUTE_STREAM, span)
        builder.clock[MAIN] += 1.0

    def _load(self, plan: StepPlan) -> None:
        with self._range("data"):
            pass
        with self._range("host_to_device"):
            size = TARGET_BYTES * self.devices
            self._op("aten::_to_copy", MAIN, plan.from_host(TARGETS, size))
            if self.inputs == "device":
                size = INPUT_BYTES * self.devices
                self._op("aten::_to_copy", MAIN, plan.from_host(INPUTS_TO_ROOT, size))

    def _forward(self, plan: StepPlan) -> None:
        with self._range("dp_scatter"), self.builder.op("Scatter", MAIN):
            for work in self._scatter(plan):
                self._op("aten::copy_", MAIN, work)
        with self._range("dp_replicate"):
            self._replicate(plan)
        with self._range("dp_parallel_apply"):
            self._parallel_apply(plan)
        with self._range("dp_gather"), self.builder.op("Gather", MAIN):
            self._op("aten::copy_", MAIN, plan.copy(OWN_OUTPUT, OUTPUT_BYTES, 0, 0))
            for source in range(1, self.devices):
                self._op("aten::copy_", MAIN, plan.copy(GATHER[source], OUTPUT_BYTES, source, 0))

    def _scatter(self, plan: StepPlan) -> list[DeviceWork]:
        if self.inputs == "device":  # the first chunk stays where it is
            targets = range(1, self.devices)
            return [
                plan.copy(SCATTER_FROM_ROOT[target], INPUT_BYTES, 0, target) for target in targets
            ]
        return [
            plan.from_host(SCATTER_FROM_HOST[d], INPUT_BYTES, d, COPY_STREAM)
            for d in range(self.devices)
        ]

    def _replicate(self, plan: StepPlan) -> None:
        """Parameters go through the autograd function Broadcast, buffers do not."""
        with self.builder.op("Broadcast", MAIN, **_dims(*PARAMETER_ELEMENTS)):
            self._broadcast(plan, 0)
            self._broadcast(plan, 1)
        self._broadcast(plan, 2)
        self._broadcast(plan, 3)

    def _broadcast(self, plan: StepPlan, chunk: int) -> None:
        self._flatten(plan, MAIN, BROADCAST_CONCATENATIONS[chunk], (0,))
        if self.transport == "nccl":
            self.builder.launch(MAIN, *plan.kernels(BROADCAST, BROADCASTS[chunk]))
            return
        for target in range(1, self.devices):
            copy = plan.copy(BROADCAST_COPIES[chunk][target], DP_BROADCAST_BYTES[chunk], 0, target)
            self._op("aten::copy_", MAIN, copy)

    def _flatten(
        self, plan: StepPlan, thread: int, slot: Slot | None, devices: tuple[int, ...]
    ) -> None:
        """A chunk of several tensors is concatenated, a single tensor is only viewed."""
        for device in devices:
            with self.builder.op("aten::flatten_dense_tensors", thread):
                if slot is None:
                    self._op("aten::view", thread)
                else:
                    self._op("aten::cat", thread, plan.kernel(CONCATENATE, slot, device))

    def _parallel_apply(self, plan: StepPlan) -> None:
        """Every replica runs on a separate thread, new in every step."""
        first = 4200 + 10 * plan.step_index
        threads = [first + device for device in range(self.devices)]
        for device, thread in enumerate(threads):
            self.builder.clock[thread] = self.builder.clock[MAIN] + 2.0 * device
            operators = ("aten::conv2d", "aten::batch_norm", "aten::linear")
            for name, work in zip(operators, plan.forward(device), strict=True):
                self._op(name, thread, work)
        self.builder.join(MAIN, *threads)

    def _backward(self, plan: StepPlan) -> None:
        """Autograd has one thread per device; the functions of several devices run on the first
        one's.
        """
        threads = [4150 + device for device in range(self.devices)]
        self.builder.join(MAIN, *threads)
        root = threads[0]
        with self._node("NllLossBackward0", root):
            self.builder.launch(root, plan.kernel("nll_loss_backward", LOSS_BACKWARD))
        with self._node("GatherBackward", root), self.builder.op("Scatter", root):
            for target in range(1, self.devices):
                self._op(
                    "aten::copy_",
                    root,
                    plan.copy(GRADIENT_SCATTER[target], OUTPUT_BYTES, 0, target),
                )
        self.builder.join(*threads)
        nodes = ("AddmmBackward0", "CudnnBatchNormBackward0", "ConvolutionBackward0")
        for device, thread in enumerate(threads):
            for name, work in zip(nodes, plan.backward(device), strict=True):
                with self._node(name, thread):
                    self.builder.launch(thread, work)
        self.builder.join(*threads)
        with self._node("BroadcastBackward", root):
            self._reduce(plan, root)
        self.builder.join(MAIN, *threads)

    def _node(self, name: str, thread: int) -> AbstractContextManager[None]:
        return self.builder.op(f"autograd::engine::evaluate_function: {name}", thread)

    def _reduce(self, plan: StepPlan, thread: int) -> None:
        gradients = PARAMETER_ELEMENTS * self.devices
        with (
            self.builder.op("BroadcastBackward", thread),
            self.builder.op("ReduceAddCoalesced", thread, **_dims(*gradients)),
        ):
            for chunk, size in enumerate(DP_REDUCE_BYTES):
                self._flatten(
                    plan, thread, REDUCE_CONCATENATIONS[chunk], tuple(range(self.devices))
                )
                if self.transport == "nccl":
                    self.builder.launch(thread, *plan.kernels(REDUCE, REDUCES[chunk]))
                    continue
                for source in range(1, self.devices):
                    self._op(
                        "aten::_to_copy",
                        thread,
                        plan.copy(REDUCE_COPIES[chunk][source], size, source, 0),
                    )
                    addition = plan.kernel(ADD, REDUCE_ADDITIONS[chunk][source])
                    self._op("aten::add" if source == 1 else "aten::add_", thread, addition)
