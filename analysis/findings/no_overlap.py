"""Why little of a cell's communication is hidden: each reason with the number in the trace that shows it, and what to change."""

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from dpscope.analysis.findings.overlap_evidence import Evidence, overlap_evidence
from dpscope.analysis.findings.straggler import straggler_of, waits_in_broadcasts_us
from dpscope.analysis.runs.engine_check import SUSPECT
from dpscope.analysis.runs.run_data import CellData
from dpscope.analysis.text.units import choose_unit, show, show_time
from dpscope.profiling.records.ddp_arguments import ddp_arguments
from dpscope.profiling.records.finding import Finding, Severity
from dpscope.profiling.records.matrix import SHARDED
from dpscope.profiling.records.run_codes import RunCode

LITTLE = 0.3  # of communication that is hidden: below it the reasons are told...
WORTH_TELLING = 0.05  # ...where at least this much of a step is exposed
_MOST = 0.5  # a part that most of the whole is in
_LATE = 0.8  # of a step's computing: what is ready later has little left to hide behind
_BEFORE = 0.3  # of communication, in broadcasts or all-gathers that something waits for
_IDLE = 0.3  # of a step, in which a device neither computes nor communicates
_SMALL = 1 << 20  # bytes: DDP's own first bucket
_TOO_SMALL = (
    "so few bytes are bound by latency, whatever the bucket size: a larger batch or accumulation lowers its share"
)
_NAMED = 4  # buckets in a message
_ARGUMENTS = (
    ("--bucket-mb ", "DDP's bucket_cap_mb="),
    ("--bucket-mb", "DDP's bucket_cap_mb"),
    ("--broadcast-buffers off", "DDP's broadcast_buffers=False"),
    ("--static-graph", "DDP's static_graph"),
    ("--strategy fsdp-no-reshard", "reshard_after_forward=False"),
    ("--nccl-engine default,legacy", "and without TORCH_DIST_USE_NCCL2=0"),
)


@dataclass(frozen=True)
class OverlapReason:
    """`text` holds the number that shows it, `advice` what to change."""

    name: str
    text: str
    advice: str
    of_script: bool = False  # its cause lies in how the training is set up, whatever it runs on


def no_overlap_finding(data: CellData) -> list[Finding]:
    """`no_overlap` with its reasons, where a cell hides little of its communication; else nothing."""
    evidence = overlap_evidence(data)
    if evidence is None:
        return []
    hidden, exposed, step = (evidence.means[name] for name in ("hidden_us", "exposed_us", "step_us"))
    communication = evidence.means["communication_us"]
    if not communication > 0 or hidden >= LITTLE * communication or exposed < WORTH_TELLING * step:
        return []
    reasons = list(_reasons(evidence))
    told = (
        f"{data.cell.name} hides {hidden / communication:.0%} of its communication ({show_time(communication)} a step)"
    )
    if not reasons:
        return [
            RunCode.NO_OVERLAP.finding(f"{told}, and the traces do not show why", severity="info"),
        ]
    because = "; ".join(reason.text for reason in reasons)
    severity: Severity = "warning" if data.on_device or any(reason.of_script for reason in reasons) else "info"
    advice = reasons[0].advice if data.knows_options else _in_a_script(reasons[0].advice)
    return [RunCode.NO_OVERLAP.finding(f"{told}, because {because}", advice, severity)]


def _in_a_script(advice: str) -> str:
    """Advice with torch's own arguments in place of dpscope's options, which a script does not have."""
    for option, argument in _ARGUMENTS:
        advice = advice.replace(option, argument)
    return advice


def overlap_reasons(data: CellData) -> list[OverlapReason]:
    """The reasons that a cell's traces show, the strongest first, whether or not it hides much."""
    evidence = overlap_evidence(data)
    return [] if evidence is None else list(_reasons(evidence))


def _reasons(evidence: Evidence) -> Iterator[OverlapReason]:
    yield from _shared_stream(evidence)
    yield from _engine(evidence)
    yield from _late_rank(evidence)
    yield from _one_bucket(evidence)
    yield from _last_bucket(evidence)
    yield from _late_buckets(evidence)
    yield from _waited_for(evidence)
    yield from _unused_parameters(evidence)
    yield from _host_bound(evidence)
    yield from _nothing_to_hide_behind(evidence)
    yield from _gloo(evidence)


