"""Traces of one rank of a tensor-parallel, fully sharded, DLRM or pipeline job, one GPU per rank."""

from tests.generated_traces import parallel_schedule as schedule
from tests.generated_traces.builder import ZERO_US, DeviceWork, TraceBuilder
from tests.generated_traces.model import Expected, ExpectedCollective, GeneratedTrace, Trace
from tests.generated_traces.nccl_names import KERNEL_NAMES, OPERATORS
from tests.generated_traces.parallel_schedule import Call, Job, Work
from tests.generated_traces.raster import device_steps

MAIN = 8100
AUTOGRAD = 8150
STEPS = (5, 6, 7)
STEP_US = 1000.0
FIRST_SEQUENCE = {"world": 31, "tp": 11, "dp": 21, "pp": 51}
STREAMS = {"world": 40, "tp": 40, "dp": 44, "pp": 40}
COMPUTE_STREAM = 7
_DTYPES = {"Float": "float32", "BFloat16": "bfloat16", "Half": "float16"}
_NODE = "autograd::engine::evaluate_function: MmBackward0"


def parallel_trace(job: Job, rank: int) -> GeneratedTrace:
    """Three steps, ProfilerStep#5 to 7, of one rank of 4 (of tensor_parallel and pipeline: of 2)."""
    builder = TraceBuilder(pid=MAIN + 1000 * rank)
    sequence = dict(FIRST_SEQUENCE)
    rows = []
    for index, step in enumerate(STEPS):
        origin = STEP_US * index
        builder.clock[MAIN] = max(builder.clock.get(MAIN, -100.0) + 1.0, origin - 100.0)
        with builder.annotation(f"ProfilerStep#{step}", MAIN):
            builder.join(MAIN, AUTOGRAD)
            for work in schedule.works(job, rank):
                rows += _run(builder, job, rank, step, origin, work, sequence)
            builder.synchronize(MAIN, origin + schedule.SPANS[job][rank][1] - 50.0)
    trace = _trace(builder, job, rank)
    return GeneratedTrace(trace, Expected(ZERO_US, device_steps(trace), tuple(rows)))


def _run(
    builder: TraceBuilder, job: Job, rank: int, step: int, origin: float, work: Work, sequence: dict[str, int]
) -> list[ExpectedCollective]:
    """Launch one work; a collective's expected row."""
    thread = AUTOGRAD if work.phase == "backward" else MAIN
    start = origin + work.start
    if work.call is None:
        with builder.op(_NODE if work.phase == "backward" else "aten::mm", thread):
            builder.launch(thread, DeviceWork(rank, COMPUTE_STREAM, "ampere_sgemm_128x64", start, work.duration))
        return []
    call = work.call
    sequence[call.group] += 1
    number = sequence[call.group] - 1
    operator, annotation, _ = OPERATORS[call.kind]
    metadata = _metadata(job, rank, call, number)
    name = KERNEL_NAMES["nccl_2_19"][call.kind]
    stream = STREAMS["dp"] if call.kind == "reduce_scatter" else STREAMS[call.group]
    kernel = DeviceWork(rank, stream, name, start, work.duration, metadata=metadata)
    with (
        builder.op(operator, thread),
        builder.op("record_param_comms", thread, **metadata),
        builder.annotation(annotation, thread),
    ):
        builder.launch(thread, kernel)
    return [_row(job, rank, step, start, work.duration, call, number)]


def _metadata(job: Job, rank: int, call: Call, number: int) -> dict[str, object]:
    name, ranks = schedule.groups(job, rank)[call.group]
    return {
        "Collective name": OPERATORS[call.kind][2],
        "In msg nelems": call.sent,
        "Out msg nelems": call.received,
        "Group size": len(ranks),
        "dtype": call.dtype,
        "Process Group Name": name,
        "Process Group Ranks": str(ranks),
        "Seq": number,
    }


def _row(job: Job, rank: int, step: int, start: float, duration: float, call: Call, number: int) -> ExpectedCollective:
    name, ranks = schedule.groups(job, rank)[call.group]
    return ExpectedCollective(
        rank, rank, step, call.kind, name, number, call.bytes, _DTYPES[call.dtype], len(ranks), start, duration,
        call.transfer_us, call.wait_us, call.algbw_gb_per_s, call.busbw_gb_per_s,
    )  # fmt: skip


def _trace(builder: TraceBuilder, job: Job, rank: int) -> Trace:
    world_size = len(schedule.SPANS[job])
    names = dict(schedule.groups(job, rank).values()) if job == "tensor_data_parallel" else {}
    config = [{"pg_name": name, "pg_size": len(ranks), "ranks": ranks} for name, ranks in names.items()]
    distributed: Trace = {"backend": "nccl", "rank": rank, "world_size": world_size, "pg_count": 1 + len(config)}
    return builder.trace(["NVIDIA H100"] * world_size, distributed | {"pg_config": config})
