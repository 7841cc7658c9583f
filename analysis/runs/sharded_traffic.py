"""What FSDP must have moved in every step, and whether the trace shows it.

Source: torch/distributed/fsdp/_fully_shard. The parameters of a unit are gathered before its forward pass and, if they were freed
after it, once more before its backward pass; its gradients are scattered as sums (reduce-scatter) behind it. Of HSDP each group
then all-reduces its part with the other groups. Each parameter is cut along its first dimension into equal parts, the
last ones padded: what moves is that much larger than the parameter.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from dpscope.analysis.runs.incomplete import BYTES_TOLERANCE, check_ranks, incomplete
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.strategies import shard_groups
from dpscope.profiling.records.wrapped import ShardedUnit

HOOK_ELEMENT_BYTES = 2  # of fp16 and bf16, in which gradients travel if asked
_NAMES = {"all_gather": "all-gathers", "reduce_scatter": "reduce-scatters", "all_reduce": "all-reduces"}


def padded_bytes(shape: Sequence[int], element_bytes: int, shards: int) -> int:
    """Bytes of a parameter cut into equal parts along its first dimension, padding included.

    >>> padded_bytes((10, 3), 4, 4)  # 4 parts of 3 x 3
    144
    """
    return math.ceil(shape[0] / shards) * shards * math.prod(shape[1:]) * element_bytes


def expected_bytes(cell: Cell, units: Sequence[ShardedUnit]) -> dict[str, int]:
    """Bytes that a rank of an FSDP cell moves in a step by each kind of collective, as the larger of its two buffers.

    Every micro-batch gathers; the last one's backward pass alone reduces, in the type of the cell's hook (`reduce_dtype`).
    """
    groups, shards = shard_groups(cell.strategy, cell.devices, cell.nodes)
    gathered = reduced = 0
    for unit in units:
        sizes = [
            padded_bytes(shape, element, shards) for shape, element in zip(unit.shapes, unit.element_bytes, strict=True)
        ]
        gathered += (2 if unit.resharded else 1) * cell.options.accumulate * sum(sizes)
        reduced += sum(
            size if cell.options.comm_hook == "none" else size // element * HOOK_ELEMENT_BYTES
            for size, element, trained in zip(sizes, unit.element_bytes, unit.trained, strict=True)
            if trained
        )
    found = {"all_gather": gathered, "reduce_scatter": reduced}
    return found | {"all_reduce": reduced // shards} if groups > 1 else found


def check_sharded(
    cell: Cell, units: Sequence[ShardedUnit], steps: pd.DataFrame, collectives: pd.DataFrame
) -> list[Finding]:
    """Whether every rank of a cell moved in every step what it must have."""
    if lacking := check_ranks(cell, steps):
        return lacking
    moved: Mapping[Any, Any] = (
        dict(collectives.groupby(["rank", "step", "kind"])["bytes"].sum(min_count=1)) if len(collectives) else {}
    )
    for rank, step in steps[["rank", "step"]].drop_duplicates().itertuples(index=False):
        for kind, expected in expected_bytes(cell, units).items():
            entry = moved.get((rank, step, kind))
            found = float(entry) if entry is not None and pd.notna(entry) else 0.0
            if abs(found - expected) > BYTES_TOLERANCE * expected:
                return [
                    incomplete(
                        cell,
                        f"{_NAMES[kind]} of {expected:,} B a step",
                        f"{f'{found:,.0f} B' if found else 'none with a size'} (rank {rank}, step {step})",
                        "the tracer lost events, or the model does not use all of its blocks",
                    )
                ]
    return []
