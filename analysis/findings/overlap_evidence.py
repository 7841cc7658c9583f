"""What a cell's traces show about overlap, and the reasons for little of it that the gradient buckets show."""

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from dpscope.analysis.runs.cell_data import STEP_KEYS, CellData
from dpscope.analysis.text.units import show_bytes, show_time
from dpscope.analysis.traces.steps.collectives import REDUCING
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.strategies import is_known

_SMALL_BUCKET = 0.01  # of the largest bucket's bytes: a metric or the map of unused parameters rather than gradients
MOST = 0.5  # of a whole

LATE = 0.8  # of a step's compute: little is left to hide a bucket that is ready later


@dataclass(frozen=True)
class OverlapReason:
    """`text` includes the measured number, `advice` is what to change."""

    name: str
    text: str
    advice: str
    of_script: bool = False  # caused by how the training is set up, on any hardware


@dataclass(frozen=True)
class Evidence:
    """A cell's whole traced steps: `means` over ranks and steps in microseconds, `buckets` with a row per reduction of a step.

    `buckets`: mean bytes, the share of the step's compute that is done when ready (`done`), transfer, and the share of that
    compute that one compiled graph did just before (`compiled_share`). Rows are in launch order, without the `small_buckets`
    that carry almost no bytes. `communication` has a row per collective.
    """

    data: CellData
    means: dict[str, float]
    buckets: pd.DataFrame
    communication: pd.DataFrame
    small_buckets: int = 0

    @property
    def several(self) -> bool:
        """Whether gradients are reduced in more than one message."""
        return len(self.buckets) > 1

    @property
    def sharded(self) -> bool:
        """Whether gradients are reduced to shards, as in FSDP: by the cell's strategy, or by its collectives."""
        reduced = self.communication["kind"].isin(REDUCING)
        seen = bool(reduced.any()) and (self.communication.loc[reduced, "kind"] == "reduce_scatter").any()
        return self.data.cell.traits.sharded or bool(seen)

    @property
    def of_gradients(self) -> bool:
        """Whether `buckets` hold gradients; in tensor or pipeline parallel traces other collectives run during the step.

        A job of unknown parallelism reduces gradients if all of its reductions follow the backward pass.
        """
        done = self.buckets["done"]
        after_backward = len(done) > 0 and not done.isna().any() and float(done.min()) >= LATE
        return self.data.cell.traits.identified or self.sharded or after_backward

    @property
    def steps(self) -> int:
        """Number of steps with communication, over all ranks and repeats."""
        keys = [name for name in ("repeat", "rank", "step") if name in self.communication]
        return max(1, self.communication.groupby(keys, dropna=False).ngroups)


def overlap_evidence(data: CellData) -> Evidence | None:
    """The evidence for a cell with several processes whose communication is known; None for other cells."""
    if data.cell.traits.one_process or data.cell.devices < 2 or not data.communication_known:
        return None
    windows = data.whole_windows
    if windows.empty or data.collectives.empty:
        return None
    names = ("communication_us", "hidden_us", "exposed_us", "step_us", "compute_us", "idle_us")
    if windows[list(names)].isna().all().any():
        return None
    means = {name: float(windows[name].mean()) for name in names}
    for name in ("exposed_wait_us", "unlaunched_us", "optimizer_us"):  # not known for every trace
        means[name] = float(windows[name].fillna(0.0).mean()) if name in windows else 0.0
    buckets = _reductions(data.whole_collectives)
    main = buckets["bytes"] >= _SMALL_BUCKET * buckets["bytes"].max()
    return Evidence(data, means, buckets[main].reset_index(drop=True), data.whole_collectives, int((~main).sum()))


def _reductions(communication: pd.DataFrame) -> pd.DataFrame:
    """Means over ranks and steps of a step's reductions by position; steps with an unusual number of them are left out."""
    columns = ["bytes", "done", "transfer_us", "compiled_share"]
    reduced = communication[communication["kind"].isin(list(REDUCING)) & communication["bytes"].notna()]
    if reduced.empty or "compute_done" not in reduced:
        return pd.DataFrame(columns=columns)
    ordered = reduced.sort_values([*STEP_KEYS, "start_us"], kind="stable")
    groups = ordered.groupby(STEP_KEYS, dropna=False)
    place, count = groups.cumcount(), groups["bytes"].transform("size")
    frame = ordered.assign(place=place, done=ordered["compute_done"].astype("Float64"))[count == count.mode().iloc[0]]
    frame = frame.assign(bytes=frame["bytes"].astype("Float64"), compiled_share=frame.get("compiled_share", 0.0))
    means: pd.DataFrame = frame.groupby("place")[columns].mean().reset_index(drop=True)
    return means


