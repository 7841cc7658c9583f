"""Findings about a cell's communication: why little of it is hidden, each reason with its number,
and who makes others wait.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.findings.ledger_text import FEW_BYTES, JOIN_MESSAGES
from dpscope.analysis.runs.cell_findings import SUSPECT, more_samples
from dpscope.analysis.text.units import show_bytes, show_share, show_time
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.messages import is_small
from dpscope.analysis.traces.ranks.whole_steps import STEP_KEYS
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.steps.collectives import REDUCING
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run_codes import RunCode

LITTLE = 0.3  # hidden share of communication, below which there is a finding...
_NOTABLE = 0.05  # ...if at least this share of a step is exposed
_BEFORE = 0.3  # of communication, in broadcasts or all-gathers that compute waits for
_NOTHING_LAUNCHED = 0.3  # of a step, in which a device has nothing to run
# of the largest bucket's bytes: a metric or the map of unused parameters rather than gradients
_SMALL_BUCKET = 0.01
MOST = 0.5  # of a whole
LATE = 0.8  # of a step's compute: little is left to hide a bucket that is ready later
_NAMED = 4  # buckets in a message


@dataclass(frozen=True)
class Cause:
    """What to change; `in_a_script` where dpscope's options do not apply. One `of_set_up` lies in
    how the training is set up, on any hardware.
    """

    advice: str
    in_a_script: str = ""
    of_set_up: bool = True


CAUSES = {
    "compute_stream": Cause("launch collectives on a separate stream, as async_op=True does"),
    "held_compute": Cause(
        "find out what makes the compute stream wait: wait() or synchronize() during the backward "
        "pass, CUDA_DEVICE_MAX_CONNECTIONS=1, no multiprocessors left next to the collective, or "
        "under DDP a communication hook or SyncBatchNorm"
    ),
    "engine": Cause(
        f"compare the engines with --nccl-engine default,legacy: {SUSPECT} may make the compute "
        "stream wait for each collective",
        f"compare with and without TORCH_DIST_USE_NCCL2=0: {SUSPECT} may make the compute stream "
        "wait for each collective",
        of_set_up=False,
    ),
    "late_rank": Cause(
        "check what that rank does before its collectives: overlap cannot hide its lateness",
        of_set_up=False,
    ),
    "many_messages": Cause(f"send fewer messages: {JOIN_MESSAGES}"),
    "one_block": Cause(
        "apply fully_shard to each block of the model as well: blocks are then gathered and reduced "
        "while others compute"
    ),
    "overlap_off": Cause("--overlap on reduces gradients during backward", of_set_up=False),
    "few_bytes": Cause(
        "so few bytes are bound by latency at any bucket size: a larger batch or accumulation lowers "
        "its share of a step",
        of_set_up=False,
    ),
    "one_bucket": Cause(
        "smaller buckets (--bucket-mb) let part of it be reduced earlier",
        "reduce it in several smaller collectives (DDP's bucket_cap_mb), so that part of it is "
        "reduced earlier",
    ),
    "last_bucket": Cause(
        "smaller buckets (--bucket-mb) let part of it be reduced earlier; the first layers' "
        "gradients still come last",
        "smaller buckets (DDP's bucket_cap_mb) let part of it be reduced earlier; the first layers' "
        "gradients still come last",
    ),
    "compiled_graph": Cause(
        "compile each block separately, or let torch.compile split DDP's graph at its buckets "
        "(torch._dynamo.config.optimize_ddp = True, its default)"
    ),
    "late_buckets": Cause(
        "find out why gradients are late: they are reduced after the backward pass, one layer has "
        "most of the compute, or several layers share weights"
    ),
    "broadcast": Cause(
        "use --broadcast-buffers off if each rank may keep its own buffers",
        "find out what is broadcast in every step; DDP's broadcast_buffers=False lets each rank keep "
        "its own buffers",
        of_set_up=False,
    ),
    "all_gather": Cause(
        "try larger blocks or prefetching (set_modules_to_forward_prefetch), or, if memory allows, "
        "--strategy fsdp-no-reshard",
        "try larger blocks or prefetching (set_modules_to_forward_prefetch), or, if memory allows, "
        "reshard_after_forward=False",
        of_set_up=False,
    ),
    "uneven_ranks": Cause(
        "look for what differs between ranks from step to step: input lengths, the loader, other "
        "load on the machine",
        of_set_up=False,
    ),
    "find_unused_parameters": Cause(
        "omit find_unused_parameters if every parameter is used, or use --ddp-args static_graph=true",
        "omit find_unused_parameters if every parameter is used, or set DDP's static_graph=True",
        of_set_up=False,
    ),
    "host_bound": Cause(
        "give the host less to launch (larger batches, compilation, fewer small operators), or find "
        "out what it waits for: data, .item(), synchronize()",
        of_set_up=False,
    ),
    "little_computing": Cause(
        "compute more per byte: a larger batch, gradient accumulation, or fp16 gradients",
        of_set_up=False,
    ),
    "gloo": Cause("measure on GPUs, where collectives do not use the CPU's cores", of_set_up=False),
}


@dataclass(frozen=True)
class OverlapReason:
    """One of CAUSES with its number in `text`; `explains_us` is the exposed time of a step behind
    it.
    """

    name: str
    text: str
    explains_us: float = 0.0

    @property
    def cause(self) -> Cause:
        return CAUSES[self.name]


@dataclass(frozen=True)
class Evidence:
    """A cell's whole traced steps: `means` over ranks and steps in microseconds, `buckets` with a
    row per reduction of a step.

    `buckets`: mean bytes, the share of the step's compute that is done when ready (`done`),
    transfer, and the share of that compute that one compiled graph did just before
    (`compiled_share`). Rows are in launch order, without those that carry almost no bytes.
    `communication` has a row per collective.
    """

    data: Job
    means: dict[str, float]
    buckets: Table
    communication: Table

    @property
    def sharded(self) -> bool:
        """Whether gradients are reduced to shards, as in FSDP: by the cell's strategy, or by its
        collectives.
        """
        scatters = self.communication.words("kind").isin("reduce_scatter")
        return self.data.traits.sharded or bool(scatters.any())

    @property
    def of_gradients(self) -> bool:
        """Whether `buckets` hold gradients; in tensor or pipeline parallel traces other collectives
        run during the step.

        A job of unknown parallelism reduces gradients if all of its reductions follow the backward
        pass.
        """
        done = self.buckets["done"]
        after_backward = len(done) > 0 and bool((done >= LATE).all())
        return self.data.traits.identified or self.sharded or after_backward

    @property
    def ready_late(self) -> bool:
        """Whether little compute is left to hide even the first of several buckets."""
        done = self.buckets["done"]
        return len(done) > 1 and not np.isnan(done).any() and float(done[0]) >= LATE

    @property
    def reductions_us(self) -> float:
        """Exposed time of the reductions that buckets may explain, waiting left out."""
        return self.data.messages.large_us

    @property
    def steps(self) -> int:
        """Number of steps with communication, over all ranks and repeats."""
        return max(1, len(self.communication.group("repeat", "rank", "step")))


def no_overlap_finding(data: Job) -> Iterator[Finding]:
    """`no_overlap` with the first of its reasons if a cell hides little of its communication."""
    evidence = overlap_evidence(data)
    if evidence is None:
        return
    means = evidence.means
    communication_us, hidden_us = means["communication_us"], means["hidden_us"]
    notable = means["exposed_us"] >= _NOTABLE * means["step_us"]
    if not communication_us > 0 or hidden_us >= LITTLE * communication_us or not notable:
        return
    share = show_share(hidden_us / communication_us)
    text = f"{share} of {show_time(communication_us)} of communication a step is hidden"
    reasons = overlap_reasons(data)
    if not reasons:
        unknown = f"{text}; the traces do not show why"
        yield RunCode.NO_OVERLAP.finding(unknown, about=data.name)
        return
    first = reasons[0]
    serious = data.on_device or any(reason.cause.of_set_up for reason in reasons)
    yield RunCode.NO_OVERLAP.finding(
        f"{text}: {first.text}",
        first.cause.advice,
        script_action=first.cause.in_a_script,
        about=data.name,
        severity="warning" if serious else "info",
    )


def overlap_reasons(data: Job) -> list[OverlapReason]:
    """The reasons that a cell's traces show, the one that explains most exposed time first, however
    much is hidden.
    """
    evidence = overlap_evidence(data)
    if evidence is None:
        return []
    reasons = (
        *_streams(evidence),
        *_waiting(evidence),
        *_many_messages(evidence),
        *_buckets(evidence),
        *_waited_for(evidence),
        *_little_computing(evidence),
        *_of_the_host(evidence),
    )
    return sorted(reasons, key=lambda reason: -reason.explains_us)


def _streams(evidence: Evidence) -> Iterator[OverlapReason]:
    """Collectives on a stream that also computes; else launched compute that waits although buckets
    have separate streams.
    """
    communication, exposed_us = evidence.communication, evidence.means["exposed_us"]
    if evidence.data.on_device:
        duration_us = communication["duration_us"]
        on_stream_us = float(duration_us[communication.truths("compute_stream")].sum())
        share = on_stream_us / float(duration_us.sum() or 1.0)
        if share >= MOST:
            text = f"{show_share(share)} of it runs on a stream that also computes, where one waits for the other"
            yield OverlapReason("compute_stream", text, share * exposed_us)
            return
    held_us = communication["held_us"]
    if evidence.data.messages.many:  # what computes next waits for each of them, as it must
        held_us = held_us[~is_small(communication)]
    held = float(np.nansum(held_us)) / evidence.steps
    if not held >= MOST * exposed_us > 0:
        return
    held = min(held, exposed_us)
    engines = {rank.nccl_engine for _, rank in evidence.data.ranks}
    yield OverlapReason(
        "engine" if SUSPECT in engines else "held_compute",
        f"compute that was already launched waits for {show_time(held)} of the {show_time(exposed_us)} exposed, until a "
        "collective ends",
        held,
    )


def _waiting(evidence: Evidence) -> Iterator[OverlapReason]:
    """For one late rank, or for ranks that take turns."""
    data, means = evidence.data, evidence.means
    exposed_us, waiting_us = means["exposed_us"], means["exposed_wait_us"]
    late = data.late
    if late is not None and late.lateness_us >= MOST * late.exposed_us > 0:
        doubt = late.last.doubt or late.last.counts
        times = f"{show_time(late.lateness_us)} of the {show_time(late.exposed_us)}"
        text = f"{times} that each other rank exposes is waiting for rank {late.rank} ({doubt})"
        yield OverlapReason("late_rank", text, late.lateness_us)
    if late is None and waiting_us >= MOST * exposed_us > 0:
        times = f"{show_time(waiting_us)} of the {show_time(exposed_us)} exposed"
        turns = f" ({data.last_rank.turns})" if data.last_rank is not None else ""
        text = f"{times} is waiting for the last rank; no rank is always late{turns}"
        yield OverlapReason("uneven_ranks", text, waiting_us)


def _many_messages(evidence: Evidence) -> Iterator[OverlapReason]:
    messages, exposed_us = evidence.data.messages, evidence.means["exposed_us"]
    if messages.many and messages.small_us >= MOST * exposed_us > 0:
        times = f"{show_time(messages.small_us)} of {show_time(exposed_us)}"
        share = f"{show_share(messages.small_us / exposed_us)} of the exposed time ({times})"
        text = f"{share} is in small collectives, {messages.small_count:.0f} a step"
        yield OverlapReason("many_messages", text, messages.small_us)


def _waited_for(evidence: Evidence) -> Iterator[OverlapReason]:
    """Collectives that the following compute waits for: DDP's broadcasts of buffers, FSDP's
    all-gathers.
    """
    communication = evidence.communication
    total_us = float(communication["duration_us"].sum())
    late_us = evidence.data.broadcast_waits_us * evidence.steps
    for kind, waiting_us in (("broadcast", late_us), ("all_gather", 0.0)):
        own_us = float(communication.having("kind", kind)["duration_us"].sum()) - waiting_us
        share = own_us / total_us if total_us else 0.0
        if share >= _BEFORE:
            text = f"{show_share(share)} of it is {kind.replace('_', '-')}s, which the next compute waits for"
            yield OverlapReason(kind, text, share * evidence.means["exposed_us"])


def _of_the_host(evidence: Evidence) -> Iterator[OverlapReason]:
    data, means = evidence.data, evidence.means
    if data.options.maps_used_parameters:
        graph = (
            "find_unused_parameters makes DDP traverse the whole graph before each backward pass"
        )
        yield OverlapReason("find_unused_parameters", graph)
    unlaunched_us, step_us = means["unlaunched_us"], means["step_us"]
    if unlaunched_us >= _NOTHING_LAUNCHED * step_us:
        idle = f"for {show_time(unlaunched_us)} of a {show_time(step_us)} step the CPU had queued no work"
        yield OverlapReason("host_bound", f"the host launches work too late: {idle}")
    if not data.on_device:
        processes = counted(data.processes, "process")
        yield OverlapReason("gloo", f"gloo's threads share the cores with compute ({processes})")


def overlap_evidence(data: Job) -> Evidence | None:
    """The evidence for a cell with several processes whose communication is known; None for other
    cells.
    """
    alone = data.devices < 2 and not data.has_unknown_size
    if data.traits.one_process or alone or not data.communication_known:
        return None
    windows = data.whole_windows
    means = {}
    for name in ("communication_us", "hidden_us", "exposed_us", "step_us", "compute_us", "idle_us"):
        if (mean_us := windows.mean(name)) is None:
            return None
        means[name] = mean_us
    if not len(data.tables.collectives):
        return None
    # not known for every trace: NaN passes no test
    for name in ("exposed_wait_us", "unlaunched_us", "optimizer_us"):
        mean_us = windows.mean(name)
        means[name] = math.nan if mean_us is None else mean_us
    buckets = _reductions(data.whole_collectives)
    main = buckets["bytes"] >= _SMALL_BUCKET * buckets["bytes"].max(initial=0.0)
    return Evidence(data, means, buckets.take(main), data.whole_collectives)


def _reductions(communication: Table) -> Table:
    """Means over ranks and steps of a step's reductions by position; steps with an unusual number
    of them are left out.
    """
    reduced = communication.having("kind", *REDUCING)
    reduced = reduced.take(reduced.known("bytes"))
    ordered = reduced.take(np.argsort(reduced["start_us"], kind="stable"))
    steps = ordered.group(*STEP_KEYS)
    count = steps.sizes[steps.code]  # of reductions in the step of each
    usual = count == np.bincount(count, minlength=1).argmax()
    places = ordered.take(usual).assign(place=steps.places[usual]).group("place", in_order=True)
    columns = {
        "bytes": "bytes",
        "done": "compute_done",
        "transfer_us": "transfer_us",
        "compiled_share": "compiled_share",
    }
    return Table(
        {name: places.means(ordered.real(column)[usual]) for name, column in columns.items()}
    )


def _buckets(evidence: Evidence) -> Iterator[OverlapReason]:
    """The reasons that buckets of gradients show, the strongest first."""
    buckets = evidence.buckets
    if not evidence.of_gradients or not len(buckets):
        return
    total, last = float(buckets["bytes"].sum()), float(buckets["bytes"][-1])
    done = float(buckets["done"][-1])
    ready = ""
    if not math.isnan(done):
        ready = f", ready when {show_share(done)} of the step's compute is done"
    if len(buckets) == 1:
        name, how = _single_reduction(evidence, last)
        text = f"all gradients are reduced in one {how} of {show_bytes(last)}{ready}"
        yield OverlapReason(name, text, evidence.reductions_us)
    elif not evidence.sharded and last > MOST * total:
        sizes = f"{show_bytes(last)} of {show_bytes(total)}"
        share = f"{show_share(last / total)} of the bytes ({sizes})"
        text = f"the last of {counted(len(buckets), 'bucket')} holds {share}{ready}"
        yield OverlapReason("last_bucket", text, evidence.reductions_us)
    if evidence.ready_late:
        yield _late_buckets(evidence)


def _single_reduction(evidence: Evidence, size: float) -> tuple[str, str]:
    """The cause of one reduction of this size, and what that is called."""
    if evidence.sharded:
        return "one_block", "reduce-scatter"
    if evidence.data.options.overlap == "off":
        return "overlap_off", "bucket"
    return "few_bytes" if size < FEW_BYTES else "one_bucket", "bucket"


def _late_buckets(evidence: Evidence) -> OverlapReason:
    """`compiled_graph` if the first bucket would not be late had the graph returned its gradients
    at its start.
    """
    done, compiled = (float(evidence.buckets[name][0]) for name in ("done", "compiled_share"))
    text = f"its buckets are ready only when the step's compute is nearly done: {bucket_times(evidence.buckets)}"
    if not done - compiled < LATE:  # also where no graph was compiled, NaN
        return OverlapReason("late_buckets", text, evidence.reductions_us)
    graph = f"one compiled backward graph, {show_share(compiled)} of that compute, returns their gradients only when it ends"
    return OverlapReason("compiled_graph", f"{text}; {graph}", evidence.reductions_us)


def _little_computing(evidence: Evidence) -> Iterator[OverlapReason]:
    """Too little compute to hide the transfers; for late buckets only if even the whole step's
    compute were too little.
    """
    buckets = evidence.buckets
    known = buckets.known("done") & buckets.known("transfer_us")
    if not evidence.of_gradients or len(buckets) < 2 or not known.all():
        return
    # `done` is a share of the compute before the optimizer, which waits for all gradients and so
    # hides nothing.
    compute_us, optimizer_us = evidence.means["compute_us"], evidence.means["optimizer_us"]
    if not math.isnan(optimizer_us):  # else all of it is the most that can hide a transfer
        compute_us -= optimizer_us
    needed_us = float(buckets["transfer_us"].sum())
    left_us = compute_us * (1 - float(buckets["done"][0]))
    hiding_us = compute_us if evidence.ready_late else left_us
    if hiding_us >= MOST * needed_us:
        return
    only = f"only {show_time(left_us)} of compute is left when the first bucket is ready"
    text = f"{only}, and the transfers need {show_time(needed_us)}"
    yield OverlapReason("little_computing", text, evidence.reductions_us)


def bucket_times(buckets: Table) -> str:
    """Size and readiness of each bucket, such as ``4.00 MB at 20%, 4.00 MB at 50%``."""
    pairs = zip(buckets["bytes"].tolist(), buckets["done"].tolist(), strict=True)
    times = [f"{show_bytes(size)} at {show_share(done)}" for size, done in pairs]
    more = f" and {len(times) - _NAMED} more" if len(times) > _NAMED else ""
    return ", ".join(times[:_NAMED]) + more


def straggler_finding(data: Job) -> Iterator[Finding]:
    """A warning that names the rank that is significantly late, with what it costs the others."""
    late, ledger = data.late, data.traced_ledger
    if late is None or not late.significant or ledger is None:
        return
    step_us = ledger.traced_step_us
    if not late.is_notable(step_us):
        return
    samples = more_samples(data, late.rank)
    yield RunCode.STRAGGLER.finding(
        f"every other rank loses {show_time(late.lateness_us)} of each {show_time(step_us)} step to rank {late.rank}",
        "" if samples is None else f"give the ranks equal batches: {samples}",
        about=data.name,
    )


def waiting_findings(data: Job) -> Iterator[Finding]:
    """What a job's traces alone show of its communication."""
    for finding in (*straggler_finding(data), *no_overlap_finding(data)):
        yield finding.advised(in_a_script=True)
