"""Traces of one rank of a DistributedDataParallel job, one GPU per rank."""

from contextlib import AbstractContextManager, nullcontext

from tests.generated_traces import ddp_schedule as schedule
from tests.generated_traces.builder import ZERO_US, DeviceWork, TraceBuilder
from tests.generated_traces.ddp_expected import expected_collectives
from tests.generated_traces.ddp_schedule import Collective, DdpOptions, Slot
from tests.generated_traces.model import Expected, GeneratedTrace, Trace
from tests.generated_traces.nccl_names import KERNEL_NAMES, OPERATORS
from tests.generated_traces.raster import device_steps

MAIN = 5100
AUTOGRAD = 5150
STEPS = (5, 6, 7)
FIRST_SEQUENCE = {"world": 41, "pair": 7}
# The collectives whose kernels lose their metadata when it is "partial".
PARTIAL = ("buffers", "counters", "bucket0")


def ddp_trace(rank: int = 0, world_size: int = 2, options: DdpOptions | None = None) -> GeneratedTrace:
    """Three steps, ProfilerStep#5 to 7, of one rank of 2 or 4."""
    options = options or DdpOptions()
    if world_size not in (2, 4) or not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size}; the schedule has 2 or 4 ranks")
    if options.straggler is not None and (options.lag or options.extra_groups):
        raise ValueError("straggler goes with neither lag nor extra_groups; the schedule has no times for them")
    program = _Program(rank, world_size, options)
    program.run()
    trace = program.trace()
    collectives = expected_collectives(rank, world_size, options, STEPS, FIRST_SEQUENCE)
    unlaunched_us = (schedule.UNLAUNCHED_COMPUTE[1], schedule.UNLAUNCHED_ALL_REDUCE[1])[: 1 + options.communication]
    expected = Expected(
        ZERO_US,
        device_steps(trace, options.communication),
        collectives=collectives if options.communication else (),
        unlaunched_count=len(unlaunched_us) if options.unlaunched else 0,
        unlaunched_us=sum(unlaunched_us) if options.unlaunched else 0.0,
        complete=options.communication,
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
        self.origin = 0.0
        self.builder.clock[MAIN] = -18.0

    def run(self) -> None:
        is_late = self.options.straggler is not None
        origins = schedule.LATE_ORIGINS_US if is_late else schedule.ORIGINS_US
        ends = schedule.LATE_WINDOW_ENDS_US if is_late else schedule.WINDOW_ENDS_US
        if self.options.unlaunched:
            self._unlaunched()
        for index, step in enumerate(STEPS):
            self.origin = origins[index]
            with self.builder.annotation(f"ProfilerStep#{step}", MAIN):
                self._step(index)
                if not self.options.lag or index == len(STEPS) - 1:
                    self.builder.synchronize(MAIN, ends[index] + 4.0)
            span = (origins[index] + schedule.INPUTS[0], ends[index])
            self.builder.device_annotation(f"ProfilerStep#{step}", self.device, self.streams["compute"], span)
            self.builder.clock[MAIN] += 1.0

    def _unlaunched(self) -> None:
        self.builder.unlaunched(self._kernel("ampere_sgemm_128x64_tn", schedule.UNLAUNCHED_COMPUTE))
        if self.options.communication:
            name = KERNEL_NAMES[self.options.kernel_names]["all_reduce"]
            self.builder.unlaunched(self._kernel(name, schedule.UNLAUNCHED_ALL_REDUCE, "world"))

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
                for number, slot in enumerate(schedule.FORWARD):
                    self._op("aten::conv2d", MAIN, self._kernel("sm80_xmma_fprop_implicit_gemm", slot))
                    self._collectives(f"forward{number}", MAIN)
            self._op("aten::cross_entropy_loss", MAIN, self._kernel("nll_loss_forward", schedule.LOSS))
        with self._range("backward"):
            self._backward()
        with self._range("optimizer"), self.builder.annotation("Optimizer.step#SGD.step", MAIN):
            everyone = 0.0 if self.role == "even" else schedule.DELAY_US
            start, duration = schedule.OPTIMIZER[index]
            update = self._kernel("multi_tensor_apply_kernel", (start + everyone, duration))
            self._op("aten::_foreach_add_", MAIN, update)

    def _load(self, index: int) -> None:
        inputs = self._copy("Memcpy HtoD (Pinned -> Device)", schedule.INPUTS, schedule.INPUT_BYTES)
        if self.options.lag and index > 0:
            step_before = schedule.ORIGINS_US[index - 1] - self.origin
            slot = (step_before + schedule.PREFETCH[0], schedule.PREFETCH[1])
            inputs = self._copy(inputs.name, slot, schedule.INPUT_BYTES, "prefetch")
        targets = self._copy("Memcpy HtoD (Pageable -> Device)", schedule.TARGETS, schedule.TARGET_BYTES)
        self._op("aten::_to_copy", MAIN, inputs)
        self._op("aten::_to_copy", MAIN, targets)

    def _backward(self) -> None:
        builder = self.builder
        builder.join(MAIN, AUTOGRAD)
        own = schedule.DELAY_US if self.role == "late" else 0.0
        everyone = 0.0 if self.role == "even" else schedule.DELAY_US
        for number, (start, duration) in enumerate(schedule.BACKWARD):
            work = self._kernel("sm80_xmma_wgrad_implicit_gemm", (start + own, duration))
            self._op("autograd::engine::evaluate_function: ConvolutionBackward0", AUTOGRAD, work)
            self._collectives(f"backward{number}", AUTOGRAD)
        start, duration = schedule.MEMSET
        self._op("aten::zero_", AUTOGRAD, self._copy("Memset (Device)", (start + own, duration), 4096))
        self._wait()
        start, duration = schedule.BUCKET_COPY
        name, size = "Memcpy DtoD (Device -> Device)", schedule.LAST_BUCKET_BYTES
        self._op("aten::copy_", AUTOGRAD, self._copy(name, (start + everyone, duration), size))
        builder.join(MAIN, AUTOGRAD)

    def _wait(self) -> None:
        """A wait is recorded like a collective, and is none."""
        with_fields = self.options.metadata not in ("ops", "none")
        args: dict[str, object] = {"Collective name": "wait", "In msg nelems": 0} if with_fields else {}
        with self.builder.op("record_param_comms", AUTOGRAD, **args):
            pass

    def _collectives(self, after: str, thread: int) -> None:
        for collective in schedule.COLLECTIVES:
            is_extra = collective.key in ("gather", "exchange", "scatter")
            is_requested = self.options.extra_groups if is_extra else True
            if collective.kind == "broadcast":
                is_requested = self.options.buffers
            if collective.after == after and is_requested:
                self._collective(collective, thread)

    def _collective(self, collective: Collective, thread: int) -> None:
        operator, annotation, _ = OPERATORS[collective.kind]
        fields = self._fields(collective)
        shapes, tensor_list = self._shapes(collective)
        self.sequence[collective.group] += 1
        recorded = fields if self.options.metadata in ("kernel", "no_sequence", "partial") else {}
        with (
            self.builder.op(operator, thread, **tensor_list),
            self.builder.op("record_param_comms", thread, **tensor_list, **recorded),
            self.builder.annotation(annotation, thread, **shapes),
        ):
            if self.options.communication:
                self.builder.launch(thread, self._collective_kernel(collective, fields))

    def _shapes(self, collective: Collective) -> tuple[dict[str, object], dict[str, object]]:
        """Shapes as recorded on the `nccl:` range, and on operators that take a list of tensors."""
        if self.options.metadata == "none":
            return {}, {}
        elements, name = collective.in_elements, collective.element_type
        shapes: dict[str, object] = {"Input Dims": [[elements]], "Input type": [name]}
        if collective.kind in ("all_gather", "reduce_scatter", "all_to_all"):
            dims: list[object] = [[collective.out_elements], [elements], [], []]
            return shapes, {"Input Dims": dims, "Input type": [name, name, "", "Scalar"]}
        dims = [[[elements]], [], [], []]
        return shapes, {"Input Dims": dims, "Input type": ["TensorList", "", "", "Scalar"]}

    def _collective_kernel(self, collective: Collective, fields: dict[str, object]) -> DeviceWork:
        start, duration = schedule.TIMES[self.role][collective.key]
        if self.role == "even" and collective.key == "bucket2":
            early = schedule.EVEN_EARLY_US[self.rank]
            start, duration = start - early, duration + early
        name = KERNEL_NAMES[self.options.kernel_names][collective.kind]
        stream = self.streams[collective.group]
        metadata = self.options.metadata
        is_kept = metadata in ("kernel", "no_sequence") or (metadata == "partial" and collective.key not in PARTIAL)
        kept = fields if is_kept else {}
        return DeviceWork(self.device, stream, name, self.origin + start, duration, metadata=kept)

    def _fields(self, collective: Collective) -> dict[str, object]:
        ranks = self._group_ranks(collective.group)
        fields: dict[str, object] = {
            "Collective name": OPERATORS[collective.kind][2],
            "In msg nelems": collective.in_elements,
            "Out msg nelems": collective.out_elements,
            "Group size": len(ranks),
            "dtype": collective.dtype,
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": self._group_name(collective.group),
            "Process Group Description": "default_pg" if collective.group == "world" else "pair_pg",
            "Process Group Ranks": str(ranks),
        }
        if self.options.metadata != "no_sequence":
            fields["Seq"] = self.sequence[collective.group]
        return fields

    def _group_ranks(self, group: str) -> list[int]:
        first = self.rank // 2 * 2
        return list(range(self.world_size)) if group == "world" else [first, first + 1]

    def _group_name(self, group: str) -> str:
        return "0" if group == "world" else str(1 + self.rank // 2)

    def trace(self) -> Trace:
        is_rocm = self.options.kernel_names == "rccl"
        names = ["AMD Instinct MI250X"] * 8 if is_rocm else ["NVIDIA A100-SXM4-80GB"] * self.world_size
        groups = ["world", "pair"] if self.options.extra_groups else ["world"]
        config = [self._group_config(group) for group in groups]
        distributed: Trace = {"backend": "nccl", "rank": self.rank, "world_size": self.world_size}
        distributed |= {"pg_count": len(config), "pg_config": config, "nccl_version": "2.27.5"}
        return self.builder.trace(names, distributed)

    def _group_config(self, group: str) -> dict[str, object]:
        ranks = self._group_ranks(group)
        description = "default_pg" if group == "world" else "pair_pg"
        name = {"pg_name": self._group_name(group), "pg_desc": description}
        return {**name, "backend_config": "cuda:nccl", "pg_size": len(ranks), "ranks": ranks}
