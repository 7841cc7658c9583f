"""Small traces of one rank, one step, for collectives that do not look like the usual ones. Times by hand."""

from tests.generated_traces.builder import DeviceWork, TraceBuilder
from tests.generated_traces.model import Trace

MAIN = 7100
COMPUTE = 7
NCCL = 40
KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GENERIC = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"


def _kernel(
    name: str, start: float, duration: float, stream: int = NCCL, device: int = 0, metadata: Trace | None = None
) -> DeviceWork:
    return DeviceWork(device, stream, name, start, duration, metadata=metadata or {})


def _copy(name: str, start: float, duration: float, size: int, to_device: int | None = None) -> DeviceWork:
    return DeviceWork(0, NCCL, f"Memcpy {name}", start, duration, "gpu_memcpy", size, to_device)


def _header(world_size: int) -> Trace:
    return {"backend": "nccl", "rank": 0, "world_size": world_size, "pg_count": 1}


def copy_engine_trace(world_size: int = 4) -> Trace:
    """An all-gather by copy engines: three copies to other devices, no kernel; then a reduce-scatter with a kernel.

    The all-gather of 4 x 1,000 floats runs from 100 to 160 (copies 100-120, 110-140, 130-160: 60 us of communication), a
    compute kernel from 90 to 110. The reduce-scatter's kernel runs from 200 to 230; the copy in its range (240-250)
    unpacks, and is none of it. A copy outside of any range (300-310) is a host copy.
    """
    builder = TraceBuilder(pid=MAIN)
    builder.clock[MAIN] = 0.0
    with builder.annotation("ProfilerStep#1", MAIN):
        builder.launch(MAIN, _kernel("ampere_sgemm", 90, 20, COMPUTE))
        shapes: dict[str, object] = {"Input Dims": [[1000]], "Input type": ["float"]}
        with builder.annotation("nccl:_all_gather_base", MAIN, **shapes):
            builder.launch(MAIN, _copy("PtoP (Device -> Device)", 100, 20, 4000, 1))
            builder.launch(MAIN, _copy("DtoD (Device -> Device)", 110, 30, 4000))
            builder.launch(MAIN, _copy("PtoP (Device -> Device)", 130, 30, 4000, 3))
        shapes = {"Input Dims": [[4000]], "Input type": ["float"]}
        with builder.annotation("nccl:_reduce_scatter_base", MAIN, **shapes):
            builder.launch(MAIN, _kernel(KERNEL.replace("AllReduce", "ReduceScatter"), 200, 30))
            builder.launch(MAIN, _copy("DtoD (Device -> Device)", 240, 10, 4000))
        builder.launch(MAIN, _copy("HtoD (Pinned -> Device)", 300, 10, 4000))
        builder.synchronize(MAIN, 400)
    return builder.trace(["NVIDIA H100"], _header(world_size))


def as_second_engine(trace: Trace) -> Trace:
    """A trace as torch 2.15's default engine leaves it: no prefix before its ranges, no ranks of groups in its records."""
    for event in trace["traceEvents"]:
        if event.get("cat") in ("user_annotation", "gpu_user_annotation"):
            event["name"] = event["name"].removeprefix("nccl:")
        event.get("args", {}).pop("Process Group Ranks", None)
    return trace


def cuda_graph_trace() -> Trace:
    """Two replays of a graph: each launches three kernels, two of them all-reduces, with one correlation, no metadata."""
    builder = TraceBuilder(pid=MAIN)
    builder.clock[MAIN] = 0.0
    for index in range(2):
        begin = 1000.0 * index
        with builder.annotation(f"ProfilerStep#{index + 1}", MAIN):
            builder.launch(MAIN, _kernel("ampere_sgemm", begin + 100, 50, COMPUTE))
            launch = builder.events[-2]
            assert launch["cat"] == "cuda_runtime"
            launch["name"] = "cudaGraphLaunch"
            first = next(event for event in reversed(builder.events) if event["cat"] == "kernel")
            for start, duration in ((120.0, 60.0), (200.0, 40.0)):
                args = {**first["args"], "stream": NCCL}
                more = {"name": KERNEL, "tid": NCCL, "ts": first["ts"] + start - 100, "dur": duration, "args": args}
                builder.events.append({**first, **more})
            builder.synchronize(MAIN, begin + 900)
        builder.clock[MAIN] += 10
    return builder.trace(["NVIDIA A100"], _header(2))


