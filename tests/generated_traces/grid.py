"""The generator's variants, and plain rules to look at a trace with: times on a grid of half microseconds.

Nothing here uses dpscope: it is what the generator's own literals are counted again with.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

from tests.generated_traces.generator import (
    DdpOptions,
    GeneratedTrace,
    Generation,
    Inputs,
    Job,
    Trace,
    Transport,
    ddp_trace,
    dp_trace,
    gloo_trace,
    parallel_trace,
)

DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
GENERATIONS: tuple[Generation, ...] = ("nccl_2_8", "nccl_2_12", "nccl_2_19", "symmetric", "rccl")


def dp_variants() -> dict[str, GeneratedTrace]:
    """Eight of the 32 combinations: every pair of settings of two options is in one of them."""
    transports: tuple[Transport, ...] = ("nccl", "peer_copy")
    sources: tuple[Inputs, ...] = ("host", "device")
    variants = {}
    for size, transport, inputs in product((0, 1), (0, 1), (0, 1)):
        named, lag = size == transport, inputs == transport
        name = f"dp{(2, 4)[size]}-{transports[transport]}-{sources[inputs]}{'-named' * named}{'-lag' * lag}"
        variants[name] = dp_trace((2, 4)[size], transports[transport], sources[inputs], named, lag)
    return variants


def ddp_options() -> dict[str, DdpOptions]:
    plain = DdpOptions()
    by_name = {f"{generation}": replace(plain, kernel_names=generation) for generation in GENERATIONS}
    return {
        **by_name,
        "no_sequence": replace(plain, metadata="no_sequence"),
        "partial": replace(plain, metadata="partial"),
        "ops": replace(plain, metadata="ops", named_ranges=False),
        "none": replace(plain, metadata="none"),
        "lag": replace(plain, lag=True),
        "lag-unlaunched": replace(plain, lag=True, unlaunched=True, extra_groups=True),
        "unlaunched": replace(plain, unlaunched=True),
        "straggler0": replace(plain, straggler=0),
        "straggler1": replace(plain, straggler=1, buffers=False),
        "no-communication": replace(plain, communication=False, unlaunched=True),
        "no-communication-straggler": replace(plain, communication=False, straggler=1),
        "no-communication-lag": replace(plain, communication=False, lag=True),
        "no-buffers": replace(plain, buffers=False),
        "groups": replace(plain, extra_groups=True),
    }


def ddp_variants() -> dict[str, GeneratedTrace]:
    """Every option once, on two and on four ranks and on each of them by turns."""
    return {
        f"ddp{size}-rank{index // 2 % size}-{name}": ddp_trace(index // 2 % size, size, options)
        for index, (name, options) in enumerate(ddp_options().items())
        for size in ((2, 4)[index % 2],)
    }


RANKS: dict[Job, int] = {
    "tensor_data_parallel": 4, "tensor_parallel": 2, "fully_sharded": 4, "dlrm": 4, "pipeline": 2,
}  # fmt: skip


def parallel_variants() -> dict[str, GeneratedTrace]:
    return {f"{job}-rank{ranks - 1}": parallel_trace(job, ranks - 1) for job, ranks in RANKS.items()}


DEVICE_TRACES = {**dp_variants(), **ddp_variants(), **parallel_variants()}
GLOO_TRACES = {f"gloo{size}-rank{rank}": gloo_trace(rank, size) for size, rank in ((2, 0), (4, 3))}
ALL_TRACES = {**DEVICE_TRACES, **GLOO_TRACES}


def complete_events(trace: Trace, *categories: str) -> list[Trace]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] in categories]


def span(event: Trace) -> tuple[float, float]:
    return event["ts"], event["ts"] + event["dur"]


def cells(events: Iterable[Trace]) -> set[int]:
    """The half microseconds covered; every time of the generator is a multiple of one."""
    return {cell for event in events for cell in range(*(int(2 * time) for time in span(event)))}


def length_us(covered: set[int]) -> float:
    return len(covered) / 2


def step_ranges(trace: Trace) -> dict[int, Trace]:
    ranges = complete_events(trace, "user_annotation")
    return {int(e["name"].split("#")[1]): e for e in ranges if e["name"].startswith("ProfilerStep#")}


def launch_calls(trace: Trace) -> dict[int, Trace]:
    return {call["args"]["correlation"]: call for call in complete_events(trace, "cuda_runtime")}


def is_communication(event: Trace) -> bool:
    return "nccl" in event["name"] or "PtoP" in event["name"]


def is_compute(event: Trace) -> bool:
    return event["cat"] == "kernel" and "nccl" not in event["name"]


def by_step(trace: Trace) -> dict[int, list[Trace]]:
    """Device events by the step range in which their launch begins."""
    calls = launch_calls(trace)
    steps: dict[int, list[Trace]] = {step: [] for step in step_ranges(trace)}
    for event in complete_events(trace, *DEVICE_CATEGORIES):
        call = calls.get(event["args"]["correlation"])
        for step, step_range in step_ranges(trace).items():
            if call and span(step_range)[0] <= call["ts"] < span(step_range)[1]:
                steps[step].append(event)
    return steps


def contains(outer: Trace, call: Trace) -> bool:
    start, end = span(outer)
    return start <= float(call["ts"]) < end


def jobs() -> dict[str, list[GeneratedTrace]]:
    found: dict[str, list[GeneratedTrace]] = {}
    for size in (2, 4):
        found[f"gloo{size}"] = [gloo_trace(rank, size) for rank in range(size)]
    for index, (name, options) in enumerate(ddp_options().items()):
        if options.communication:
            size = (2, 4)[index % 2]
            found[f"ddp{size}-{name}"] = [ddp_trace(rank, size, options) for rank in range(size)]
    return found


JOBS = jobs()
