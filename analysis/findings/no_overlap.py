"""Why little of a cell's communication is hidden: each reason with the number in the trace that shows it, and what to change."""

from collections.abc import Iterator

from dpscope.analysis.findings.bucket_reasons import bucket_reasons, buckets_told, little_computing
from dpscope.analysis.findings.overlap_evidence import MOST, Evidence, OverlapReason, overlap_evidence
from dpscope.analysis.findings.script_advice import in_a_script
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.engine_check import SUSPECT
from dpscope.analysis.text.units import show_time
from dpscope.analysis.traces.ranks.ledger import ledger_of
from dpscope.analysis.traces.reading.table import as_table
from dpscope.profiling.records.ddp_arguments import ddp_arguments
from dpscope.profiling.records.finding import Finding, Severity, counted
from dpscope.profiling.records.run_codes import RunCode

LITTLE = 0.3  # of communication that is hidden: below it the reasons are told...
WORTH_TELLING = 0.05  # ...where at least this much of a step is exposed
_BEFORE = 0.3  # of communication, in broadcasts or all-gathers that something waits for
_NOTHING_LAUNCHED = 0.3  # of a step, in which a device has nothing to run


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
    share = f"{hidden / communication:.0%} of its communication ({show_time(communication)} a step)"
    told = f"{data.cell.name}: only {share} is hidden"
    if not reasons:
        when = buckets_told(evidence)
        seen = f" (buckets ready: {when} of the step's compute)" if when else ""
        return [
            RunCode.NO_OVERLAP.finding(
                f"{told}, and the traces do not show why{seen}", _to_try(evidence), severity="info"
            )
        ]
    because = "; ".join(reason.text for reason in reasons)
    severity: Severity = "warning" if data.on_device or any(reason.of_script for reason in reasons) else "info"
    advice = reasons[0].advice if data.knows_options else in_a_script(reasons[0].advice)
    return [RunCode.NO_OVERLAP.finding(f"{told}, because {because}", advice, severity)]


def _to_try(evidence: Evidence) -> str:
    """What may tell the reason where the traces do not."""
    if evidence.sharded:
        return "try blocks of other sizes for fully_shard, and prefetching (set_modules_to_forward_prefetch)"
    if not evidence.data.cell.traits.reduces_early:
        return "see what runs beside each collective on all ranks' timelines: dpscope merge makes one trace of them"
    if not evidence.data.knows_options:
        return "try several values of DDP's bucket_cap_mb"
    return "compare --overlap on,off and several values of --bucket-mb"


def overlap_reasons(data: CellData) -> list[OverlapReason]:
    """The reasons that a cell's traces show, the strongest first, whether or not it hides much."""
    evidence = overlap_evidence(data)
    return [] if evidence is None else list(_reasons(evidence))


def _reasons(evidence: Evidence) -> Iterator[OverlapReason]:
    yield from _shared_stream(evidence)
    yield from _held(evidence)
    yield from _late_rank(evidence)
    yield from bucket_reasons(evidence)
    yield from _waited_for(evidence)
    yield from _uneven_ranks(evidence)
    yield from _unused_parameters(evidence)
    yield from _host_bound(evidence)
    yield from little_computing(evidence)
    yield from _gloo(evidence)


def _shared_stream(evidence: Evidence) -> Iterator[OverlapReason]:
    share = _on_compute_stream(evidence)
    if share >= MOST:
        yield OverlapReason(
            "compute_stream",
            f"{share:.0%} of it runs on a stream that also computes, where one waits for the other",
            "launch collectives on a stream of their own: use async_op=True, or the streams that DDP and FSDP create",
            of_script=True,
        )


def _on_compute_stream(evidence: Evidence) -> float:
    """The share of the collectives' time that is on a stream that also computes."""
    own = evidence.communication
    if "compute_stream" not in own or not evidence.data.on_device:
        return 0.0
    on_stream = own["compute_stream"].fillna(False).astype(bool)
    return float(own.loc[on_stream, "duration_us"].sum()) / float(own["duration_us"].sum() or 1.0)


def _held(evidence: Evidence) -> Iterator[OverlapReason]:
    """Compute that was launched and waits while buckets are reduced: nothing holds it if they have streams of their own."""
    own = evidence.communication
    if "held_us" not in own or own["held_us"].isna().all() or _on_compute_stream(evidence) >= MOST:
        return
    held, exposed = float(own["held_us"].fillna(0.0).sum()) / evidence.steps, evidence.means["exposed_us"]
    if not held >= MOST * exposed > 0:
        return
    suspect = SUSPECT in {rank.nccl_engine for _, rank in evidence.data.ranks}
    until = f"one of the {counted(len(evidence.buckets), 'bucket')} is reduced"
    text = (
        f"compute that was already launched stands still for {show_time(min(held, exposed))} of the {show_time(exposed)} "
        f"exposed, until {until if evidence.of_gradients else 'a collective ends'}"
    )
    if suspect:
        text = f"{text}; {SUSPECT} ran them, which may make the compute stream wait for each"
        yield OverlapReason("engine", text, "compare the engines with --nccl-engine default,legacy")
        return
    yield OverlapReason(
        "held_compute",
        text,
        "find what makes the compute stream wait: a communication hook, SyncBatchNorm, wait() or synchronize() during the "
        "backward pass, CUDA_DEVICE_MAX_CONNECTIONS=1, or no multiprocessors left beside the collective",
        of_script=True,
    )


