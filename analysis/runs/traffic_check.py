"""What a strategy must have moved in every step, and whether the trace shows it.

A trace that shows nothing must never read as "no communication": profilers lose kernels, and not
every kernel has its size. Source for FSDP: torch/distributed/fsdp/_fully_shard. The parameters of a
unit are gathered before its forward pass and, if they were freed after it, once more before its
backward pass; its gradients are scattered as sums (reduce-scatter) behind it. With HSDP each group
then all-reduces its part with the other groups. Each parameter is cut along its first dimension
into equal parts, the last ones padded: what moves is that much larger than the parameter.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dpscope.analysis.text.units import text
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.steps.data_parallel import dp_chunks
from dpscope.profiling.records import range_names as phases
from dpscope.profiling.records.attach_codes import AttachCode
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run import AttachedProcess, Cell, ParameterSizes, ShardedUnit
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.strategies import ddp_arguments, powersgd_elements, shard_groups
from dpscope.profiling.records.trace_codes import TraceCode

BYTES_TOLERANCE = 0.05
_NOT_REDUCED = (  # cause and remedy
    "DDP reduces a part of the gradients alone, the same bytes in every step of every rank: it does not reduce parameters that "
    "were frozen when it wrapped the model",
    "Wrap the model once all parameters that it is to train require gradients",
)
_LOST = ("the tracer lost events, or the model does not use all of its parameters",)
HOOK_ELEMENT_BYTES = 2  # of fp16 and bf16, in which gradients travel with such a hook
_NAMES = {
    "all_gather": "all-gathers",
    "reduce_scatter": "reduce-scatters",
    "all_reduce": "all-reduces",
}
UNKNOWN_COMMUNICATION = {TraceCode.TRACE_INCOMPLETE.code, AttachCode.TRAINED_ALONE.code}
"""Codes of findings of a cell whose trace does not show what it moved."""
MEASURE_AGAIN = "measure the cell again (`dpscope run --fresh` measures all cells)"


def incomplete_repeat(cell: Cell, repeat: int, missing_parts: str) -> Finding:
    """A repeat that is left out, since parts of it are not there."""
    return RunCode.REPEATS_MISSING.finding(
        f"repeat {repeat} is left out: {missing_parts}",
        f"if files were lost, {MEASURE_AGAIN}; if it ran on another number of nodes, keep it in a separate run",
        about=cell.name,
        severity="error",
    )


class _Lack(NamedTuple):
    """What the trace of a cell should show, what it shows, and why that may be."""

    expected: str
    found: str
    cause: str
    remedy: str = "Run `dpscope doctor`, then measure the cell again"


def _check_ranks(cell: Cell, steps: Table) -> Iterator[_Lack]:
    """Whether every rank of a cell saved a trace."""
    found = len(_known(steps, "rank"))
    if found != cell.devices:
        yield _Lack(
            f"traces of {counted(cell.devices, 'rank')}", f"{found}", "a rank saved no trace"
        )


def _known(table: Table, column: str) -> list[int]:
    """The different values of a column, in order."""
    values: list[int] = np.unique(table[column][table.known(column)]).tolist()
    return values


_RankStep = tuple[int | None, int | None]


def _rank_steps(table: Table) -> list[_RankStep]:
    """Rank and step of each row."""
    return [(record["rank"], record["step"]) for record in table.records(("rank", "step"))]


def _moved_bytes(collectives: Table, kind: str) -> dict[_RankStep, float]:
    """Bytes of a kind of collective by rank and step, where any has its size."""
    moved = collectives.having("kind", kind)
    moved = moved.take(moved.known("bytes"))
    steps = moved.group("rank", "step")
    return dict(
        zip(
            _rank_steps(moved.take(steps.first)),
            steps.sums(moved.real("bytes")).tolist(),
            strict=True,
        )
    )


def _check_moved(
    cell: Cell,
    expected: Mapping[str, int],
    steps: Table,
    collectives: Table,
    at_least: bool = False,
) -> Iterator[_Lack]:
    """Whether every rank moved in every step what it must have by each kind of collective, or
    `at_least` that.
    """
    yield from _check_ranks(cell, steps)
    rank_steps = dict.fromkeys(_rank_steps(steps))
    for kind, size in expected.items():
        own = collectives.having("kind", kind)
        moved = _moved_bytes(own, kind)
        counts = Counter(_rank_steps(own))
        most = BYTES_TOLERANCE * size
        if at_least:
            most = math.inf
        # A tracer does not lose events so evenly that every step of every rank shows the same
        # bytes.
        evenly = bool(own.known("bytes").all()) and len({moved.get(key) for key in rank_steps}) == 1
        for rank, step in rank_steps:
            found = moved.get((rank, step), 0.0)
            count = counts[rank, step]
            if -BYTES_TOLERANCE * size <= found - size <= most:
                continue
            unsized = f"{count} without sizes" if count else "none"
            shown = (
                f"{f'{found:,.0f} B' if found else unsized} (rank {text(rank)}, step {text(step)})"
            )
            promised = f"{_NAMES[kind]} of {size:,} B a step{_described(cell)}"
            less_evenly = cell.traits.all_reduces and evenly and 0 < found < size
            why = _NOT_REDUCED if less_evenly else _LOST
            yield _Lack(promised, shown, *why)


def _described(cell: Cell) -> str:
    if not cell.traits.all_reduces:
        return ""
    hook = cell.options.comm_hook
    if hook == "none":
        return " (the gradients)"
    return f" (the gradients as {hook})"


def padded_bytes(shape: Sequence[int], element_bytes: int, shards: int) -> int:
    """Bytes of a parameter cut into equal parts along its first dimension, padding included.

    >>> padded_bytes((10, 3), 4, 4)  # 4 parts of 3 x 3
    144
    """
    return math.ceil(shape[0] / shards) * shards * math.prod(shape[1:]) * element_bytes


def expected_bytes(cell: Cell, units: Sequence[ShardedUnit]) -> dict[str, int]:
    """Bytes that a rank of an FSDP cell moves in a step by each kind of collective, as the larger
    of its two buffers.

    Every micro-batch gathers; the last one's backward pass alone reduces, in the type of the cell's
    hook (`reduce_dtype`).
    """
    groups, shards = shard_groups(cell.strategy, cell.devices, cell.nodes)
    gathered = reduced = 0
    for unit in units:
        for shape, element, trained in zip(
            unit.shapes, unit.element_bytes, unit.trained, strict=True
        ):
            size = padded_bytes(shape, element, shards)
            gathered += (2 if unit.resharded else 1) * cell.options.accumulate * size
            if trained:
                reduced += (
                    size
                    if cell.options.comm_hook == "none"
                    else size // element * HOOK_ELEMENT_BYTES
                )
    found = {"all_gather": gathered, "reduce_scatter": reduced}
    return found | {"all_reduce": reduced // shards} if groups > 1 else found


def used_map_bytes(cell: Cell, sizes: ParameterSizes) -> int:
    """What DDP all-reduces behind the last bucket where it looks for unused parameters: 4 bytes for
    each tensor; else 0.
    """
    return 4 * len(sizes.gradient_shapes) if cell.options.maps_used_parameters else 0


def reduced_bytes(cell: Cell, sizes: ParameterSizes) -> int:
    """Bytes that DDP all-reduces in a step: the gradients, in the dtype of the cell's communication
    hook or as it factors them.

    Micro-batches do not add to it: only the last one's backward reduces.
    """
    half = cell.options.comm_hook in ("fp16", "bf16") or "mixed_precision" in ddp_arguments(
        cell.options.ddp_args
    )
    if cell.options.comm_hook == "none" and not half:
        return sizes.gradient_bytes
    assert sizes.gradient_elements  # stored ever since there are hooks
    if cell.options.comm_hook == "powersgd":
        return (
            powersgd_elements(sizes.gradient_shapes)
            * sizes.gradient_bytes
            // sizes.gradient_elements
        )
    return HOOK_ELEMENT_BYTES * sizes.gradient_elements


def check_traffic(
    cell: Cell,
    sizes: ParameterSizes,
    steps: Table,
    collectives: Table,
    ranges: Iterable[dict[str, dict[int | None, int]]],
    copies: Table,
    attached: AttachedProcess | None = None,
    units: Sequence[ShardedUnit] = (),
) -> list[Finding]:
    """Findings where a multi-device cell's trace does not show what it must have moved: one of
    UNKNOWN_COMMUNICATION.

    A check yields all that it finds lacking, of which the first is given, as `trace_incomplete`; a
    trace that is whole and shows something else than the cell's options promise gives
    `variant_not_kept`.

    `steps` and `collectives` are of all ranks of one repeat; `ranges` are its processes' range
    counts, `copies` its peer copies. DDP must all-reduce `reduced_bytes` on every rank; DP must,
    for each micro-batch, broadcast parameters and buffers in that many chunks and reduce the
    gradients, or copy as much, on every device; dp-host must pass its four ranges for each replica
    and micro-batch; FSDP must gather and scatter its `units`. Kernels without metadata are counted,
    not summed.

    On the CPU the last step of a trace is not looked at, unless it is the only one: when the tracer
    stops there, gloo's workers may not have closed their last ranges.

    Of an `attached` script DDP's all-reduces are at least that: it may reduce more often than once
    a step, and more than gradients. Where what it must move is unknown, every rank must communicate
    in the steps in which another does.
    """
    if cell.traits.baseline or cell.devices == 1:
        return []
    if len(steps) and not cell.traits.host_copies:
        cut = ~steps.known("device") & steps.truths("partial_window")
        steps = steps if cut.all() else steps.take(~cut)
    named = attached is None or (
        attached.reduction_known and (cell.traits.reducer or cell.traits.peer_copies)
    )
    lacking: Iterable[_Lack]
    if not len(steps):
        lacking = [_Lack("traced steps", "none", "the traced pass saved no steps")]
    elif named:
        lacking = _check_strategy(
            cell, sizes, steps, collectives, ranges, copies, units, attached is not None
        )
    elif _trained_alone(cell, steps, collectives):
        return [_alone(cell, steps)]
    else:
        lacking = _check_any(cell, steps, collectives)
    for missing in lacking:
        message = f"expected {missing.expected}, the trace shows {missing.found}; its communication is not given"
        cause = f"likely cause: {missing.cause}. {missing.remedy}"
        return [TraceCode.TRACE_INCOMPLETE.finding(message, cause, about=cell.name)]
    if cell.traits.reducer and attached is None:
        return [*_check_options(cell, sizes, collectives)]
    return []


def _alone(cell: Cell, steps: Table) -> Finding:
    none = f"no collective in {counted(len(_known(steps, 'step')), 'traced step')}"
    alone = f"each process trained alone: {none} of {counted(cell.devices, 'process')}"
    return AttachCode.TRAINED_ALONE.finding(
        f"{alone}, and no DDP or FSDP around the model", about=cell.name
    )


def _check_strategy(
    cell: Cell,
    sizes: ParameterSizes,
    steps: Table,
    collectives: Table,
    ranges: Iterable[dict[str, dict[int | None, int]]],
    copies: Table,
    units: Sequence[ShardedUnit],
    at_least: bool,
) -> Iterator[_Lack]:
    """What the strategy must move, and does not."""
    if cell.traits.all_reduces:
        expected = {"all_reduce": reduced_bytes(cell, sizes)}
        return _check_moved(cell, expected, steps, collectives, at_least)
    if cell.traits.sharded:
        return _check_moved(cell, expected_bytes(cell, units), steps, collectives)
    if cell.traits.host_copies:
        return _check_dp_host(cell, steps, ranges)
    return _check_dp(cell, sizes, steps, collectives, copies)


def _trained_alone(cell: Cell, steps: Table, collectives: Table) -> bool:
    """Whether no rank of a script communicated, although all of them have traced steps."""
    return (
        cell.traits.transport == "unknown"
        and not len(collectives)
        and not any(_check_ranks(cell, steps))
    )


def _check_any(cell: Cell, steps: Table, collectives: Table) -> Iterator[_Lack]:
    """Whether every rank communicates, whatever it moves, in the steps in which any does.

    A script may communicate in some steps alone (local SGD), and then all ranks do.
    """
    yield from _check_ranks(cell, steps)
    seen = set(_rank_steps(collectives))
    communicating = {step for _, step in seen}
    for rank, step in dict.fromkeys(_rank_steps(steps)):
        if (rank, step) not in seen and (step in communicating or not seen):
            promised = "a collective in every step of every rank"
            yield _Lack(
                promised,
                f"none in step {text(step)} of rank {text(rank)}",
                "the tracer lost events",
            )


def _check_options(cell: Cell, sizes: ParameterSizes, collectives: Table) -> Iterator[Finding]:
    """Whether DDP followed the cell's options: one bucket per dtype without overlap, no broadcasts
    of buffers.
    """
    in_steps = collectives.take(collectives.known("step"))
    if cell.options.overlap == "off":
        most = int(in_steps.having("kind", "all_reduce").group("rank", "step").sizes.max())
        if most > max(1, len({tensor.dtype for tensor in sizes.parameter_tensors})):
            text = f"its options promise one all-reduce of all gradients a step, the trace shows {most} in a step"
            yield RunCode.VARIANT_NOT_KEPT.finding(text, about=cell.name)
    if cell.options.broadcast_buffers == "off" and sizes.buffer_bytes:
        moved = max(_moved_bytes(in_steps, "broadcast").values(), default=0.0)
        if moved >= (1 - BYTES_TOLERANCE) * sizes.buffer_bytes:
            text = f"its options promise no broadcast of buffers, the trace shows broadcasts of {moved:,.0f} B in a step"
            yield RunCode.VARIANT_NOT_KEPT.finding(text, about=cell.name)


def _check_dp_host(
    cell: Cell, steps: Table, ranges: Iterable[dict[str, dict[int | None, int]]]
) -> Iterator[_Lack]:
    counts = next(iter(ranges), {})
    passes = cell.options.accumulate
    traced = _known(steps, "step")
    for phase, replica, step in itertools.product(
        phases.DP_COMMUNICATION_PHASES, range(cell.devices), traced
    ):
        name = phases.replica_range(phase, replica)
        found = counts.get(name, {}).get(step, 0)
        if found < passes:
            expected = f"range {name} in every step{f', {passes} times' if passes > 1 else ''}"
            yield _Lack(
                expected,
                f"{found or 'none'} (step {step})",
                "the tracer did not see the replicas' threads",
            )


def _check_dp(
    cell: Cell, sizes: ParameterSizes, steps: Table, collectives: Table, copies: Table
) -> Iterator[_Lack]:
    """NCCL kernels in the expected number on every device, or copies of the expected bytes between
    them.
    """
    # DataParallel replicates in every forward and reduces in every backward
    passes = cell.options.accumulate
    broadcasts, reduces = (passes * len(chunks) for chunks in dp_chunks(sizes))
    # By copies device 0 sends everything to each other device and receives each one's gradients,
    # those of frozen parameters too: as zeros (torch/nn/parallel/_functions.py,
    # Broadcast.backward).
    copy_bytes = passes * (cell.devices - 1) * (2 * sizes.parameter_bytes + sizes.buffer_bytes)
    devices = _known(steps, "device")  # ROCm's may not begin at 0
    if len(devices) != cell.devices:
        at_work = f"{counted(cell.devices, 'device')} at work"
        yield _Lack(at_work, f"{len(devices)}", "the tracer lost a device's events")
    for step in _known(steps, "step"):
        copied = int(copies["model_bytes"][copies["step"] == step].sum())
        if abs(copied - copy_bytes) <= BYTES_TOLERANCE * copy_bytes:
            continue
        own = collectives.take(collectives["step"] == step)
        for device in devices:
            of_device = own.take(own["device"] == device)
            kinds = of_device.words("kind").counts
            found = (kinds.get("broadcast", 0), kinds.get("reduce", 0))
            if found != (broadcasts, reduces):
                promised = f"{broadcasts} broadcasts and {reduces} reduces on every device, or {copy_bytes:,} B copied"
                shown = f"{found[0]} and {found[1]} on device {device}, {copied:,} B copied (step {step})"
                yield _Lack(
                    promised, shown, "the tracer lost events, or the model replicates otherwise"
                )
