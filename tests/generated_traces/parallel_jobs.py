"""Traces of one rank of a tensor-parallel, fully sharded, DLRM or pipeline job, one GPU per rank.

Times are microseconds after the step's origin; a step is 1,000 us after the one before. Each rank's
list is in the order of launch. `Call` states the collective's expected numbers.
"""

from typing import Literal, NamedTuple

from tests.generated_traces.builder import KERNEL_NAMES, ZERO_US, DeviceWork, TraceBuilder, recorded
from tests.generated_traces.model import Expected, ExpectedCollective, GeneratedTrace, Trace
from tests.generated_traces.raster import device_steps

Phase = Literal["forward", "backward", "update"]
Job = Literal["tensor_data_parallel", "tensor_parallel", "fully_sharded", "dlrm", "pipeline"]


class Call(NamedTuple):
    """A collective: what it is, and what is known of it. Rates in GB/s; None where they are not
    defined.
    """

    kind: str
    group: str
    sent: int  # elements
    received: int
    dtype: str
    bytes: int
    transfer_us: float | None
    wait_us: float | None
    algbw_gb_per_s: float | None
    busbw_gb_per_s: float | None


class Work(NamedTuple):
    """A kernel or a collective on the device: from when, how long, launched by which part of the
    step.
    """

    phase: Phase
    start: float
    duration: float
    call: Call | None = None


def _activations(transfer: float, wait: float, gb_per_s: float) -> Call:
    """4,194,304 bfloat16 = 8,388,608 B on two ranks: bus factor 2 x 1/2 = 1."""
    return Call(
        "all_reduce",
        "tp",
        4194304,
        4194304,
        "BFloat16",
        8388608,
        transfer,
        wait,
        gb_per_s,
        gb_per_s,
    )


# Tensor parallel in pairs (0, 1) and (2, 3), data parallel in pairs (0, 2) and (1, 3). Ranks 1 and
# 3 come 10 and 20 us late to their first all-reduce; ranks 2 and 3 come 20 us late to the
# gradients'. 8,388,608 B in 50, 40, 60 us; 40 MB in 170 us.
_FIRST = {
    0: (Work("forward", 20, 100), Work("forward", 120, 60, _activations(50, 10, 167.77216))),
    1: (Work("forward", 20, 110), Work("forward", 130, 50, _activations(50, 0, 167.77216))),
    2: (Work("forward", 20, 100), Work("forward", 120, 60, _activations(40, 20, 209.7152))),
    3: (Work("forward", 20, 120), Work("forward", 140, 40, _activations(40, 0, 209.7152))),
}
_EVEN = _activations(60, 0, 139.8101333333)
_LAYER = (
    Work("forward", 180, 100),
    Work("forward", 280, 60, _EVEN),
    Work("forward", 340, 10),  # loss
    Work("backward", 360, 100),
    Work("backward", 460, 60, _EVEN),
    Work("backward", 460, 80),  # gradients of weights, under the all-reduce
    Work("backward", 540, 100),
    Work("backward", 640, 60, _EVEN),
)
_GRADIENTS = {
    "kind": "all_reduce",
    "group": "dp",
    "sent": 10000000,
    "received": 10000000,
    "dtype": "Float",
}
_GRADIENT_RATES = {
    "bytes": 40000000,
    "transfer_us": 170,
    "algbw_gb_per_s": 235.2941176471,
    "busbw_gb_per_s": 235.2941176471,
}
_EARLY = Work("backward", 650, 190, Call(**_GRADIENTS, **_GRADIENT_RATES, wait_us=20))  # type: ignore[arg-type]
_LATE = Work("backward", 670, 170, Call(**_GRADIENTS, **_GRADIENT_RATES, wait_us=0))  # type: ignore[arg-type]
_UPDATE = Work("update", 850, 50)

# FSDP on four ranks: 4 MB shards of 16 MB layers; rank 3's last backward takes 20 us longer. Then
# the gradients' norm.
_GATHER = ("all_gather", "world", 1000000, 4000000, "Float", 16000000)
_SCATTER = ("reduce_scatter", "world", 4000000, 1000000, "Float", 16000000)