def _shared_stream(evidence: Evidence) -> Iterator[OverlapReason]:
    own = evidence.communication
    if "compute_stream" not in own or not evidence.data.on_device:
        return
    on_stream = own["compute_stream"].fillna(False).astype(bool)
    share = float(own.loc[on_stream, "duration_us"].sum()) / float(own["duration_us"].sum() or 1.0)
    if share >= _MOST:
        yield OverlapReason(
            "compute_stream",
            f"{share:.0%} of it runs on a stream that also computes, where one waits for the other",
            "launch collectives on a stream of their own: use async_op=True, or the streams that DDP and FSDP create",
        )


def _engine(evidence: Evidence) -> Iterator[OverlapReason]:
    ran = {rank.nccl_engine for _, rank in evidence.data.ranks}
    if SUSPECT in ran and evidence.several:
        yield OverlapReason(
            "engine",
            f"{SUSPECT} ran its {len(evidence.buckets)} buckets and may make the compute stream wait for each (not confirmed "
            "on hardware)",
            "compare the engines with --nccl-engine default,legacy",
        )


def _late_rank(evidence: Evidence) -> Iterator[OverlapReason]:
    exposed, late = evidence.means["exposed_us"], straggler_of(evidence.data)
    # What is waited for in broadcasts counts where one rank is behind it: they are no waits by definition.
    waiting = evidence.means["exposed_wait_us"] + (waits_in_broadcasts_us(evidence.data) if late else 0.0)
    waiting = min(waiting, exposed)
    if not exposed > 0 or waiting < _MOST * exposed:
        return
    for_whom = f" (rank {late.rank} in {late.steps} of {late.of_steps} steps)" if late else ""
    yield OverlapReason(
        "late_rank",
        f"{show_time(waiting)} of the {show_time(exposed)} exposed is waiting for a late rank{for_whom}",
        f"see what {f'rank {late.rank}' if late else 'the late rank'} does before its collectives: overlap cannot "
        "hide its lateness",
        of_script=True,
    )


def _one_bucket(evidence: Evidence) -> Iterator[OverlapReason]:
    buckets, cell = evidence.buckets, evidence.data.cell
    if len(buckets) != 1 or cell.strategy in SHARDED:
        return
    size = float(buckets["bytes"].iloc[0])
    ready = _ready(buckets["done"].iloc[0])
    asked = ", because of --overlap off" if cell.options.overlap == "off" else ""
    if size < _SMALL and not asked:
        yield OverlapReason("one_bucket", f"all gradients travel in one bucket of {_bytes(size)}{ready}", _TOO_SMALL)
        return
    advice = (
        "--overlap on reduces gradients during the backward pass"
        if asked
        else f"smaller buckets let part of it be reduced earlier (--bucket-mb {max(0.1, round(size / 4 / 2**20, 1)):g})"
    )
    text = f"all gradients travel in one bucket of {_bytes(size)}{ready}{asked}"
    yield OverlapReason("one_bucket", text, advice, of_script=not asked)


def _last_bucket(evidence: Evidence) -> Iterator[OverlapReason]:
    if not evidence.several or evidence.data.cell.strategy in SHARDED:
        return
    sizes = evidence.buckets["bytes"]
    share = float(sizes.iloc[-1] / sizes.sum())
    if share > _MOST:
        yield OverlapReason(
            "last_bucket",
            f"the last of {len(sizes)} buckets holds {share:.0%} of the bytes ({_bytes(sizes.iloc[-1])} of "
            f"{_bytes(sizes.sum())}){_ready(evidence.buckets['done'].iloc[-1])}",
            "smaller buckets (--bucket-mb) let part of it be reduced earlier; the first layers' gradients still come last",
            of_script=True,
        )


def _late_buckets(evidence: Evidence) -> Iterator[OverlapReason]:
    buckets, options = evidence.buckets, evidence.data.cell.options
    if not evidence.several or buckets["done"].isna().any() or float(buckets["done"].iloc[0]) < _LATE:
        return
    when = ", ".join(
        f"{_bytes(size)} at {done:.0%}"
        for size, done in buckets[["bytes", "done"]].head(_NAMED).itertuples(index=False)
    )
    more = f" and {len(buckets) - _NAMED} more" if len(buckets) > _NAMED else ""
    static = options.static_graph == "on"
    yield OverlapReason(
        "late_buckets",
        f"its buckets are ready only when the step's compute is nearly done: {when}{more}"
        + (" (with a static graph)" if static else ""),
        "find out why gradients come late: a graph compiled as a whole, static_graph, or one layer with most of the compute"
        if not static
        else "compare with a run without --static-graph",
    )


