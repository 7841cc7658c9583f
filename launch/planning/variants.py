"""Which options a strategy's cells have, and why a cell is not measured. Imports no torch."""

import itertools

from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.matrix import SHARDED_HOOKS, Amp, CompileMode, Matrix, Variants
from dpscope.profiling.records.run import Cell, CellOptions
from dpscope.profiling.records.strategies import Strategy, shard_groups, traits_of

PASS_THROUGH_REASON = "nn.DataParallel does not replicate on one device: it would be the single-device run under another name"


def too_few_devices(cell: Cell) -> str | None:
    """Why a strategy has nothing to do on a cell's devices, or cannot divide them; None where it
    can.
    """
    least = cell.traits.least_devices
    if cell.traits.threaded and cell.devices < least:
        return PASS_THROUGH_REASON
    if cell.traits.hybrid:
        groups, shards = shard_groups(cell.strategy, cell.devices, cell.nodes)
        if cell.nodes > 1 and shards < 2:
            return f"hsdp shards within a node and replicates across nodes, and {cell.nodes}x1 has one device on each; use fsdp"
        if cell.devices < least or shards < 2 or groups * shards != cell.devices:
            return (
                f"hsdp shards within groups and replicates across them: {counted(cell.devices, 'device')} cannot make two groups "
                "of two or more"
            )
    elif cell.devices < least:
        return f"{cell.strategy} needs {least} devices or more; ddp on one device shows what wrapping costs"
    return None


def uncompilable(cell: Cell) -> str | None:
    """Why torch.compile cannot do what a cell's options request; None where it can, or does not
    have to.
    """
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
    return (
        f"a step takes {counted(cell.global_batch_size, 'sample')} and the data set has {samples:,}"
    )


def strategy_options(matrix: Matrix, strategy: Strategy) -> tuple[CellOptions, ...]:
    """The options of a strategy's cells on several devices: every combination of the values of the
    variants it has.

    DDP has all of them, the others micro-batches, precisions and compilation, FSDP also the types
    in which gradients are reduced. Without overlap a bucket holds everything, so bucket sizes make
    no difference there.
    """
    traits = traits_of(strategy)
    names = (
        Variants.__struct_fields__
        if traits.reducer
        else ("accumulate", "amp_variants", "compile", "comm_hook")
    )
    values = {name: getattr(matrix, name) for name in names}
    values["amp_variants"] = (None, *matrix.amp_variants)  # the run's own first
    if not traits.reducer:
        hooks = SHARDED_HOOKS if traits.sharded else ()
        values["comm_hook"] = [hook for hook in matrix.comm_hook if hook in hooks] or ["none"]
    combinations: dict[CellOptions, None] = {}
    for combination in itertools.product(*values.values()):
        chosen = dict(zip(values, combination, strict=True))
        chosen["amp"] = chosen.pop("amp_variants")
        if chosen.get("bucket_mb") == "default" or chosen.get("overlap") == "off":
            chosen["bucket_mb"] = None
        combinations.setdefault(CellOptions(**chosen))
    return tuple(combinations)


def combined_variants(matrix: Matrix) -> str:
    """Why some combinations of the values are one cell; empty where each is another."""
    if len(matrix.bucket_mb) < 2 or "off" not in matrix.overlap:
        return ""
    return (
        "With --overlap off one bucket holds all gradients: that is one cell for all --bucket-mb."
    )


def alone_options(matrix: Matrix, strategy: Strategy) -> tuple[CellOptions, ...]:
    """The options of DDP on one device: of DDP's cells the first with each number of micro-batches,
    precision and compilation.

    What the others do otherwise is done to messages, and there is none on one device.
    """
    first: dict[tuple[int, Amp | None, CompileMode], CellOptions] = {}
    for options in strategy_options(matrix, strategy):
        first.setdefault((options.accumulate, options.amp, options.compile), options)
    return tuple(first.values())
