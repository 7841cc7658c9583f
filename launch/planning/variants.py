"""Variants of the strategies, combined into the options of cells. Imports no torch."""

import itertools

import msgspec

from dpscope.profiling.records.matrix import SHARDED_HOOKS, Amp, CompileMode, Matrix, Variants
from dpscope.profiling.records.run import CellOptions
from dpscope.profiling.records.strategies import Strategy, traits_of


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
