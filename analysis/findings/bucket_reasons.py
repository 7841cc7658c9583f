"""Reasons for little overlap that the gradient buckets show: their number, sizes, readiness, and the remaining compute."""

from collections.abc import Iterator

import pandas as pd

from dpscope.analysis.findings.overlap_evidence import LATE, MOST, Evidence, OverlapReason
from dpscope.analysis.text.units import show_bytes, show_time
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.strategies import is_known

_SMALL = 1 << 20  # bytes: the size of DDP's first bucket
_TOO_SMALL = (
    "so few bytes are bound by latency at any bucket size: a larger batch or accumulation lowers its share of a step"
)
_NAMED = 4  # buckets in a message


def bucket_reasons(evidence: Evidence) -> Iterator[OverlapReason]:
    """The reasons that the buckets show, the strongest first."""
    if not evidence.of_gradients:
        return
    yield from _one_block(evidence) if evidence.sharded else _one_bucket(evidence)
    yield from _last_bucket(evidence)
    yield from _late_buckets(evidence)


def _one_bucket(evidence: Evidence) -> Iterator[OverlapReason]:
    buckets, cell = evidence.buckets, evidence.data.cell
    if len(buckets) != 1:
        return
    size = float(buckets["bytes"].iloc[0])
    requested = ", because of --overlap off" if cell.options.overlap == "off" else ""
    held = (
        f"one bucket holds nearly all bytes ({show_bytes(size)})"
        if evidence.small_buckets
        else f"all gradients are reduced in one bucket of {show_bytes(size)}"
    )
    text = f"{held}{_ready(buckets['done'].iloc[0])}{requested}"
    if size < _SMALL and not requested:
        yield OverlapReason("one_bucket", text, _TOO_SMALL)
        return
    advice = (
        "--overlap on reduces gradients during the backward pass"
        if requested
        else f"smaller buckets let part of it be reduced earlier (--bucket-mb {max(0.1, round(size / 4 / 2**20, 1)):g})"
    )
    yield OverlapReason("one_bucket", text, advice, of_script=not requested)


def _one_block(evidence: Evidence) -> Iterator[OverlapReason]:
    if len(evidence.buckets) != 1:
        return
    size = float(evidence.buckets["bytes"].iloc[0])
    yield OverlapReason(
        "one_block",
        f"all gradients are reduced in one reduce-scatter of {show_bytes(size)}{_ready(evidence.buckets['done'].iloc[0])}",
        "apply fully_shard to each block of the model as well: blocks are then gathered and reduced while others compute",
        of_script=True,
    )


def _last_bucket(evidence: Evidence) -> Iterator[OverlapReason]:
    if not evidence.several or evidence.sharded:
        return
    sizes = evidence.buckets["bytes"]
    share = float(sizes.iloc[-1] / sizes.sum())
    if share > MOST:
        yield OverlapReason(
            "last_bucket",
            f"the last of {counted(len(sizes), 'bucket')} holds {share:.0%} of the bytes ({show_bytes(sizes.iloc[-1])} of "
            f"{show_bytes(sizes.sum())}){_ready(evidence.buckets['done'].iloc[-1])}",
            "smaller buckets (--bucket-mb) let part of it be reduced earlier; the first layers' gradients still come last",
            of_script=True,
        )


def _ready_late(evidence: Evidence) -> bool:
    """Whether little compute is left to hide even the first of several buckets."""
    done = evidence.buckets["done"]
    return evidence.several and not done.isna().any() and float(done.iloc[0]) >= LATE


def _late_buckets(evidence: Evidence) -> Iterator[OverlapReason]:
    """`compiled_graph` if the first bucket would not be late had the graph returned its gradients at its start."""
    if not _ready_late(evidence):
        return
    first = evidence.buckets.iloc[0]
    graph = 0.0 if pd.isna(first["compiled_share"]) else float(first["compiled_share"])
    of_ddp = is_known(evidence.data.cell.strategy)  # False if the traces do not show the parallelism
    text = f"its buckets are ready only when the step's compute is nearly done: {bucket_times(evidence)}"
    if float(first["done"]) - graph < LATE:
        yield OverlapReason(
            "compiled_graph",
            f"{text}; one compiled backward graph, {graph:.0%} of that compute, returns their gradients only when it ends",
            "let torch.compile split the graph at DDP's buckets (torch._dynamo.config.optimize_ddp = True, its default), or "
            "compile each block separately"
            if of_ddp
            else "compile each block separately",
            of_script=True,
        )
    elif evidence.data.cell.traits.reduces_early or evidence.sharded:
        yield OverlapReason(
            "late_buckets",
            text,
            "find out why gradients are late: one layer with most of the compute, or weights shared by several layers",
            of_script=True,
        )
    else:
        yield OverlapReason(
            "late_buckets",
            text,
            "reduce gradients during the backward pass, as DistributedDataParallel does, rather than after it",
            of_script=True,
        )


def little_computing(evidence: Evidence) -> Iterator[OverlapReason]:
    """Too little compute to hide the transfers; for late buckets only if even the whole step's compute were too little."""
    buckets = evidence.buckets
    if not evidence.of_gradients or not evidence.several or buckets[["done", "transfer_us"]].isna().any().any():
        return
    # `done` is a share of the compute before the optimizer, which waits for all gradients and so hides nothing.
    compute = evidence.means["compute_us"] - evidence.means["optimizer_us"]
    needed = float(buckets["transfer_us"].sum())
    left = compute * (1 - float(buckets["done"].iloc[0]))
    if left >= MOST * needed or (_ready_late(evidence) and compute >= MOST * needed):
        return
    yield OverlapReason(
        "little_computing",
        f"only {show_time(left)} of compute is left when the first bucket is ready, and the transfers need "
        f"{show_time(needed)}",
        "compute more per byte: a larger batch, gradient accumulation, or fp16 gradients",
    )


def bucket_times(evidence: Evidence) -> str:
    """Size and readiness of each bucket, such as ``4.00 MB at 20%, 4.00 MB at 50%``; empty if unknown."""
    buckets = evidence.buckets
    if not evidence.of_gradients or buckets.empty or buckets["done"].isna().any():
        return ""
    when = ", ".join(
        f"{show_bytes(size)} at {done:.0%}"
        for size, done in buckets[["bytes", "done"]].head(_NAMED).itertuples(index=False)
    )
    return when + (f" and {len(buckets) - _NAMED} more" if len(buckets) > _NAMED else "")


def _ready(done: object) -> str:
    known = None if pd.isna(done) else float(done)  # type: ignore[arg-type, call-overload]
    return "" if known is None else f", ready when {known:.0%} of the step's compute is done"
