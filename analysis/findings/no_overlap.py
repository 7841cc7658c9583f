"""Findings about a cell's communication: why little of it is hidden, each reason with its number,
and who makes others wait.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.findings.facts import Scale
from dpscope.analysis.findings.ledger_text import fewer_messages
from dpscope.analysis.runs.cell_findings import SUSPECT, more_samples
from dpscope.analysis.runs.traffic_check import used_map_bytes
from dpscope.analysis.text.units import show_bytes, show_share, show_time
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.messages import is_small
from dpscope.analysis.traces.ranks.whole_steps import STEP_KEYS
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.steps.collectives import REDUCING
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run_codes import RunCode

LITTLE = 0.3  # hidden share of communication, below which there is a finding...
# ...if at least this share of a step is exposed; also the least lateness of a straggler
NOTABLE = 0.05
_BEFORE = 0.3  # of communication, in broadcasts or all-gathers that compute waits for
_NOTHING_LAUNCHED = 0.3  # of a step, in which a device has nothing to run
# of the largest bucket's bytes: a metric or the map of unused parameters rather than gradients
_SMALL_BUCKET = 0.01
MOST = 0.5  # of a whole
LATE = 0.8  # of a step's compute: little is left to hide a bucket that is ready later
_SMALL = 1 << 20  # bytes: the size of DDP's first bucket
_NAMED = 4  # buckets in a message


@dataclass(frozen=True)
class OverlapReason:
    """`text` includes the measured number, `advice` is what to change, `explains_us` the exposed
    time of a step behind it. `script_advice` is as a code's `script_action`.
    """

    name: str
    text: str
    advice: str
    of_set_up: bool = False  # caused by how the training is set up, on any hardware
    explains_us: float = 0.0
    script_advice: str = ""


_OF_SET_UP = {  # advice that does not depend on the cell, for causes in a script's set-up
    "compute_stream": "launch collectives on a separate stream, as async_op=True does",
    "held_compute": "find out what makes the compute stream wait: wait() or synchronize() during the backward pass, "
    "CUDA_DEVICE_MAX_CONNECTIONS=1, no multiprocessors left next to the collective, or under DDP a communication hook or "
    "SyncBatchNorm",
    "one_block": "apply fully_shard to each block of the model as well: blocks are then gathered and reduced while others "
    "compute",
    "last_bucket": "smaller buckets (--bucket-mb) let part of it be reduced earlier; the first layers' gradients still come "
    "last",
}
_OF_OTHERS = {
    "engine": "compare the engines with --nccl-engine default,legacy",
    "uneven_ranks": "look for what differs between ranks from step to step: input lengths, the loader, other load on the "
    "machine",
    "find_unused_parameters": "omit find_unused_parameters if every parameter is used, or use --static-graph",
    "host_bound": "give the host less to launch (larger batches, compilation, fewer small operators), or find out what it "
    "waits for: data, .item(), synchronize()",
    "little_computing": "compute more per byte: a larger batch, gradient accumulation, or fp16 gradients",
    "gloo": "measure on GPUs, where collectives do not use the CPU's cores",
}
_IN_A_SCRIPT = {  # where the advice above names an option of dpscope
    "last_bucket": "smaller buckets (DDP's bucket_cap_mb) let part of it be reduced earlier; the first layers' gradients "
    "still come last",
    "engine": "compare with and without TORCH_DIST_USE_NCCL2=0",
    "find_unused_parameters": "omit find_unused_parameters if every parameter is used, or set DDP's static_graph=True",
}


def _reason(name: str, text: str, explains_us: float = 0.0) -> OverlapReason:
    of_set_up = name in _OF_SET_UP
    advice = _OF_SET_UP[name] if of_set_up else _OF_OTHERS[name]
    return OverlapReason(name, text, advice, of_set_up, explains_us, _IN_A_SCRIPT.get(name, ""))


@dataclass(frozen=True)
class Evidence:
    """A cell's whole traced steps: `means` over ranks and steps in microseconds, `buckets` with a
    row per reduction of a step.

    `buckets`: mean bytes, the share of the step's compute that is done when ready (`done`),
    transfer, and the share of that compute that one compiled graph did just before
    (`compiled_share`). Rows are in launch order, without the `small_buckets` that carry almost no
    bytes. `communication` has a row per collective.
    """

    data: Job
    means: dict[str, float]
    buckets: Table
    communication: Table
    small_buckets: int = 0

    @property
    def sharded(self) -> bool:
        """Whether gradients are reduced to shards, as in FSDP: by the cell's strategy, or by its
        collectives.
        """
        return self.data.traits.sharded or bool(
            self.communication.words("kind").isin("reduce_scatter").any()
        )

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
    communication, hidden = evidence.means["communication_us"], evidence.means["hidden_us"]
    notable = evidence.means["exposed_us"] >= NOTABLE * evidence.means["step_us"]
    if not communication > 0 or hidden >= LITTLE * communication or not notable:
        return
    share = show_share(hidden / communication)
    text = f"{share} of {show_time(communication)} of communication a step is hidden"
    reasons = overlap_reasons(data)
    if reasons:
        serious = data.on_device or any(reason.of_set_up for reason in reasons)
        yield RunCode.NO_OVERLAP.finding(
            f"{text}: {reasons[0].text}",
            reasons[0].advice,
            script_action=reasons[0].script_advice,
            about=data.name,
            severity="warning" if serious else "info",
        )
        return
    action = ""
    if evidence.sharded:
        action = "try blocks of other sizes for fully_shard, and prefetching (set_modules_to_forward_prefetch)"
    elif not data.traits.reduces_early:
        action = "check what runs during each collective on the timelines of all ranks: dpscope merge joins their traces"
    when = bucket_times(evidence)
    ready = f" (buckets ready: {when} of the step's compute)" if when else ""
    yield RunCode.NO_OVERLAP.finding(
        f"{text}; the traces do not show why{ready}", action, about=data.name
    )


def overlap_reasons(data: Job) -> list[OverlapReason]:
    """The reasons that a cell's traces show, the one that explains most exposed time first, however
    much is hidden.
    """
    evidence = overlap_evidence(data)
    return (
        []
        if evidence is None
        else sorted(_reasons(evidence), key=lambda reason: -reason.explains_us)
    )


def _reasons(evidence: Evidence) -> Iterator[OverlapReason]:
    data, means = evidence.data, evidence.means
    exposed, waiting, late = means["exposed_us"], means["exposed_wait_us"], data.late
    yield from _streams(evidence)
    if late is not None and late.lateness_us >= MOST * late.exposed_us > 0:
        doubt = late.last.doubt or late.last.counts
        times = f"{show_time(late.lateness_us)} of the {show_time(late.exposed_us)}"
        text = f"{times} that each other rank exposes is waiting for rank {late.rank} ({doubt})"
        advice = f"check what rank {late.rank} does before its collectives: overlap cannot hide its lateness"
        yield OverlapReason(
            "late_rank", text, advice, of_set_up=late.significant, explains_us=late.lateness_us
        )
    small = data.messages
    if small.many and small.small_us >= MOST * exposed > 0:
        times = f"{show_time(small.small_us)} of {show_time(exposed)}"
        share = f"{show_share(small.small_us / exposed)} of the exposed time ({times})"
        split = data.traced_ledger is not None and data.traced_ledger.is_split
        waits = "" if split else ", waiting included"
        text = f"{share} is in small collectives, {small.small_count:.0f} a step{waits}"
        advice = fewer_messages(small)
        yield OverlapReason(
            "many_messages", text, advice, of_set_up=True, explains_us=small.small_us
        )
    if evidence.of_gradients and len(evidence.buckets):
        yield from _buckets(evidence)
    yield from _waited_for(evidence)
    if waiting >= MOST * exposed > 0 and late is None:
        of_exposed = (
            f"{show_time(waiting)} of the {show_time(exposed)} exposed is waiting for the last rank"
        )
        turns = f" ({data.last_rank.turns})" if data.last_rank is not None else ""
        yield _reason("uneven_ranks", f"{of_exposed}; no rank is always late{turns}", waiting)
    if data.options.maps_used_parameters:
        size = max((used_map_bytes(data.cell, rank.model) for _, rank in data.ranks), default=0)
        maps = int((evidence.communication["bytes"] == size).sum()) if size else 0
        reduced = (
            f" and all-reduce a map of {size} B ({maps / evidence.steps:.0f} per step)"
            if maps
            else ""
        )
        graph = f"find_unused_parameters makes DDP traverse the whole graph before each backward pass{reduced}"
        yield _reason("find_unused_parameters", graph)
    unlaunched, step = means["unlaunched_us"], means["step_us"]
    if unlaunched >= _NOTHING_LAUNCHED * step:
        idle = f"for {show_time(unlaunched)} of a {show_time(step)} step the CPU had queued no work"
        yield _reason("host_bound", f"the host launches work too late: {idle}")
    yield from _little_computing(evidence)
    if not data.on_device:
        queued, queue_us = (
            evidence.communication.known("queue_us").any(),
            evidence.communication["queue_us"],
        )
        queued_us = float(np.nansum(queue_us)) / evidence.steps
        # in the unit of what is exposed, to which it is compared
        waits = (
            f", and collectives wait {Scale([exposed]).time(queued_us)} a step for a free thread"
        )
        shared = (
            f"gloo's threads share the cores with compute ({counted(data.processes, 'process')})"
        )
        yield _reason("gloo", f"{shared}{waits if queued else ''}")


def _streams(evidence: Evidence) -> Iterator[OverlapReason]:
    """Collectives on a stream that also computes; else launched compute that waits although buckets
    have separate streams.
    """
    communication, exposed = evidence.communication, evidence.means["exposed_us"]
    share, duration_us = 0.0, communication["duration_us"]
    if evidence.data.on_device:
        share = float(duration_us[communication.truths("compute_stream")].sum()) / float(
            duration_us.sum() or 1.0
        )
    if share >= MOST:
        text = f"{show_share(share)} of it runs on a stream that also computes, where one waits for the other"
        yield _reason("compute_stream", text, share * exposed)
        return
    held_us = communication["held_us"]
    if evidence.data.messages.many:  # what computes next waits for each of them, as it must
        held_us = held_us[~is_small(communication)]
    held = float(np.nansum(held_us)) / evidence.steps
    if not held >= MOST * exposed > 0:
        return
    until = f"one of the {counted(len(evidence.buckets), 'bucket')} is reduced"
    text = (
        f"compute that was already launched waits for {show_time(min(held, exposed))} of the {show_time(exposed)} exposed, "
        f"until {until if evidence.of_gradients else 'a collective ends'}"
    )
    if SUSPECT in {rank.nccl_engine for _, rank in evidence.data.ranks}:
        serial = f"{text}; {SUSPECT} ran the collectives, which may make the compute stream wait for each"
        yield _reason("engine", serial, min(held, exposed))
    else:
        yield _reason("held_compute", text, min(held, exposed))


def _waited_for(evidence: Evidence) -> Iterator[OverlapReason]:
    """Collectives that the following compute waits for: DDP's broadcasts of buffers, FSDP's
    all-gathers.
    """
    communication, data = evidence.communication, evidence.data
    buffers = " of buffers, which the forward pass waits for" if evidence.of_gradients else ""
    keep, keep_in_a_script = (
        "find out what is broadcast in every step, and whether each rank could keep its own copy",
        "",
    )
    if data.traits.identified:
        keep = "use --broadcast-buffers off if each rank may keep its own buffers"
        keep_in_a_script = "set DDP's broadcast_buffers=False if each rank may keep its own buffers"
    larger = "try larger blocks or prefetching (set_modules_to_forward_prefetch)"
    larger_in_a_script = ""
    if data.traits.reshards:
        larger_in_a_script = f"{larger}, or reshard_after_forward=False if memory allows"
        larger = f"{larger}, or --strategy fsdp-no-reshard if memory allows"
    total = float(communication["duration_us"].sum())
    for kind, called, advice, in_a_script, late_us in (
        ("broadcast", f"broadcasts{buffers}", keep, keep_in_a_script, data.broadcast_waits_us),
        (
            "all_gather",
            "all-gathers, which the next block waits for",
            larger,
            larger_in_a_script,
            0.0,
        ),
    ):
        of_kind = communication.having("kind", kind)["duration_us"]
        share = (float(of_kind.sum()) - late_us * evidence.steps) / total if total else 0.0
        if share >= _BEFORE:
            yield OverlapReason(
                kind,
                f"{show_share(share)} of it is {called}",
                advice,
                explains_us=share * evidence.means["exposed_us"],
                script_advice=in_a_script,
            )


def overlap_evidence(data: Job) -> Evidence | None:
    """The evidence for a cell with several processes whose communication is known; None for other
    cells.
    """
    if data.traits.one_process or data.devices < 2 or not data.communication_known:
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
    return Evidence(data, means, buckets.take(main), data.whole_collectives, int((~main).sum()))


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
    total, last, done = (
        float(buckets["bytes"].sum()),
        float(buckets["bytes"][-1]),
        buckets["done"][-1],
    )
    ready = (
        ""
        if np.isnan(done)
        else f", ready when {show_share(float(done))} of the step's compute is done"
    )
    if len(buckets) == 1 and evidence.sharded:
        text = f"all gradients are reduced in one reduce-scatter of {show_bytes(last)}{ready}"
        yield _reason("one_block", text, evidence.reductions_us)
    elif len(buckets) == 1:
        yield _one_bucket(evidence, last, ready)
    elif not evidence.sharded and last > MOST * total:
        share = (
            f"{show_share(last / total)} of the bytes ({show_bytes(last)} of {show_bytes(total)})"
        )
        text = f"the last of {counted(len(buckets), 'bucket')} holds {share}{ready}"
        yield _reason("last_bucket", text, evidence.reductions_us)
    if evidence.ready_late:
        yield _late_buckets(evidence)


def _one_bucket(evidence: Evidence, size: float, ready: str) -> OverlapReason:
    of_set_up, in_a_script = False, ""
    all_or_most = "nearly all bytes" if evidence.small_buckets else "all gradients"
    held = f"{all_or_most} are reduced in one bucket of {show_bytes(size)}"
    if evidence.data.options.overlap == "off":
        held, advice = f"{held} (--overlap off)", "--overlap on reduces gradients during backward"
    elif size < _SMALL:
        advice = "so few bytes are bound by latency at any bucket size: a larger batch or accumulation lowers its share of a step"
    elif evidence.data.traits.identified:
        of_set_up, quarter = True, max(0.1, round(size / 4 / 2**20, 1))
        advice = f"smaller buckets let part of it be reduced earlier (--bucket-mb {quarter:g})"
        in_a_script = (
            f"smaller buckets let part of it be reduced earlier (DDP's bucket_cap_mb={quarter:g})"
        )
    else:  # the traces do not show whether there are buckets
        of_set_up = True
        advice = "reduce it in several smaller collectives, so that part of it is reduced earlier"
    return OverlapReason(
        "one_bucket", f"{held}{ready}", advice, of_set_up, evidence.reductions_us, in_a_script
    )


def _late_buckets(evidence: Evidence) -> OverlapReason:
    """`compiled_graph` if the first bucket would not be late had the graph returned its gradients
    at its start.
    """
    done, compiled = (evidence.buckets[name][0] for name in ("done", "compiled_share"))
    graph, cell = np.nan_to_num(compiled), evidence.data
    text = f"its buckets are ready only when the step's compute is nearly done: {bucket_times(evidence)}"
    if done - graph < LATE:
        text += (
            f"; one compiled backward graph, {show_share(float(graph))} of that compute, returns their "
            "gradients only when it ends"
        )
        split = "let torch.compile split the graph at DDP's buckets (torch._dynamo.config.optimize_ddp = True, its default), or "
        # else it may be no DDP
        advice = f"{split if cell.traits.identified else ''}compile each block separately"
        return OverlapReason(
            "compiled_graph", text, advice, of_set_up=True, explains_us=evidence.reductions_us
        )
    advice = "reduce gradients during the backward pass, as DistributedDataParallel does, rather than after it"
    if cell.traits.reduces_early or evidence.sharded:
        advice = "find out why gradients are late: one layer with most of the compute, or weights shared by several layers"
    return OverlapReason(
        "late_buckets", text, advice, of_set_up=True, explains_us=evidence.reductions_us
    )


def _little_computing(evidence: Evidence) -> Iterator[OverlapReason]:
    """Too little compute to hide the transfers; for late buckets only if even the whole step's
    compute were too little.
    """
    buckets = evidence.buckets
    if (
        not evidence.of_gradients
        or len(buckets) < 2
        or not (buckets.known("done") & buckets.known("transfer_us")).all()
    ):
        return
    # `done` is a share of the compute before the optimizer, which waits for all gradients and so
    # hides nothing.
    compute, optimizer_us = evidence.means["compute_us"], evidence.means["optimizer_us"]
    if not math.isnan(optimizer_us):  # else all of it is the most that can hide a transfer
        compute -= optimizer_us
    needed, left = float(buckets["transfer_us"].sum()), compute * (1 - float(buckets["done"][0]))
    if left >= MOST * needed or (evidence.ready_late and compute >= MOST * needed):
        return
    only = f"only {show_time(left)} of compute is left when the first bucket is ready"
    yield _reason(
        "little_computing",
        f"{only}, and the transfers need {show_time(needed)}",
        evidence.reductions_us,
    )


def bucket_times(evidence: Evidence) -> str:
    """Size and readiness of each bucket, such as ``4.00 MB at 20%, 4.00 MB at 50%``; empty if
    unknown.
    """
    buckets = evidence.buckets
    if not evidence.of_gradients or not len(buckets) or not buckets.known("done").all():
        return ""
    pairs = zip(buckets["bytes"].tolist(), buckets["done"].tolist(), strict=True)
    when = ", ".join(
        f"{show_bytes(size)} at {show_share(done)}" for size, done in list(pairs)[:_NAMED]
    )
    return when + (f" and {len(buckets) - _NAMED} more" if len(buckets) > _NAMED else "")


def straggler_finding(data: Job) -> Iterator[Finding]:
    """A warning that names the rank that is significantly late, with what it costs the others."""
    late, ledger = data.late, data.traced_ledger
    if late is None or not late.significant or ledger is None:
        return
    step_us = ledger.traced_step_us
    if late.lateness_us < NOTABLE * step_us:
        return
    check = f"check what rank {late.rank} does before its first collective: data, other load, a slower device"
    if (samples := more_samples(data, late.rank)) is not None:
        check = f"give the ranks equal batches: {samples}"
    yield RunCode.STRAGGLER.finding(
        f"rank {late.rank} is the straggler, {late.last.counts}: each other rank loses "
        f"{show_time(late.lateness_us)} of a {show_time(step_us)} step to it, {show_share(late.share)} of the exposed "
        f"waiting{_compute_of(data, late.rank)}; by chance alone a rank would stand out like this in "
        f"{late.last.chance:.1g} of such runs",
        check,
        about=data.name,
    )


def _compute_of(data: Job, rank: int) -> str:
    """A clause that compares the rank's compute with that of the others."""
    windows = data.whole_windows
    own, others = (
        windows.take(rows).mean("compute_us")
        for rows in (windows["rank"] == rank, windows["rank"] != rank)
    )
    if own is None or others is None:
        return ""
    return f"; it computes {show_time(own)} a step, the others {show_time(others)}"


def waiting_findings(data: Job) -> Iterator[Finding]:
    """What a job's traces alone show of its communication."""
    for finding in (*straggler_finding(data), *no_overlap_finding(data)):
        yield finding.advised(in_a_script=True)