def generic_trace(enclosing: str) -> Trace:
    """RCCL's generic kernel, which names no collective, in a step that only `enclosing` identifies.

    `enclosing`: "operator" (c10d::allreduce_), "range" (nccl:reduce_scatter), "metadata" or "nothing".
    """
    builder = TraceBuilder(pid=MAIN, hip=True)
    builder.clock[MAIN] = 0.0
    with builder.annotation("ProfilerStep#1", MAIN):
        builder.launch(MAIN, _kernel("Cijk_Ailk_Bljk_SB", 50, 100, stream=0, device=2))
        if enclosing == "operator":
            with builder.op("c10d::allreduce_", MAIN):
                builder.launch(MAIN, _kernel(GENERIC, 100, 100, device=2))
        elif enclosing == "range":
            with builder.annotation("nccl:reduce_scatter", MAIN):
                builder.launch(MAIN, _kernel(GENERIC, 100, 100, device=2))
        elif enclosing == "metadata":
            fields: dict[str, object] = {
                "Collective name": "_allgather_base", "In msg nelems": 10, "Out msg nelems": 40, "dtype": "BFloat16",
                "Group size": 4,
            }  # fmt: skip
            builder.launch(MAIN, _kernel(GENERIC, 100, 100, device=2, metadata=fields))
        else:
            builder.launch(MAIN, _kernel(GENERIC, 100, 100, device=2))
        builder.synchronize(MAIN, 400)
    return builder.trace(["AMD Instinct MI250X"] * 4, _header(4))


def shared_range_trace() -> Trace:
    """One `nccl:` range that launched two kernels on one device: its size is that of both together."""
    builder = TraceBuilder(pid=MAIN)
    builder.clock[MAIN] = 0.0
    with builder.annotation("ProfilerStep#1", MAIN):
        shapes: dict[str, object] = {"Input Dims": [[1000], [500]], "Input type": ["float", "float"]}
        with builder.annotation("nccl:all_reduce_coalesced", MAIN, **shapes):
            builder.launch(MAIN, _kernel(KERNEL, 100, 20), _kernel(KERNEL, 130, 20))
        with builder.annotation("nccl:all_reduce", MAIN, **{"Input Dims": [[500]], "Input type": ["float"]}):
            builder.launch(MAIN, _kernel(KERNEL, 160, 20))
        builder.synchronize(MAIN, 400)
    return builder.trace(["NVIDIA A100"], _header(2))


def gloo_queue_trace(begins: str) -> Trace:
    """Four works created at 110, 120, 130 and 140 us, served by two workers, first come, first served.

    Served from 110 to 200 and 120 to 180, then 180 to 250 and 200 to 300: the third queued 50 us, the fourth 60.
    `begins`: the range of a work begins "created" or "taken_up"; "alone": the latter without the operators.
    """
    builder = TraceBuilder(pid=MAIN)
    builder.at("user_annotation", "ProfilerStep#1", MAIN, (0, 1000))
    builder.at("cpu_op", "aten::conv2d", MAIN, (10, 90))
    works = ((110.0, 110.0, 200.0, 1), (120.0, 120.0, 180.0, 2), (130.0, 180.0, 250.0, 2), (140.0, 200.0, 300.0, 1))
    for created, taken_up, end, worker in works:
        if begins != "alone":
            builder.at("cpu_op", "c10d::allreduce_", MAIN, (created - 5, created))
        span = (created if begins == "created" else taken_up, end)
        shapes: dict[str, object] = {"Input Dims": [[10]], "Input type": ["float"]}
        builder.at("user_annotation", "gloo:all_reduce", MAIN + worker, span, **shapes)
    return builder.trace([], {"backend": "gloo", "rank": 0, "world_size": 2})
