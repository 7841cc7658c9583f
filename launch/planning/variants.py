"""Which options a strategy's cells have, and why a cell is not measured. Imports no torch."""

import itertools

import msgspec

from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.matrix import SHARDED_HOOKS, Amp, CompileMode, Matrix, Variants
from dpscope.profiling.records.run import Cell, CellOptions
from dpscope.profiling.records.strategies import Strategy, shard_groups, traits_of

PASS_THROUGH_REASON = (
    "nn.DataParallel does not replicate on one device: it would be the single-device run under another name"
)


def too_few_devices(cell: Cell) -> str | None:
    """Why a strategy has nothing to do on a cell's devices, or cannot divide them; None where it can."""
    least = cell.traits.least_devices
    if cell.traits.threaded and cell.devices < least:
        return PASS_THROUGH_REASON
    if not cell.traits.one_process and not cell.traits.hybrid and cell.devices < least:
        return f"{cell.strategy} needs two devices or more; ddp on one device shows what wrapping costs"
    if cell.traits.hybrid:
        groups, shards = shard_groups(cell.strategy, cell.devices, cell.nodes)
        if cell.nodes > 1 and shards < 2:
            return f"hsdp shards within a node and replicates across nodes, and {cell.nodes}x1 has one device on each; use fsdp"
        if cell.devices < least or shards < 2 or groups * shards != cell.devices:
            return (
                f"hsdp shards within groups and replicates across them: {counted(cell.devices, 'device')} cannot make two groups "
                "of two or more"
            )
    return None


def uncompilable(cell: Cell) -> str | None:
    """Why torch.compile cannot do what a cell's options request; None where it can, or does not have to."""
    if cell.options.compile == "off":
        return None
    if cell.traits.threaded:
        return "DataParallel makes new replicas in every step, each of which torch.compile would compile again"
    if cell.traits.reducer and cell.options.bucket_mb is not None and cell.options.bucket_mb < 1:
        return "torch.compile cuts DDP's graph by its buckets, the first of 1 MiB, and takes no smaller bucket cap"
    return None


def too_large(cell: Cell, samples: int) -> str | None:
    """Why a cell's steps cannot be whole, None when they can."""
    if cell.global_batch_size <= samples:
        return None
    return f"a step takes {counted(cell.global_batch_size, 'sample')} and the data set has {samples:,}"


def ddp_options(matrix: Matrix) -> tuple[CellOptions, ...]:
    """The options of DDP's cells: every combination of the variants, the defaults' first if it is among them.

    Without overlap a bucket holds everything, so bucket sizes make no difference there.
    """
    values_of = {name: getattr(matrix, name) for name in Variants.__struct_fields__}
    values_of["amp_variants"] = _precisions(matrix)
    found: dict[CellOptions, None] = {}
    for values in itertools.product(*values_of.values()):
        chosen = dict(zip(values_of, values, strict=True))
        chosen["amp"] = chosen.pop("amp_variants")
        if chosen["bucket_mb"] == "default" or chosen["overlap"] == "off":
            chosen["bucket_mb"] = None
        found.setdefault(CellOptions(**chosen))
    return tuple(found)


def other_options(matrix: Matrix) -> tuple[CellOptions, ...]:
    """The options of single, DataParallel and `replicate` cells: micro-batches, precisions, compiled or not."""
    return tuple(
        CellOptions(accumulate=count, amp=amp, compile=mode)
        for count, amp, mode in itertools.product(matrix.accumulate, _precisions(matrix), matrix.compile)
    )


def sharded_options(matrix: Matrix) -> tuple[CellOptions, ...]:
    """The options of FSDP's cells: those of the others, and the types in which gradients are reduced."""
    hooks = [hook for hook in matrix.comm_hook if hook in SHARDED_HOOKS] or ["none"]
    return tuple(
        msgspec.structs.replace(options, comm_hook=hook) for options in other_options(matrix) for hook in hooks
    )


def strategy_options(matrix: Matrix, strategy: Strategy) -> tuple[CellOptions, ...]:
    """The options of a strategy's cells on several devices."""
    if traits_of(strategy).reducer:
        return ddp_options(matrix)
    return sharded_options(matrix) if traits_of(strategy).sharded else other_options(matrix)


def alone_options(matrix: Matrix) -> tuple[CellOptions, ...]:
    """The options of DDP on one device: of DDP's cells the first with each number of micro-batches, precision and compilation.

    What the others do otherwise is done to messages, and there is none on one device.
    """
    first: dict[tuple[int, Amp | None, CompileMode], CellOptions] = {}
    for options in ddp_options(matrix):
        first.setdefault((options.accumulate, options.amp, options.compile), options)
    return tuple(first.values())


def _precisions(matrix: Matrix) -> tuple[Amp | None, ...]:
    """Of cells: the run's own, then the others."""
    return (None, *matrix.amp_variants)
