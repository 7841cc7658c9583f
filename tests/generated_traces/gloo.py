"""Traces of one rank of a CPU-only DistributedDataParallel job over gloo, and what must be found in
them.

Times are microseconds after the step's beginning; steps 5 to 7 begin at 0, 1005 and 2010 and last
1000, 1000, 1040.
"""

from tests.generated_traces.builder import ZERO_US, TraceBuilder, one_group
from tests.generated_traces.model import Expected, ExpectedCollective, GeneratedTrace
from tests.generated_traces.raster import cpu_steps

MAIN = 6100
AUTOGRAD = 6150
WORKERS = (6160, 6161, 6162)
STEPS = (5, 6, 7)
Span = tuple[float, float]

BEGINNINGS_US = (0.0, 1005.0, 2010.0)
STEP_US = (1000.0, 1000.0, 1040.0)
LATE_START_US = {2: (0, 5), 4: (0, 5, 2, 3)}  # by rank, of the first bucket
FIRST_BUCKET_WAITS_US = {2: (5, 0), 4: (5, 0, 3, 2)}

# name, thread, span; nested operators lie within their parents.
OPERATORS: tuple[tuple[str, int, Span], ...] = (
    ("c10d::broadcast_", MAIN, (10, 14)),
    ("aten::conv2d", MAIN, (20, 220)),
    ("aten::convolution", MAIN, (25, 215)),
    ("aten::batch_norm", MAIN, (225, 300)),
    ("aten::cross_entropy_loss", MAIN, (305, 310)),
    ("autograd::engine::evaluate_function: AddmmBackward0", AUTOGRAD, (330, 500)),
    ("AddmmBackward0", AUTOGRAD, (335, 490)),
    ("c10d::allreduce_", AUTOGRAD, (501, 506)),
    ("autograd::engine::evaluate_function: NativeBatchNormBackward0", AUTOGRAD, (510, 640)),
    ("c10d::allreduce_", AUTOGRAD, (641, 646)),
    ("autograd::engine::evaluate_function: ConvolutionBackward0", AUTOGRAD, (650, 700)),
    ("c10d::allreduce_", AUTOGRAD, (702, 712)),
    ("record_param_comms", AUTOGRAD, (703, 711)),
    ("c10d::allreduce_", MAIN, (948, 952)),
)
OPTIMIZER: tuple[Span, ...] = ((800, 900), (800, 900), (800, 940))  # by step
ANNOTATIONS: tuple[tuple[str, Span], ...] = (
    ("dpscope::data", (1, 3)),
    ("dpscope::host_to_device", (4, 5)),
    ("dpscope::forward", (6, 312)),
    ("DistributedDataParallel.forward", (8, 302)),
    ("dpscope::backward", (320, 792)),
)

# worker, kind, elements, span, algbw, busbw of 2 and 4 ranks
Work = tuple[int, str, int, Span, float | None, tuple[float, float] | None]
WORKS: tuple[Work, ...] = (
    (0, "broadcast", 9600, (12, 18), None, None),
    (0, "all_reduce", 1500000, (505, 660), 40, (40, 60)),
    (1, "all_reduce", 2880000, (645, 765), 96, (96, 144)),
    (2, "all_reduce", 500000, (710, 790), 25, (25, 37.5)),
    (1, "all_reduce", 1000, (950, 1030), 0.05, (0.05, 0.075)),
)
TRANSFERS_US = (None, 150.0, 120.0, 80.0, 80.0)
BYTES = (38400, 6000000, 11520000, 2000000, 4000)
FIRST_BUCKET = 1


def gloo_trace(rank: int = 0, world_size: int = 2) -> GeneratedTrace:
    """Three steps of one rank of 2 or 4: no device at all, communication on gloo's worker
    threads.
    """
    if world_size not in (2, 4) or not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size}; the schedule has 2 or 4 ranks")
    builder = TraceBuilder(pid=MAIN + 1000 * rank)
    for index, step in enumerate(STEPS):
        _add_step(builder, index, step, LATE_START_US[world_size][rank])
    trace = builder.trace([], one_group(rank, world_size, "gloo"))
    collectives = tuple(
        _collective(rank, world_size, index, number)
        for index in range(len(STEPS))
        for number in range(len(WORKS))
    )
    expected = Expected(
        ZERO_US, cpu_steps(trace), collectives, gradient_bytes=19520000, buffer_bytes=38400
    )
    return GeneratedTrace(trace, expected)


def _add_step(builder: TraceBuilder, index: int, step: int, late_start: float) -> None:
    beginning = BEGINNINGS_US[index]

    def moved(span: Span) -> Span:
        return beginning + span[0], beginning + span[1]

    builder.at("user_annotation", f"ProfilerStep#{step}", MAIN, moved((0, STEP_US[index])))
    for annotation, span in ANNOTATIONS:
        builder.at("user_annotation", annotation, MAIN, moved(span))
    for name, thread, span in OPERATORS:
        builder.at("cpu_op", name, thread, moved(span))
    start, end = OPTIMIZER[index]
    builder.at("user_annotation", "dpscope::optimizer", MAIN, moved((start - 7, end + 7)))
    builder.at("user_annotation", "Optimizer.step#SGD.step", MAIN, moved((start - 5, end + 5)))
    builder.at("cpu_op", "aten::_foreach_add_", MAIN, moved((start, end)))
    for number, (worker, kind, elements, span, _, _) in enumerate(WORKS):
        begin = span[0] + (late_start if number == FIRST_BUCKET else 0)
        dims: list[list[int]] = [[elements]]
        place = moved((begin, span[1]))
        args: dict[str, object] = {"Input type": ["float"], "Input Dims": dims}
        builder.at("user_annotation", f"gloo:{kind}", WORKERS[worker], place, **args)


def _collective(rank: int, world_size: int, index: int, number: int) -> ExpectedCollective:
    _, kind, _, span, algbw, busbw = WORKS[number]
    is_first_bucket = number == FIRST_BUCKET
    late_start = LATE_START_US[world_size][rank] if is_first_bucket else 0
    wait = FIRST_BUCKET_WAITS_US[world_size][rank] if is_first_bucket else 0
    transfer = TRANSFERS_US[number]
    return ExpectedCollective(
        rank,
        None,
        STEPS[index],
        kind,
        group=None,
        sequence=None,
        bytes=BYTES[number],
        group_size=world_size,
        start_us=BEGINNINGS_US[index] + span[0] + late_start,
        duration_us=span[1] - span[0] - late_start,
        transfer_us=transfer,
        wait_us=wait if transfer is not None else None,
        algbw_gb_per_s=algbw,
        busbw_gb_per_s=None if busbw is None else busbw[0 if world_size == 2 else 1],
    )
