"""Traces of one rank of a DistributedDataParallel job, one GPU per rank: schedule, expected
collectives, events.

The schedule: (start, duration) in microseconds after the step's origin, which is LEAD_US after the
end of the step before. Roles: `even` (no rank is late), `late` (this rank begins its backward
DELAY_US late) and `waiting` (another rank does).
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.generated_traces.builder import (
    KERNEL_NAMES,
    ZERO_US,
    DeviceWork,
    Generation,
    TraceBuilder,
    one_group,
    recorded,
)
from tests.generated_traces.model import Expected, ExpectedCollective, GeneratedTrace, Trace
from tests.generated_traces.raster import device_steps

Slot = tuple[float, float]
Role = Literal["even", "late", "waiting"]
Metadata = Literal["kernel", "no_sequence", "partial", "ops", "none"]

LEAD_US = 24.0
DELAY_US = 500.0

INPUT_BYTES = 1572864  # 128 x 3 x 32 x 32 fp32
TARGET_BYTES = 1024  # 128 int64
LAST_BUCKET_BYTES = 2000000

INPUTS: Slot = (6, 30)
TARGETS: Slot = (38, 2)
FORWARD: tuple[Slot, ...] = ((70, 194), (268, 100))
LOSS: Slot = (372, 8)
# With `lag`, the next step's inputs are copied during this one, next to the optimizer.
PREFETCH: Slot = (738, 30)

# From here on a late rank is DELAY_US later.
BACKWARD: tuple[Slot, ...] = ((384, 100), (488, 100), (590, 60), (654, 20))
MEMSET: Slot = (680, 4)
# From here on every rank is DELAY_US later when one is late.
BUCKET_COPY: Slot = (736, 6)
OPTIMIZER: tuple[Slot, ...] = ((750, 60), (750, 66), (750, 72))  # by step

# Without a late rank; with one they are 500 us later.
ORIGINS_US = (0.0, 834.0, 1674.0)  # 810 + 24, then 834 + 816 + 24
WINDOW_ENDS_US = (810.0, 1650.0, 2496.0)
LATE_ORIGINS_US = (0.0, 1334.0, 2674.0)
LATE_WINDOW_ENDS_US = (1310.0, 2650.0, 3996.0)


@dataclass(frozen=True)
class DdpOptions:
    """How a trace differs from the plain one.

    `metadata`: "kernel": on kernels and on their `record_param_comms`; "no_sequence": the same
    without `Seq`; "partial": missing on the kernels of the broadcasts and the first bucket, present
    on their operators; "ops": only `Input Dims` and `Input type` of the operators; "none": nowhere.
    `lag`: the GPU is more than a step behind, and the next step's inputs are copied during the step
    before. `unlaunched`: two kernels whose launch came before the trace. `straggler`: the rank that
    begins each backward 500 us late. `communication`: False leaves out every NCCL kernel and keeps
    the operators. `extra_groups`: an all-to-all, and an all-gather and a reduce-scatter in a group
    of two ranks.
    """

    metadata: Metadata = "kernel"
    kernel_names: Generation = "nccl_2_19"
    lag: bool = False
    unlaunched: bool = False
    straggler: int | None = None
    communication: bool = True
    buffers: bool = True
    extra_groups: bool = False
    named_ranges: bool = True

    def role(self, rank: int) -> Role:
        if self.straggler is None:
            return "even"
        return "late" if self.straggler == rank else "waiting"


class Collective(NamedTuple):
    """One collective that a step requests; `after` names the work it follows in the program.

    Worked out by hand: its bytes, and if it synchronises its transfer, algbw, and busbw in jobs of
    2 and 4 ranks.
    """

    key: str
    kind: str
    group: str  # "world" or "pair"
    in_elements: int
    out_elements: int
    after: str
    bytes: int
    transfer_us: float | None = None
    algbw_gb_per_s: float | None = None
    busbw_gb_per_s: tuple[float, float] | None = None
    dtype: tuple[str, str] = ("Float", "float")  # of metadata, of shapes


COLLECTIVES = (
    Collective("buffers", "broadcast", "world", 9600, 9600, "load", 38400),
    Collective("counters", "broadcast", "world", 20, 20, "load", 160, dtype=("Long", "long int")),
    Collective("gather", "all_gather", "pair", 25000, 50000, "forward0", 200000, 20, 10, (5, 5)),
    Collective("exchange", "all_to_all", "world", 10000, 10000, "forward0", 40000, 10, 4, (2, 3)),
    Collective(
        "bucket0",
        "all_reduce",
        "world",
        1500000,
        1500000,
        "backward0",
        6000000,
        60,
        100,
        (100, 150),
    ),
    Collective(
        "scatter",
        "reduce_scatter",
        "pair",
        100000,
        50000,
        "backward0",
        400000,
        16,
        25,
        (12.5, 12.5),
    ),
    Collective(
        "bucket1",
        "all_reduce",
        "world",
        2880000,
        2880000,
        "backward1",
        11520000,
        96,
        120,
        (120, 180),
    ),
    Collective(
        "bucket2", "all_reduce", "world", 500000, 500000, "backward3", 2000000, 40, 50, (50, 75)
    ),
)
WAITING_US = {"bucket0": 500.0, "bucket1": 40.0}  # of the role `waiting`

# When each runs, by role; the even ranks' last one begins up to 3 us early by rank and ends with
# the others'.
_FORWARD_TIMES: dict[str, Slot] = {
    "buffers": (44, 12),
    "counters": (58, 6),
    "gather": (270, 20),
    "exchange": (300, 10),
}
TIMES: dict[Role, dict[str, Slot]] = {
    "even": {
        **_FORWARD_TIMES,
        "bucket0": (490, 60),
        "scatter": (500, 16),
        "bucket1": (594, 96),
        "bucket2": (694, 40),
    },
    "late": {**_FORWARD_TIMES, "bucket0": (990, 60), "bucket1": (1094, 96), "bucket2": (1194, 40)},
    "waiting": {
        **_FORWARD_TIMES,
        "bucket0": (490, 560),
        "bucket1": (1054, 136),
        "bucket2": (1194, 40),
    },
}
EVEN_EARLY_US = (0.0, 3.0, 1.0, 2.0)  # by rank, of bucket2: they wait as long

# Launched before the trace began: on the compute stream before the first step, on NCCL's stream
# within it.
UNLAUNCHED_COMPUTE: Slot = (-180, 60)
UNLAUNCHED_ALL_REDUCE: Slot = (10, 20)


MAIN = 5100
AUTOGRAD = 5150
STEPS = (5, 6, 7)
FIRST_SEQUENCE = {"world": 41, "pair": 7}
# The collectives whose kernels lose their metadata when it is "partial".
PARTIAL = ("buffers", "counters", "bucket0")


def ddp_trace(
    rank: int = 0, world_size: int = 2, options: DdpOptions | None = None
) -> GeneratedTrace:
    """Three steps, ProfilerStep#5 to 7, of one rank of 2 or 4."""
    options = options or DdpOptions()
    if world_size not in (2, 4) or not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size}; the schedule has 2 or 4 ranks")
    if options.straggler is not None and (options.lag or options.extra_groups):
        raise ValueError(
            "straggler goes with neither lag nor extra_groups; the schedule has no times for them"
        )
    program = _Program(rank, world_size, options)
    program.run()
    trace = program.trace()
    unlaunched_us = (UNLAUNCHED_COMPUTE[1], UNLAUNCHED_ALL_REDUCE[1])[: 1 + options.communication]
    expected = Expected(
        ZERO_US,
        device_steps(trace, options.communication),
        collectives=tuple(program.collectives) if options.communication else (),
        unlaunched_count=len(unlaunched_us) if options.unlaunched else 0,
        unlaunched_us=sum(unlaunched_us) if options.unlaunched else 0.0,
        gradient_bytes=19520000,
        buffer_bytes=38560 if options.buffers else 0,
    )
    return GeneratedTrace(trace, expected)


