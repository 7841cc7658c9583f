"""Why little of a cell's communication is hidden: each reason with the measured number, and what to change."""

from collections.abc import Iterator

from dpscope.analysis.findings.actions import in_a_script
from dpscope.analysis.findings.overlap_evidence import (
    MOST,
    Evidence,
    OverlapReason,
    bucket_reasons,
    bucket_times,
    little_computing,
    overlap_evidence,
)
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.cell_findings import SUSPECT
from dpscope.analysis.text.units import show_time
from dpscope.analysis.traces.ranks.ledger import ledger_of
from dpscope.analysis.traces.reading.table import as_table
from dpscope.profiling.records.finding import Finding, Severity, counted
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.strategies import ddp_arguments

LITTLE = 0.3  # hidden share of communication, below which there is a finding...
NOTABLE = 0.05  # ...if at least this share of a step is exposed
_BEFORE = 0.3  # of communication, in broadcasts or all-gathers that compute waits for
_NOTHING_LAUNCHED = 0.3  # of a step, in which a device has nothing to run


def no_overlap_finding(data: CellData) -> Iterator[Finding]:
    """`no_overlap` with its reasons if a cell hides little of its communication."""
    evidence = overlap_evidence(data)
    if evidence is None:
        return
    communication, hidden = evidence.means["communication_us"], evidence.means["hidden_us"]
    notable = evidence.means["exposed_us"] >= NOTABLE * evidence.means["step_us"]
    if not communication > 0 or hidden >= LITTLE * communication or not notable:
        return
    reasons = list(_reasons(evidence))
    share = f"{hidden / communication:.0%} of its communication ({show_time(communication)} a step)"
    text = f"{data.cell.name}: only {share} is hidden"
    severity: Severity = "info"
    if reasons:
        advice = reasons[0].advice if data.knows_options else in_a_script(reasons[0].advice)
        text = f"{text}, because {'; '.join(reason.text for reason in reasons)}"
        severity = "warning" if data.on_device or any(reason.of_script for reason in reasons) else "info"
    else:
        when = bucket_times(evidence)
        ready = f" (buckets ready: {when} of the step's compute)" if when else ""
        text = f"{text}, and the traces do not show why{ready}"
        advice = "compare --overlap on,off and several values of --bucket-mb"
        if evidence.sharded:
            advice = "try blocks of other sizes for fully_shard, and prefetching (set_modules_to_forward_prefetch)"
        elif not data.cell.traits.reduces_early:
            advice = (
                "check what runs during each collective on the timelines of all ranks: dpscope merge joins their traces"
            )
        elif not data.knows_options:
            advice = "try several values of DDP's bucket_cap_mb"
    yield RunCode.NO_OVERLAP.finding(text, advice, severity)


def overlap_reasons(data: CellData) -> list[OverlapReason]:
    """The reasons that a cell's traces show, the strongest first, however much is hidden."""
    evidence = overlap_evidence(data)
    return [] if evidence is None else list(_reasons(evidence))


def _reasons(evidence: Evidence) -> Iterator[OverlapReason]:
    yield from _streams(evidence)
    yield from _late_rank(evidence)
    yield from bucket_reasons(evidence)
    yield from _waited_for(evidence)
    exposed, waiting = evidence.means["exposed_us"], evidence.means["exposed_wait_us"]
    if waiting >= MOST * exposed > 0 and evidence.data.straggler is None:
        yield OverlapReason(
            "uneven_ranks",
            f"{show_time(waiting)} of the {show_time(exposed)} exposed is waiting for the last rank; no single rank is "
            "significantly late",
            "look for what differs between ranks from step to step: input lengths, the loader, other load on the machine",
        )
    yield from _unused_parameters(evidence)
    unlaunched, step = evidence.means["unlaunched_us"], evidence.means["step_us"]
    if unlaunched >= _NOTHING_LAUNCHED * step:
        yield OverlapReason(
            "host_bound",
            f"the host launches work too late: the devices have nothing to run for {show_time(unlaunched)} of a "
            f"{show_time(step)} step",
            "give the host less to launch (larger batches, compilation, fewer small operators), or find out what it waits for: "
            "data, .item(), synchronize()",
        )
    yield from little_computing(evidence)
    if not evidence.data.on_device:
        queue, processes = evidence.communication["queue_us"].dropna(), evidence.data.cell.processes
        waits = f"collectives wait {show_time(float(queue.sum()) / evidence.steps)} a step for a free thread"
        yield OverlapReason(
            "gloo",
            f"gloo's threads share the cores with compute ({counted(processes, 'process')})"
            f"{f', and {waits}' if len(queue) else ''}",
            "no action needed: on GPUs, collectives do not use the CPU's cores",
        )


