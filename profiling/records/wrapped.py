"""What a strategy makes of a model, as stored: units that FSDP gathers, what torch.compile did. Imports no torch."""

from dpscope.profiling.records.stored import Stored


class ShardedUnit(Stored, frozen=True):
    """Parameters that FSDP gathers together, those of one wrapped module that no wrapped module within it holds."""

    name: str  # of the module; empty: the whole model
    shapes: tuple[tuple[int, ...], ...]  # of its parameters, unsharded
    trained: tuple[bool, ...]  # whether each of them requires a gradient
    element_bytes: tuple[int, ...]  # of each
    resharded: bool  # whether it is gathered once more for the backward pass


class Compilation(Stored, frozen=True):
    """What torch.compile did in a process."""

    seconds: float  # of wall time, in warm-up and after
    graphs: int  # captured from Python code
    parts: int  # that these were cut into and compiled one by one: by DDP's buckets, else one for each graph
    breaks: int  # places in the code at which a graph ended early
    late_graphs: int = 0  # of the graphs those captured after warm-up, in timed or traced steps
