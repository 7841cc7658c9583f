"""Columns that show whether the other values can be trusted; memory and compilation."""

import numpy as np

from dpscope.analysis.cells.identity import run_measured
from dpscope.analysis.cells.times import NO_STEP
from dpscope.analysis.cells.view import CellView, Group, once, quotient
from dpscope.analysis.stats.missing import Missing, known
from dpscope.analysis.traces.ranks.job import CounterCheck
from dpscope.profiling.records.run import Compilation, DeviceMemory

CHECKS = Group("checks", "Checks", needs=run_measured)
# traced over untraced step, above which no share of a step, no saving and no other step is stated
SLOWED = 1.5


@CHECKS.column("traced/untraced", "ratio", "Mean traced step / median untraced step")
def tracer_cost(cell: CellView) -> float:
    return quotient(cell.traced_step_us, cell.step_us, NO_STEP)


def too_slow_to_trust(tracer_cost: float | None) -> float | None:
    """The ratio of a traced to an untraced step if it exceeds SLOWED; None otherwise or if
    unknown.
    """
    return tracer_cost if tracer_cost is not None and tracer_cost > SLOWED else None


def unreliable_parts(slowed: float) -> str:
    """What such a ratio means, wherever that is reported."""
    return f"tracing made a step {slowed:.1f}x as long, so its parts are not reliable"


@once
def _compared_counters(cell: CellView) -> list[CounterCheck]:
    """The repeats whose communication span is known both by the trace and by DDP's counters."""
    compared = [check for check in cell.data.counter_checks if check.span_ratio is not None]
    if compared:
        return compared
    reasons = [check.not_comparable for check in cell.data.counter_checks]
    reasons += [
        rank.attached.counters_missing for _, rank in cell.data.ranks if rank.attached is not None
    ]
    why = next(filter(None, reasons), None)
    if why is None or not cell.traits.reducer or cell.devices == 1:
        raise Missing("only DDP on several devices has a pass with its counters")
    raise Missing(f"DDP's counters were not compared: {why}")


@CHECKS.column("span/DDP's", "ratio", "Communication span by trace / by DDP's counters")
def counter_span_ratio(cell: CellView) -> float:
    return float(
        np.median(
            [check.span_ratio for check in _compared_counters(cell) if check.span_ratio is not None]
        )
    )


@CHECKS.column("buckets equal", "flag", "All-reduce sizes are DDP's bucket sizes")
def counter_buckets_equal(cell: CellView) -> bool:
    _compared_counters(cell)
    return all(check.buckets_equal for check in cell.data.counter_checks)


def _memory(cell: CellView) -> list[DeviceMemory]:
    return [memory for _, rank in cell.data.ranks for memory in rank.memory]


NO_PEAK = "the CPU's allocator keeps no peak"


@CHECKS.column(
    "peak alloc.",
    "bytes",
    "Largest peak of torch's allocator on a device, tensors; NCCL's buffers lie outside",
)
def peak_allocated_bytes(cell: CellView) -> int:
    return known(max((memory.allocated_bytes for memory in _memory(cell)), default=None), NO_PEAK)


@CHECKS.column("state", "bytes", "Parameters, buffers, optimizer state on a device between steps")
def state_bytes(cell: CellView) -> int:
    held = [rank.state_bytes for _, rank in cell.data.ranks if rank.state_bytes is not None]
    return known(
        max(held, default=None), "not recorded by older versions of dpscope or for a user's script"
    )


def _compilations(cell: CellView) -> list[Compilation]:
    compiled = [rank.compilation for _, rank in cell.data.ranks if rank.compilation is not None]
    if not compiled:
        raise Missing("not a compiled cell")
    return compiled


@CHECKS.column("compiling", "time", "Longest time that a rank of the cell spent compiling")
def compile_us(cell: CellView) -> float:
    return max(compilation.seconds * 1e6 for compilation in _compilations(cell))


@CHECKS.column("compiled parts", "count", "Graphs compiled one by one, DDP's for each bucket")
def compiled_parts(cell: CellView) -> int:
    return max(compilation.parts for compilation in _compilations(cell))


@CHECKS.column(
    "peak reserved",
    "bytes",
    "Largest peak of torch's allocator on a device, its reserve; NCCL's buffers lie outside",
)
def peak_reserved_bytes(cell: CellView) -> int:
    return known(max((memory.reserved_bytes for memory in _memory(cell)), default=None), NO_PEAK)