def _streams(evidence: Evidence) -> Iterator[OverlapReason]:
    """Collectives on a stream that also computes; else launched compute that waits although buckets have separate streams."""
    communication, exposed = evidence.communication, evidence.means["exposed_us"]
    share = 0.0
    if "compute_stream" in communication and evidence.data.on_device:
        on_stream = communication["compute_stream"].fillna(False).astype(bool)
        total = float(communication["duration_us"].sum() or 1.0)
        share = float(communication.loc[on_stream, "duration_us"].sum()) / total
    if share >= MOST:
        yield OverlapReason(
            "compute_stream",
            f"{share:.0%} of it runs on a stream that also computes, where one waits for the other",
            "launch collectives on a separate stream: use async_op=True, or the streams that DDP and FSDP create",
            of_script=True,
        )
        return
    if "held_us" not in communication or communication["held_us"].isna().all():
        return
    held = float(communication["held_us"].fillna(0.0).sum()) / evidence.steps
    if not held >= MOST * exposed > 0:
        return
    until = f"one of the {counted(len(evidence.buckets), 'bucket')} is reduced"
    text = (
        f"compute that was already launched waits for {show_time(min(held, exposed))} of the {show_time(exposed)} exposed, "
        f"until {until if evidence.of_gradients else 'a collective ends'}"
    )
    if SUSPECT in {rank.nccl_engine for _, rank in evidence.data.ranks}:
        text = f"{text}; {SUSPECT} ran the collectives, which may make the compute stream wait for each"
        yield OverlapReason("engine", text, "compare the engines with --nccl-engine default,legacy")
        return
    yield OverlapReason(
        "held_compute",
        text,
        "find out what makes the compute stream wait: a communication hook, SyncBatchNorm, wait() or synchronize() during the "
        "backward pass, CUDA_DEVICE_MAX_CONNECTIONS=1, or no multiprocessors left next to the collective",
        of_script=True,
    )


def _late_rank(evidence: Evidence) -> Iterator[OverlapReason]:
    exposed, late = evidence.means["exposed_us"], evidence.data.straggler
    if late is None:
        return
    # By definition broadcasts have no wait, but with a straggler their exposed time is waiting for it.
    ledger = ledger_of(as_table(evidence.data.critical_windows), as_table(evidence.data.exposed_parts))
    broadcasts = ledger.other_by_kind_us.get("broadcast", 0.0) if ledger is not None else 0.0
    waiting = evidence.means["exposed_wait_us"] + broadcasts
    if waiting >= MOST * exposed > 0:
        yield OverlapReason(
            "late_rank",
            f"{show_time(waiting)} of the {show_time(exposed)} exposed is waiting for a late rank (rank {late.rank} in "
            f"{late.steps} of {counted(late.of_steps, 'step')})",
            f"check what rank {late.rank} does before its collectives: overlap cannot hide its lateness",
            of_script=True,
        )


def _waited_for(evidence: Evidence) -> Iterator[OverlapReason]:
    """Collectives that the following compute waits for: DDP's broadcasts of buffers, FSDP's all-gathers."""
    communication, data = evidence.communication, evidence.data
    buffers = " of buffers, which the forward pass waits for" if evidence.of_gradients else ""
    keep = "find out what is broadcast in every step, and whether each rank could keep its own copy"
    if data.cell.traits.identified:
        keep = "use --broadcast-buffers off if each rank may keep its own buffers"
    reshard = "--strategy fsdp-no-reshard if memory allows, " if data.cell.traits.reshards else ""
    larger = f"try larger blocks, {reshard}or prefetching (set_modules_to_forward_prefetch)"
    total = float(communication["duration_us"].sum())
    for kind, called, advice, late_us in (
        ("broadcast", f"broadcasts{buffers}", keep, data.broadcast_waits_us),
        ("all_gather", "all-gathers, which the next block waits for", larger, 0.0),
    ):
        of_kind = communication.loc[communication["kind"] == kind, "duration_us"]
        share = (float(of_kind.sum()) - late_us * evidence.steps) / total if total else 0.0
        if share >= _BEFORE:
            yield OverlapReason(kind, f"{share:.0%} of it is {called}", advice)


def _unused_parameters(evidence: Evidence) -> Iterator[OverlapReason]:
    """DDP then all-reduces a map with 4 bytes per parameter tensor after the last bucket."""
    if ddp_arguments(evidence.data.cell.options.ddp_args).get("find_unused_parameters"):
        tensors = max((len(rank.model.gradient_shapes) for _, rank in evidence.data.ranks), default=0)
        maps = int((evidence.communication["bytes"] == 4 * tensors).sum()) if tensors else 0
        reduced = f" and all-reduce a map of {4 * tensors} B ({maps / evidence.steps:.0f} per step)" if maps else ""
        yield OverlapReason(
            "find_unused_parameters",
            f"find_unused_parameters makes DDP traverse the whole graph before each backward pass{reduced}",
            "omit find_unused_parameters if every parameter is used, or use --static-graph",
        )