def _fully_sharded(rank: int) -> list[Work]:
    late = 20 if rank == 3 else 0
    return [
        Work("forward", 10, 50, Call(*_GATHER, 50, 0, 320.0, 240.0)),
        # under the first layer
        Work("forward", 60, 60, Call(*_GATHER, 60, 0, 266.6666666667, 200.0)),
        Work("forward", 60, 100),
        Work("forward", 160, 100),
        Work("forward", 260, 10),
        # 10 us of it under the loss
        Work("backward", 260, 60, Call(*_GATHER, 60, 0, 266.6666666667, 200.0)),
        Work("backward", 320, 100),
        Work("backward", 420, 50, Call(*_SCATTER, 50, 0, 320.0, 240.0)),  # under the last backward
        Work("backward", 420, 100 + late),
        Work("backward", 520 + late, 60 - late, Call(*_SCATTER, 40, 20 - late, 400.0, 300.0)),
        Work(
            "update", 580, 10, Call("all_reduce", "world", 1, 1, "Float", 4, 10, 0, 0.0004, 0.0006)
        ),
        Work("update", 590, 50),
    ]


# DLRM on four ranks: each rank sends its own tables' vectors, 1.0 to 1.3 million floats, and
# receives 1.15 million; the backward pass sends the gradients the other way. 5.2 MB, the largest
# buffer, in 52 us; the dense part's 20 MB in 100 us.
_OWN_VECTORS = (1000000, 1100000, 1200000, 1300000)
_LARGER_BUFFER = (4600000, 4600000, 4800000, 5200000)
_RECEIVED_VECTORS = 1150000


def _dlrm(rank: int) -> list[Work]:
    own, size, received = _OWN_VECTORS[rank], _LARGER_BUFFER[rank], _RECEIVED_VECTORS
    vectors = Call("all_to_all", "world", own, received, "Float", size, 52, 0, 100.0, 75.0)
    gradients = Call("all_to_all", "world", received, own, "Float", size, 52, 0, 100.0, 75.0)
    dense = Call("all_reduce", "world", 5000000, 5000000, "Float", 20000000, 100, 0, 200.0, 300.0)
    return [
        Work("forward", 10, 50),
        Work("forward", 60, 52, vectors),
        Work("forward", 60, 40),  # the dense features, under the all-to-all
        Work("forward", 112, 100),
        Work("backward", 220, 100),
        Work("backward", 320, 52, gradients),
        Work("backward", 320, 100),  # under the all-to-all and 48 us of the all-reduce
        Work("backward", 372, 100, dense),
        Work("update", 480, 20),
    ]


def _message(kind: str) -> Call:
    """1,000,000 half-precision activations to or from the other stage: point to point, no transfer
    is recorded.
    """
    return Call(kind, "pp", 1000000, 1000000, "Half", 2000000, None, None, None, None)


_STAGES = {
    0: [
        Work("forward", 10, 100),
        Work("forward", 110, 20, _message("send")),
        Work("backward", 230, 30, _message("recv")),
        Work("backward", 260, 100),
        Work("update", 370, 30),
    ],
    1: [
        Work("forward", 10, 120, _message("recv")),  # waits for the first stage
        Work("forward", 130, 50),
        Work("backward", 180, 50),
        Work("backward", 230, 20, _message("send")),
        Work("update", 260, 40),
    ],
}

SPANS: dict[Job, tuple[tuple[float, float], ...]] = {
    "tensor_data_parallel": ((20, 900),) * 4,
    "tensor_parallel": ((20, 900),) * 2,
    "fully_sharded": ((10, 640),) * 4,
    "dlrm": ((10, 500),) * 4,
    "pipeline": ((10, 400), (10, 300)),
}
"""By rank: when a step's first event begins and its last one ends."""
RANKS = {job: len(spans) for job, spans in SPANS.items()}


def works(job: Job, rank: int) -> list[Work]:
    """The step of one rank, in the order of launch."""
    if job == "fully_sharded":
        return _fully_sharded(rank)
    if job == "dlrm":
        return _dlrm(rank)
    if job == "pipeline":
        return _STAGES[rank]
    gradients = [] if job == "tensor_parallel" else [_EARLY if rank < 2 else _LATE]
    return [*_FIRST[rank], *_LAYER, *gradients, _UPDATE]


