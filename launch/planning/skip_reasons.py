"""Why a cell is not measured: what its strategy cannot do on its devices, with its batch or its options. Imports no torch."""

from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.strategies import shard_groups

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
