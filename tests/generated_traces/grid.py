"""The generator's variants, by name."""

from dataclasses import replace
from itertools import product

from tests.generated_traces.generator import (
    DdpOptions,
    GeneratedTrace,
    Generation,
    Inputs,
    Job,
    Transport,
    ddp_trace,
    dp_trace,
    gloo_trace,
    parallel_trace,
)

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
