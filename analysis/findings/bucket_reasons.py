"""Why little is hidden, as the buckets of gradients show it: how many, how large, when ready, what is left to hide behind."""

from collections.abc import Iterator

import pandas as pd

from dpscope.analysis.findings.overlap_evidence import LATE, MOST, Evidence, OverlapReason
from dpscope.analysis.text.units import choose_unit, show, show_time
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.strategies import is_known

_SMALL = 1 << 20  # bytes: DDP's own first bucket
_TOO_SMALL = (
    "so few bytes are bound by latency, whatever the bucket size: a larger batch or accumulation lowers its share"
)
_NAMED = 4  # buckets in a message


def bucket_reasons(evidence: Evidence) -> Iterator[OverlapReason]:
    """The reasons that lie in the buckets, the strongest first."""
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
    asked = ", because of --overlap off" if cell.options.overlap == "off" else ""
    told = (
        f"one bucket holds nearly all bytes ({_bytes(size)})"
        if evidence.beside
        else f"all gradients travel in one bucket of {_bytes(size)}"
    )
    text = f"{told}{_ready(buckets['done'].iloc[0])}{asked}"
    if size < _SMALL and not asked:
        yield OverlapReason("one_bucket", text, _TOO_SMALL)
        return
    advice = (
        "--overlap on reduces gradients during the backward pass"
        if asked
        else f"smaller buckets let part of it be reduced earlier (--bucket-mb {max(0.1, round(size / 4 / 2**20, 1)):g})"
    )
    yield OverlapReason("one_bucket", text, advice, of_script=not asked)


def _one_block(evidence: Evidence) -> Iterator[OverlapReason]:
    if len(evidence.buckets) != 1:
        return
    size = float(evidence.buckets["bytes"].iloc[0])
    yield OverlapReason(
        "one_block",
        f"all gradients travel in one reduce-scatter of {_bytes(size)}{_ready(evidence.buckets['done'].iloc[0])}",
        "apply fully_shard to each block of the model as well: each is then gathered and reduced beside the others' compute",
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
            f"the last of {counted(len(sizes), 'bucket')} holds {share:.0%} of the bytes ({_bytes(sizes.iloc[-1])} of "
            f"{_bytes(sizes.sum())}){_ready(evidence.buckets['done'].iloc[-1])}",
            "smaller buckets (--bucket-mb) let part of it be reduced earlier; the first layers' gradients still come last",
            of_script=True,
        )


def _ready_late(evidence: Evidence) -> bool:
    """Whether even the first of several buckets has little compute left to hide behind."""
    done = evidence.buckets["done"]
    return evidence.several and not done.isna().any() and float(done.iloc[0]) >= LATE


def _late_buckets(evidence: Evidence) -> Iterator[OverlapReason]:
    """Named for the compiled graph if the first bucket would not be late had that graph given its gradients at its start."""
    if not _ready_late(evidence):
        return
    first = evidence.buckets.iloc[0]
    graph = 0.0 if pd.isna(first["compiled_share"]) else float(first["compiled_share"])
    of_ddp = is_known(evidence.data.cell.strategy)  # nor of a job whose parallelism the traces do not show
    text = f"its buckets are ready only when the step's compute is nearly done: {buckets_told(evidence)}"
    if float(first["done"]) - graph < LATE:
        yield OverlapReason(
            "compiled_graph",
            f"{text}; their gradients come out of one compiled backward graph, which is {graph:.0%} of that compute and gives "
            "none before it ends",
            "let torch.compile cut the graph by DDP's buckets (torch._dynamo.config.optimize_ddp = True, its default), or "
            "compile each block by itself"
            if of_ddp
            else "compile each block by itself",
            of_script=True,
        )
    elif evidence.data.cell.traits.reduces_early or evidence.sharded:
        yield OverlapReason(
            "late_buckets",
            text,
            "find out why gradients come late: one layer with most of the compute, or weights that several layers share",
            of_script=True,
        )
    else:
        yield OverlapReason(
            "late_buckets",
            text,
            "reduce each gradient while the backward pass still runs, as DistributedDataParallel does, not after it",
            of_script=True,
        )


def little_computing(evidence: Evidence) -> Iterator[OverlapReason]:
    """Too little to hide the transfers behind: not where buckets are late, unless all of the step's compute were too little."""
    buckets = evidence.buckets
    if not evidence.of_gradients or not evidence.several or buckets[["done", "transfer_us"]].isna().any().any():
        return
    # `done` is a share of what is computed before the optimizer, which waits for all gradients and hides none.
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


def buckets_told(evidence: Evidence) -> str:
    """Size of each bucket and when it was ready, such as ``4.00 MB at 20%, 4.00 MB at 50%``; empty where that is not known."""
    buckets = evidence.buckets
    if not evidence.of_gradients or buckets.empty or buckets["done"].isna().any():
        return ""
    when = ", ".join(
        f"{_bytes(size)} at {done:.0%}"
        for size, done in buckets[["bytes", "done"]].head(_NAMED).itertuples(index=False)
    )
    return when + (f" and {len(buckets) - _NAMED} more" if len(buckets) > _NAMED else "")


def _ready(done: object) -> str:
    known = None if pd.isna(done) else float(done)  # type: ignore[arg-type, call-overload]
    return "" if known is None else f", ready when {known:.0%} of the step's compute is done"


def _bytes(size: float) -> str:
    unit = choose_unit("bytes", [float(size)])
    return f"{show(float(size), unit)} {unit.label}"