_SMALL = 1 << 20  # bytes: the size of DDP's first bucket
_NAMED = 4  # buckets in a message


def bucket_reasons(evidence: Evidence) -> Iterator[OverlapReason]:
    """The reasons that the buckets show, the strongest first."""
    buckets, options = evidence.buckets, evidence.data.cell.options
    if not evidence.of_gradients or buckets.empty:
        return
    sizes, total, last = buckets["bytes"], float(buckets["bytes"].sum()), float(buckets["bytes"].iloc[-1])
    done = buckets["done"].iloc[-1]
    ready = "" if pd.isna(done) else f", ready when {float(done):.0%} of the step's compute is done"
    if len(buckets) == 1 and evidence.sharded:
        yield OverlapReason(
            "one_block",
            f"all gradients are reduced in one reduce-scatter of {show_bytes(last)}{ready}",
            "apply fully_shard to each block of the model as well: blocks are then gathered and reduced while others compute",
            of_script=True,
        )
    elif len(buckets) == 1:
        held = f"all gradients are reduced in one bucket of {show_bytes(last)}"
        if evidence.small_buckets:
            held = f"one bucket holds nearly all bytes ({show_bytes(last)})"
        requested = options.overlap == "off"
        quarter = max(0.1, round(last / 4 / 2**20, 1))
        advice = f"smaller buckets let part of it be reduced earlier (--bucket-mb {quarter:g})"
        if requested:
            advice = "--overlap on reduces gradients during the backward pass"
        elif last < _SMALL:
            few = "so few bytes are bound by latency at any bucket size"
            advice = f"{few}: a larger batch or accumulation lowers its share of a step"
        text = f"{held}{ready}{', because of --overlap off' if requested else ''}"
        yield OverlapReason("one_bucket", text, advice, of_script=not requested and last >= _SMALL)
    elif not evidence.sharded and last > MOST * total:
        yield OverlapReason(
            "last_bucket",
            f"the last of {counted(len(sizes), 'bucket')} holds {last / total:.0%} of the bytes ({show_bytes(last)} of "
            f"{show_bytes(total)}){ready}",
            "smaller buckets (--bucket-mb) let part of it be reduced earlier; the first layers' gradients still come last",
            of_script=True,
        )
    if _ready_late(evidence):
        yield _late_buckets(evidence)


def _ready_late(evidence: Evidence) -> bool:
    """Whether little compute is left to hide even the first of several buckets."""
    done = evidence.buckets["done"]
    return evidence.several and not done.isna().any() and float(done.iloc[0]) >= LATE


def _late_buckets(evidence: Evidence) -> OverlapReason:
    """`compiled_graph` if the first bucket would not be late had the graph returned its gradients at its start."""
    first, traits = evidence.buckets.iloc[0], evidence.data.cell.traits
    graph = 0.0 if pd.isna(first["compiled_share"]) else float(first["compiled_share"])
    text = f"its buckets are ready only when the step's compute is nearly done: {bucket_times(evidence)}"
    if float(first["done"]) - graph < LATE:
        text = f"{text}; one compiled backward graph, {graph:.0%} of that compute, returns their gradients only when it ends"
        split = "let torch.compile split the graph at DDP's buckets (torch._dynamo.config.optimize_ddp = True, its default), or "
        of_ddp = is_known(evidence.data.cell.strategy)  # False if the traces do not show the parallelism
        return OverlapReason(
            "compiled_graph", text, f"{split if of_ddp else ''}compile each block separately", of_script=True
        )
    advice = "reduce gradients during the backward pass, as DistributedDataParallel does, rather than after it"
    if traits.reduces_early or evidence.sharded:
        advice = (
            "find out why gradients are late: one layer with most of the compute, or weights shared by several layers"
        )
    return OverlapReason("late_buckets", text, advice, of_script=True)


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