def _late_rank(evidence: Evidence) -> Iterator[OverlapReason]:
    exposed, late = evidence.means["exposed_us"], evidence.data.straggler
    if late is None:
        return
    # Exposed broadcasts count if one rank is behind them: they are no waits by definition.
    ledger = ledger_of(as_table(evidence.data.critical_windows), as_table(evidence.data.exposed_parts))
    broadcasts = ledger.other_by_kind_us.get("broadcast", 0.0) if ledger is not None else 0.0
    waiting = evidence.means["exposed_wait_us"] + broadcasts
    if waiting >= MOST * exposed > 0:
        yield OverlapReason(
            "late_rank",
            f"{show_time(waiting)} of the {show_time(exposed)} exposed is waiting for a late rank (rank {late.rank} in "
            f"{late.steps} of {counted(late.of_steps, 'step')})",
            f"see what rank {late.rank} does before its collectives: overlap cannot hide its lateness",
            of_script=True,
        )


def _uneven_ranks(evidence: Evidence) -> Iterator[OverlapReason]:
    exposed, waiting = evidence.means["exposed_us"], evidence.means["exposed_wait_us"]
    if waiting >= MOST * exposed > 0 and evidence.data.straggler is None:
        yield OverlapReason(
            "uneven_ranks",
            f"{show_time(waiting)} of the {show_time(exposed)} exposed is waiting for whichever rank comes last; no rank is "
            "shown to be the late one",
            "look for what differs between ranks from step to step: lengths of inputs, the loader, other load on the machine",
        )


def _waited_for(evidence: Evidence) -> Iterator[OverlapReason]:
    """Collectives that the next computing waits for: DDP's broadcasts of buffers, FSDP's all-gathers."""
    own = evidence.communication
    total = float(own["duration_us"].sum())
    late_us = {"broadcast": evidence.data.broadcast_waits_us}
    for kind, called, advice in (
        (
            "broadcast",
            "broadcasts" + (" of buffers, which the forward pass waits for" if evidence.of_gradients else ""),
            "use --broadcast-buffers off if each rank may keep its own buffers"
            if evidence.data.cell.traits.identified
            else "find out what is broadcast in every step, and whether each rank could keep its own",
        ),
        (
            "all_gather",
            "all-gathers, which the next block waits for",
            "try larger blocks, --strategy fsdp-no-reshard if memory allows, or prefetching (set_modules_to_forward_prefetch)",
        ),
    ):
        of_kind = own.loc[own["kind"] == kind, "duration_us"]
        share = (float(of_kind.sum()) - late_us.get(kind, 0.0) * evidence.steps) / total if total else 0.0
        if share >= _BEFORE:
            yield OverlapReason(kind, f"{share:.0%} of it is {called}", advice)


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
    steps = evidence.steps
    shown = f" and all-reduce a map of {4 * tensors} B ({len(maps) / steps:.0f} per step)" if len(maps) else ""
    yield OverlapReason(
        "find_unused_parameters",
        f"find_unused_parameters makes DDP walk the whole graph before each backward pass{shown}",
        "omit find_unused_parameters if every parameter is used, or use --static-graph",
    )


def _host_bound(evidence: Evidence) -> Iterator[OverlapReason]:
    unlaunched, step = evidence.means["unlaunched_us"], evidence.means["step_us"]
    if unlaunched >= _NOTHING_LAUNCHED * step:
        yield OverlapReason(
            "host_bound",
            f"the host launches work too late: the devices have nothing to run for {show_time(unlaunched)} of a "
            f"{show_time(step)} step",
            "give the host less to launch (larger batches, compilation, fewer small operators), or find what it waits for: data, "
            ".item(), synchronize()",
        )


def _gloo(evidence: Evidence) -> Iterator[OverlapReason]:
    if evidence.data.on_device:
        return
    processes = evidence.data.cell.processes
    queue = evidence.communication["queue_us"].dropna()
    steps = evidence.steps
    queued = (
        f", and collectives wait {show_time(float(queue.sum()) / steps)} a step for a free thread" if len(queue) else ""
    )
    yield OverlapReason(
        "gloo",
        f"gloo's threads share the cores with compute ({counted(processes, 'process')}){queued}",
        "no action needed: on GPUs, collectives do not use the CPU's cores",
    )