def _waited_for(evidence: Evidence) -> Iterator[OverlapReason]:
    """Collectives that the next computing waits for: DDP's broadcasts of buffers, FSDP's all-gathers."""
    own = evidence.communication
    total = float(own["duration_us"].sum())
    late_us = {"broadcast": waits_in_broadcasts_us(evidence.data)}
    for kind, called, advice in (
        (
            "broadcast",
            "broadcasts of buffers, which the forward pass waits for",
            "use --broadcast-buffers off if each rank may keep its own buffers",
        ),
        (
            "all_gather",
            "all-gathers, which the next block waits for",
            "try larger blocks, --strategy fsdp-no-reshard if memory allows, or prefetching (set_modules_to_forward_prefetch)",
        ),
    ):
        of_kind = own.loc[own["kind"] == kind, "duration_us"]
        share = (float(of_kind.sum()) - late_us.get(kind, 0.0) * _steps(own)) / total if total else 0.0
        if share >= _BEFORE:
            yield OverlapReason(kind, f"{share:.0%} of it is {called}", advice)


def _steps(communication: pd.DataFrame) -> int:
    """Steps of all ranks in which there is communication; repeats number theirs alike."""
    keys = [name for name in ("repeat", "rank", "step") if name in communication]
    return max(1, communication.groupby(keys, dropna=False).ngroups)


def _unused_parameters(evidence: Evidence) -> Iterator[OverlapReason]:
    """DDP then all-reduces a map of 4 bytes for each parameter that is a tensor, after the last bucket."""
    cell = evidence.data.cell
    if not ddp_arguments(cell.options.ddp_args).get("find_unused_parameters"):
        return
    tensors = max((len(rank.model.gradient_shapes) for _, rank in evidence.data.ranks), default=0)
    maps = (
        evidence.communication[evidence.communication["bytes"] == 4 * tensors]
        if tensors
        else evidence.communication.head(0)
    )
    steps = _steps(evidence.communication)
    shown = f" and all-reduce a map of {4 * tensors} B ({len(maps) / steps:.0f} per step)" if len(maps) else ""
    yield OverlapReason(
        "find_unused_parameters",
        f"find_unused_parameters makes DDP walk the whole graph before each backward pass{shown}",
        "omit find_unused_parameters if every parameter is used, or use --static-graph",
    )


def _host_bound(evidence: Evidence) -> Iterator[OverlapReason]:
    idle, step = evidence.means["idle_us"], evidence.means["step_us"]
    if evidence.data.on_device and idle >= _IDLE * step:
        yield OverlapReason(
            "host_bound",
            f"the devices are idle for {show_time(idle)} of a {show_time(step)} step: the host launches work too late",
            "give the host less to launch: larger batches, compilation, fewer small operators",
        )


def _nothing_to_hide_behind(evidence: Evidence) -> Iterator[OverlapReason]:
    buckets = evidence.buckets
    if buckets.empty or buckets[["done", "transfer_us"]].isna().any().any():
        return
    left = evidence.means["compute_us"] * (1 - float(buckets["done"].iloc[0]))
    needed = float(buckets["transfer_us"].sum())
    if evidence.several and left < _MOST * needed:
        yield OverlapReason(
            "little_computing",
            f"only {show_time(left)} of compute is left when the first bucket is ready, and the transfers need "
            f"{show_time(needed)}",
            "compute more per byte: a larger batch, gradient accumulation, or fp16 gradients",
        )


def _gloo(evidence: Evidence) -> Iterator[OverlapReason]:
    if evidence.data.on_device:
        return
    processes = evidence.data.cell.processes
    queue = evidence.communication["queue_us"].dropna()
    steps = _steps(evidence.communication)
    queued = (
        f", and collectives wait {show_time(float(queue.sum()) / steps)} a step for a free thread" if len(queue) else ""
    )
    yield OverlapReason(
        "gloo",
        f"gloo's threads share the cores with compute ({processes} processes){queued}",
        "no action needed: on GPUs, collectives do not use the CPU's cores",
    )


def _ready(done: object) -> str:
    known = None if pd.isna(done) else float(done)  # type: ignore[arg-type, call-overload]
    return "" if known is None else f", ready when {known:.0%} of the step's compute is done"


def _bytes(size: float) -> str:
    unit = choose_unit("bytes", [float(size)])
    return f"{show(float(size), unit)} {unit.label}"
