"""The generator's variants, by name."""

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
        lag = inputs == transport
        name = f"dp{(2, 4)[size]}-{transports[transport]}-{sources[inputs]}{'-lag' * lag}"
        variants[name] = dp_trace((2, 4)[size], transports[transport], sources[inputs], size == transport, lag)
    return variants


def ddp_options() -> dict[str, DdpOptions]:
    return {
        **{generation: DdpOptions(kernel_names=generation) for generation in GENERATIONS},
        "no_sequence": DdpOptions(metadata="no_sequence"),
        "partial": DdpOptions(metadata="partial"),
        "ops": DdpOptions(metadata="ops", named_ranges=False),
        "none": DdpOptions(metadata="none"),
        "lag-unlaunched": DdpOptions(lag=True, unlaunched=True, extra_groups=True),
        "straggler0": DdpOptions(straggler=0),
        "straggler1": DdpOptions(straggler=1, buffers=False),
        "no-communication": DdpOptions(communication=False, unlaunched=True),
        "no-communication-lag": DdpOptions(communication=False, lag=True),
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


DEVICE_TRACES = dp_variants() | ddp_variants() | {job: parallel_trace(job, ranks - 1) for job, ranks in RANKS.items()}
GLOO_TRACES = {f"gloo{size}-rank{rank}": gloo_trace(rank, size) for size, rank in ((2, 0), (4, 3))}
ALL_TRACES = {**DEVICE_TRACES, **GLOO_TRACES}
