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
    transports: tuple[Transport, ...] = ("nccl", "peer_copy")
    sources: tuple[Inputs, ...] = ("host", "device")
    variants = {}
    for devices, transport, inputs, named, lag in product((2, 4), transports, sources, (True, False), (True, False)):
        name = f"dp{devices}-{transport}-{inputs}{'-named' if named else ''}{'-lag' if lag else ''}"
        variants[name] = dp_trace(devices, transport, inputs, named, lag)
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
    return {
        f"ddp{world_size}-rank{rank}-{name}": ddp_trace(rank, world_size, options)
        for name, options in ddp_options().items()
        for world_size in (2, 4)
        for rank in range(world_size)
    }


RANKS: dict[Job, int] = {
    "tensor_data_parallel": 4, "tensor_parallel": 2, "fully_sharded": 4, "dlrm": 4, "pipeline": 2,
}  # fmt: skip


def parallel_variants() -> dict[str, GeneratedTrace]:
    return {f"{job}-rank{rank}": parallel_trace(job, rank) for job, ranks in RANKS.items() for rank in range(ranks)}


DEVICE_TRACES = {**dp_variants(), **ddp_variants(), **parallel_variants()}
GLOO_TRACES = {f"gloo{size}-rank{rank}": gloo_trace(rank, size) for size in (2, 4) for rank in range(size)}
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
        for name, options in ddp_options().items():
            if options.communication:
                found[f"ddp{size}-{name}"] = [ddp_trace(rank, size, options) for rank in range(size)]
    return found


JOBS = jobs()
