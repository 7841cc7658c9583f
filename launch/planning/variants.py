"""Variants of the strategies: read from text, and combined into the options of cells. Imports no torch."""

import contextlib
import itertools
from collections.abc import Callable
from typing import TypeVar, get_args

import msgspec

from dpscope.profiling.records.matrix import SHARDED_HOOKS, SWITCHES, Amp, CommHook, CompileMode, Matrix, NcclEngine
from dpscope.profiling.records.run import CellOptions
from dpscope.profiling.records.strategies import Strategy, traits_of
from dpscope.profiling.records.typed_text import MIB, parse_size

CHOICES = {
    "comm_hook": ", ".join(get_args(CommHook)),
    "nccl_engine": ", ".join(get_args(NcclEngine)),
    "compile": ", ".join(get_args(CompileMode)),
    **dict.fromkeys(SWITCHES, "on, off"),
}

_Number = TypeVar("_Number", int, float)


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _switches(text: str) -> tuple[str, ...]:
    words = {"true": "on", "false": "off"}  # what TOML and plain flags say
    return tuple(words.get(part.lower(), part) for part in _split(text))


def _bucket_sizes(text: str) -> tuple[float | str, ...]:
    return tuple(part if part == "default" else _mebibytes(part) for part in _split(text))


def _mebibytes(text: str) -> float:
    """A bare number is MiB; a size with a unit is converted, to four decimals, since cells are named after it."""
    with contextlib.suppress(ValueError):
        return float(text)  # its range is checked with the other settings
    try:
        return round(parse_size(text, MIB) / MIB, 4)
    except ValueError as error:
        raise ValueError(f"{text or 'nothing'} is not a number of MiB, nor a size such as 25MB") from error


def _whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(_number(part, int, "a whole number") for part in _split(text))


def _number(text: str, kind: Callable[[str], _Number], called: str) -> _Number:
    try:
        return kind(text)
    except ValueError as error:
        raise ValueError(f"{text or 'nothing'} is not {called}") from error


TEXT_PARSERS: dict[str, Callable[[str], object]] = {
    "comm_hook": _split,
    "nccl_engine": _split,
    "compile": _split,
    "bucket_mb": _bucket_sizes,
    "accumulate": _whole_numbers,
    "ddp_args": lambda text: tuple(" ".join(part.split()) for part in text.split(";")),
    **dict.fromkeys(SWITCHES, _switches),
}
"""From one text to the values of a field; each raises ValueError for what is no such value."""


def ddp_options(matrix: Matrix) -> tuple[CellOptions, ...]:
    """The options of DDP's cells: every combination of the variants, the defaults' first if it is among them.

    Without overlap a bucket holds everything, so bucket sizes make no difference there.
    """
    fields = (
        *("accumulate", "amp", "broadcast_buffers", "static_graph", "gradient_as_bucket_view", "comm_hook", "ddp_args"),
        *("nccl_engine", "compile", "bucket_mb"),
    )
    values_of = {field: getattr(matrix, field) for field in fields if field != "amp"}
    values_of["amp"] = _precisions(matrix)
    found: dict[CellOptions, None] = {}
    for overlap in matrix.overlap:
        for values in itertools.product(*(values_of[field] for field in fields)):
            chosen = dict(zip(fields, values, strict=True))
            size = chosen.pop("bucket_mb")
            chosen["bucket_mb"] = None if size == "default" or overlap == "off" else size
            found.setdefault(CellOptions(overlap=overlap, **chosen))
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


def precisions(text: str) -> tuple[str, tuple[str, ...]]:
    """The run's precision and the others from ``off,bf16``: the first in the order of the documentation is the run's."""
    given = set(_split(text))
    known: list[str] = [one for one in get_args(Amp) if one in given]
    first, *others = known + sorted(given - set(known))
    return first, tuple(others)