class _Program:
    """The training loop of one rank."""

    def __init__(self, rank: int, world_size: int, options: DdpOptions) -> None:
        is_rocm = options.kernel_names == "rccl"
        self.builder = TraceBuilder(pid=MAIN + 1000 * rank, hip=is_rocm)
        self.rank = rank
        self.world_size = world_size
        self.options = options
        self.role = options.role(rank)
        # ROCm: computes on stream 0, and its devices need not be counted from 0.
        self.device = rank + 2 if is_rocm else rank
        self.streams = {"compute": 0 if is_rocm else 7, "world": 40, "pair": 44, "prefetch": 24}
        self.sequence = dict(FIRST_SEQUENCE)
        self.step, self.origin = STEPS[0], 0.0
        self.collectives: list[ExpectedCollective] = []
        self.builder.clock[MAIN] = -18.0

    def run(self) -> None:
        is_late = self.options.straggler is not None
        origins = LATE_ORIGINS_US if is_late else ORIGINS_US
        ends = LATE_WINDOW_ENDS_US if is_late else WINDOW_ENDS_US
        if self.options.unlaunched:
            self._unlaunched()
        for index, step in enumerate(STEPS):
            self.step, self.origin = step, origins[index]
            with self.builder.annotation(f"ProfilerStep#{step}", MAIN):
                self._step(index)
                if not self.options.lag or index == len(STEPS) - 1:
                    self.builder.synchronize(MAIN, ends[index] + 4.0)
            span = (origins[index] + INPUTS[0], ends[index])
            self.builder.device_annotation(
                f"ProfilerStep#{step}", self.device, self.streams["compute"], span
            )
            self.builder.clock[MAIN] += 1.0

    def _unlaunched(self) -> None:
        self.builder.unlaunched(self._kernel("ampere_sgemm_128x64_tn", UNLAUNCHED_COMPUTE))
        if self.options.communication:
            name = KERNEL_NAMES[self.options.kernel_names]["all_reduce"]
            self.builder.unlaunched(self._kernel(name, UNLAUNCHED_ALL_REDUCE, "world"))

    def _kernel(self, name: str, slot: Slot, stream: str = "compute") -> DeviceWork:
        start = self.origin + slot[0]
        return DeviceWork(self.device, self.streams[stream], name, start, slot[1])

    def _copy(self, name: str, slot: Slot, size: int, stream: str = "compute") -> DeviceWork:
        category = "gpu_memset" if name.startswith("Memset") else "gpu_memcpy"
        start = self.origin + slot[0]
        return DeviceWork(self.device, self.streams[stream], name, start, slot[1], category, size)

    def _range(self, phase: str) -> AbstractContextManager[None]:
        is_named = self.options.named_ranges
        return self.builder.annotation(f"dpscope::{phase}", MAIN) if is_named else nullcontext()

    def _op(self, name: str, thread: int, *works: DeviceWork) -> None:
        with self.builder.op(name, thread):
            self.builder.launch(thread, *works)

    def _step(self, index: int) -> None:
        with self._range("data"):
            pass
        with self._range("host_to_device"):
            self._load(index)
        with self._range("forward"):
            with self.builder.annotation("DistributedDataParallel.forward", MAIN):
                self._collectives("load", MAIN)
                for number, slot in enumerate(FORWARD):
                    self._op(
                        "aten::conv2d", MAIN, self._kernel("sm80_xmma_fprop_implicit_gemm", slot)
                    )
                    self._collectives(f"forward{number}", MAIN)
            self._op("aten::cross_entropy_loss", MAIN, self._kernel("nll_loss_forward", LOSS))
        with self._range("backward"):
            self._backward()
        with self._range("optimizer"), self.builder.annotation("Optimizer.step#SGD.step", MAIN):
            everyone = 0.0 if self.role == "even" else DELAY_US
            start, duration = OPTIMIZER[index]
            update = self._kernel("multi_tensor_apply_kernel", (start + everyone, duration))
            self._op("aten::_foreach_add_", MAIN, update)

    def _load(self, index: int) -> None:
        inputs = self._copy("Memcpy HtoD (Pinned -> Device)", INPUTS, INPUT_BYTES)
        if self.options.lag and index > 0:
            step_before = ORIGINS_US[index - 1] - self.origin
            slot = (step_before + PREFETCH[0], PREFETCH[1])
            inputs = self._copy(inputs.name, slot, INPUT_BYTES, "prefetch")
        targets = self._copy("Memcpy HtoD (Pageable -> Device)", TARGETS, TARGET_BYTES)
        self._op("aten::_to_copy", MAIN, inputs)
        self._op("aten::_to_copy", MAIN, targets)

    def _backward(self) -> None:
        builder = self.builder
        builder.join(MAIN, AUTOGRAD)
        own = DELAY_US if self.role == "late" else 0.0
        everyone = 0.0 if self.role == "even" else DELAY_US
        for number, (start, duration) in enumerate(BACKWARD):
            work = self._kernel("sm80_xmma_wgrad_implicit_gemm", (start + own, duration))
            self._op("autograd::engine::evaluate_function: ConvolutionBackward0", AUTOGRAD, work)
            self._collectives(f"backward{number}", AUTOGRAD)
        start, duration = MEMSET
        self._op(
            "aten::zero_", AUTOGRAD, self._copy("Memset (Device)", (start + own, duration), 4096)
        )
        self._wait()
        start, duration = BUCKET_COPY
        name, size = "Memcpy DtoD (Device -> Device)", LAST_BUCKET_BYTES
        self._op("aten::copy_", AUTOGRAD, self._copy(name, (start + everyone, duration), size))
        builder.join(MAIN, AUTOGRAD)

    def _wait(self) -> None:
        """A wait is recorded like a collective, and is none."""
        with_fields = self.options.metadata not in ("ops", "none")
        args: dict[str, object] = (
            {"Collective name": "wait", "In msg nelems": 0} if with_fields else {}
        )
        with self.builder.op("record_param_comms", AUTOGRAD, **args):
            pass

    def _collectives(self, after: str, thread: int) -> None:
        left_out = [] if self.options.buffers else ["buffers", "counters"]
        left_out += [] if self.options.extra_groups else ["gather", "exchange", "scatter"]
        for collective in COLLECTIVES:
            if collective.after == after and collective.key not in left_out:
                self._collective(collective, thread)
                self.sequence[collective.group] += 1

    def _collective(self, collective: Collective, thread: int) -> None:
        metadata = self.options.metadata
        sequence = {} if metadata == "no_sequence" else {"Seq": self.sequence[collective.group]}
        group, ranks = self._group(collective.group)
        sizes = collective.in_elements, collective.out_elements
        fields = recorded(collective.kind, *sizes, collective.dtype[0], group, ranks, **sequence)
        shapes, tensor_list = self._shapes(collective)
        start, duration = TIMES[self.role][collective.key]
        if self.role == "even" and collective.key == "bucket2":
            start, duration = start - EVEN_EARLY_US[self.rank], duration + EVEN_EARLY_US[self.rank]
        start += self.origin
        on_kernel = metadata in ("kernel", "no_sequence") or (
            metadata == "partial" and collective.key not in PARTIAL
        )
        name, stream = (
            KERNEL_NAMES[self.options.kernel_names][collective.kind],
            self.streams[collective.group],
        )
        kernel = DeviceWork(
            self.device, stream, name, start, duration, metadata=fields if on_kernel else {}
        )
        on_record = fields if metadata in ("kernel", "no_sequence", "partial") else {}
        works = [kernel] if self.options.communication else []
        self.builder.collective(
            thread, collective.kind, *works, fields=on_record, shapes=shapes, tensors=tensor_list
        )
        self.collectives.append(self._expected(collective, start, duration))

    def _expected(self, one: Collective, start: float, duration: float) -> ExpectedCollective:
        metadata, transfer = self.options.metadata, one.transfer_us
        has_group, has_size = metadata not in ("ops", "none"), metadata != "none"
        # the only group is in distributedInfo
        has_group_size = has_group or not self.options.extra_groups
        waits = (
            WAITING_US
            if self.role == "waiting"
            else {"bucket2": EVEN_EARLY_US[self.rank] * (self.role == "even")}
        )
        busbw = one.busbw_gb_per_s[self.world_size // 4] if one.busbw_gb_per_s else None
        return ExpectedCollective(
            self.rank,
            self.device,
            self.step,
            one.kind,
            group=self._group(one.group)[0] if has_group else None,
            sequence=self.sequence[one.group] if has_group and metadata != "no_sequence" else None,
            bytes=one.bytes if has_size else None,
            group_size=len(self._group(one.group)[1]) if has_group_size else None,
            start_us=start,
            duration_us=duration,
            transfer_us=transfer,
            wait_us=None if transfer is None else waits.get(one.key, 0),
            algbw_gb_per_s=one.algbw_gb_per_s if has_size else None,
            busbw_gb_per_s=busbw if has_size and has_group_size else None,
        )

    def _shapes(self, collective: Collective) -> tuple[dict[str, object], dict[str, object]]:
        """Shapes as recorded on the `nccl:` range, and on operators that take a list of tensors."""
        if self.options.metadata == "none":
            return {}, {}
        elements, name = collective.in_elements, collective.dtype[1]
        shapes: dict[str, object] = {"Input Dims": [[elements]], "Input type": [name]}
        if collective.kind in ("all_gather", "reduce_scatter", "all_to_all"):
            dims: list[object] = [[collective.out_elements], [elements], [], []]
            return shapes, {"Input Dims": dims, "Input type": [name, name, "", "Scalar"]}
        dims = [[[elements]], [], [], []]
        return shapes, {"Input Dims": dims, "Input type": ["TensorList", "", "", "Scalar"]}

    def _group(self, group: str) -> tuple[str, list[int]]:
        """Its name and ranks."""
        pair = self.rank // 2
        return (
            ("0", list(range(self.world_size)))
            if group == "world"
            else (str(1 + pair), [2 * pair, 2 * pair + 1])
        )

    def trace(self) -> Trace:
        is_rocm = self.options.kernel_names == "rccl"
        names = (
            ["AMD Instinct MI250X"] * 8 if is_rocm else ["NVIDIA A100-SXM4-80GB"] * self.world_size
        )
        distributed = one_group(self.rank, self.world_size) | {"nccl_version": "2.27.5"}
        if self.options.extra_groups:
            name, ranks = self._group("pair")
            pair = {
                "pg_name": name,
                "pg_desc": "pair_pg",
                "backend_config": "cuda:nccl",
                "pg_size": 2,
                "ranks": ranks,
            }
            distributed |= {"pg_count": 2, "pg_config": [*distributed["pg_config"], pair]}
        return self.builder.trace(names, distributed)