def groups(job: Job, rank: int) -> dict[str, tuple[str, list[int]]]:
    """Name and ranks of each group that a rank is in, by what it is for."""
    if job == "tensor_data_parallel":
        pair, column = rank // 2, rank % 2
        return {
            "tp": (str(1 + pair), [2 * pair, 2 * pair + 1]),
            "dp": (str(3 + column), [column, column + 2]),
        }
    everyone = list(range(RANKS[job]))
    return dict.fromkeys(("world", "tp", "pp"), ("0", everyone))


MAIN = 8100
AUTOGRAD = 8150
STEPS = (5, 6, 7)
STEP_US = 1000.0
FIRST_SEQUENCE = {"world": 31, "tp": 11, "dp": 21, "pp": 51}
STREAMS = {"world": 40, "tp": 40, "dp": 44, "pp": 40}
COMPUTE_STREAM = 7
_NODE = "autograd::engine::evaluate_function: MmBackward0"


def parallel_trace(job: Job, rank: int) -> GeneratedTrace:
    """Three steps, ProfilerStep#5 to 7, of one rank of 4 (of tensor_parallel and pipeline: of
    2).
    """
    builder = TraceBuilder(pid=MAIN + 1000 * rank)
    sequence = dict(FIRST_SEQUENCE)
    rows = []
    for index, step in enumerate(STEPS):
        origin = STEP_US * index
        builder.clock[MAIN] = max(builder.clock.get(MAIN, -100.0) + 1.0, origin - 100.0)
        with builder.annotation(f"ProfilerStep#{step}", MAIN):
            builder.join(MAIN, AUTOGRAD)
            for work in works(job, rank):
                rows += _run(builder, job, rank, step, origin, work, sequence)
            builder.synchronize(MAIN, origin + SPANS[job][rank][1] - 50.0)
    trace = _trace(builder, job, rank)
    return GeneratedTrace(trace, Expected(ZERO_US, device_steps(trace), tuple(rows)))


def _run(
    builder: TraceBuilder,
    job: Job,
    rank: int,
    step: int,
    origin: float,
    work: Work,
    sequence: dict[str, int],
) -> list[ExpectedCollective]:
    """Launch one work; a collective's expected row."""
    thread = AUTOGRAD if work.phase == "backward" else MAIN
    start = origin + work.start
    if work.call is None:
        with builder.op(_NODE if work.phase == "backward" else "aten::mm", thread):
            builder.launch(
                thread,
                DeviceWork(rank, COMPUTE_STREAM, "ampere_sgemm_128x64", start, work.duration),
            )
        return []
    call = work.call
    sequence[call.group] += 1
    number = sequence[call.group] - 1
    group, ranks = groups(job, rank)[call.group]
    fields = recorded(call.kind, call.sent, call.received, call.dtype, group, ranks, Seq=number)
    name = KERNEL_NAMES["nccl_2_19"][call.kind]
    stream = STREAMS["dp"] if call.kind == "reduce_scatter" else STREAMS[call.group]
    kernel = DeviceWork(rank, stream, name, start, work.duration, metadata=fields)
    builder.collective(thread, call.kind, kernel, fields=fields)
    row = ExpectedCollective(
        rank, rank, step, call.kind, group, number, call.bytes, len(ranks), start, work.duration,
        call.transfer_us, call.wait_us, call.algbw_gb_per_s, call.busbw_gb_per_s,
    )  # fmt: skip
    return [row]


def _trace(builder: TraceBuilder, job: Job, rank: int) -> Trace:
    world_size = RANKS[job]
    names = dict(groups(job, rank).values()) if job == "tensor_data_parallel" else {}
    config = [
        {"pg_name": name, "pg_size": len(ranks), "ranks": ranks} for name, ranks in names.items()
    ]
    distributed: Trace = {
        "backend": "nccl",
        "rank": rank,
        "world_size": world_size,
        "pg_count": 1 + len(config),
    }
    return builder.trace(["NVIDIA H100"] * world_size, distributed | {"pg_config": config})
