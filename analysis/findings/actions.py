"""What to do next: for each part of a step what removes it, and how long that part is."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.findings.cost import MOSTLY
from dpscope.analysis.findings.facts import (
    TIMED,
    TRACED,
    Fact,
    Scale,
    capital,
    numbered,
    percent,
    time,
)
from dpscope.analysis.findings.ledger_text import FEW_BYTES, fewer_messages, slowed_by_tracing
from dpscope.analysis.stats.samples import Interval
from dpscope.analysis.traces.ranks.lateness import LastRank, LateRank
from dpscope.analysis.traces.ranks.ledger import (
    IDLE,
    TRANSFER,
    UNSPLIT,
    WAITING,
    Ledger,
    other_part,
)
from dpscope.analysis.traces.ranks.messages import Messages
from dpscope.analysis.traces.ranks.not_split import NotSplit
from dpscope.analysis.traces.ranks.step_findings import MOST_UNLAUNCHED
from dpscope.profiling.records.strategies import traits_of

NOTABLE_SAVING = 0.02  # of a step: a smaller part is within the variation between steps
# throughput of a larger batch over this one, from which on it is recommended
BATCH_GAIN = 1.1
_AS_MUCH = 0.8  # of the largest part, from which on a second part is named too
_NOT_SHOWN = "Measure the cell again: its trace does not show where the step's time goes"
RUN_AGAIN = "Run again without --fresh: that measures only what is missing"
_IDLE_ITSELF = 0.25  # of a step, from which on a late rank's idle time is named


@dataclass(frozen=True)
class Situation:
    """What an action depends on: the cell's row, the rank that it waits for, how it ran."""

    chosen: CellRow
    late: LateRank | None
    on_device: bool
    messages: Messages | None = None
    # the rank that arrives last in most steps, also where ranks take turns
    last: LastRank | None = None
    knows_options: bool = True  # else dpscope's options do not apply
    # for foreign traces, why waiting is not separated from transfer
    not_split: NotSplit | None = None
    slower: bool = False  # significantly slower than one device
    # with which the run may decide between several devices and one; None: it did
    more_repeats: int | None = None
    launch_bound: bool = False  # the cell has the finding `launch_bound`
    # that the late rank trains on more samples than the others
    late_samples: str | None = None
    add_baseline: str | None = None  # how, where the cell was not compared with one device
    noisy: bool = False  # repeats differ so much that this limits all facts
    # of a repeat without whole traces: which file to copy, or what to measure again
    repair: str | None = None
    incomplete: bool = False  # planned repeats were not measured
    # too few repeats or steps to judge the parts of the cell's steps
    without_interval: bool = False


@dataclass(frozen=True)
class Action:
    """What to do about one part of a step, `time_us` of `step_us`; removing that may shorten other
    parts too, or turn it into another one: `dpscope whatif` predicts the step without it.
    """

    part: str
    time_us: float
    advice: str
    step_us: float
    means: str = TRACED
    bounds: Interval | None = None  # 95%, of `time_us`

    @property
    def is_significant(self) -> bool:
        """Whether its time is above 0 by its interval; so is one without an interval."""
        return self.bounds is None or self.bounds.low > 0

    @property
    def is_shown(self) -> bool:
        """Whether the run shows that removing it would matter."""
        return self.is_significant and self.share >= NOTABLE_SAVING

    @property
    def basis(self) -> str:
        if self.bounds is None:
            return f"{self.means}; no interval"
        scale = Scale([self.time_us])
        return f"{self.means}; 95% interval {scale.ends(self.bounds)} {scale.unit}"

    @property
    def share(self) -> float:
        return self.time_us / self.step_us

    def line(self, without_interval: bool) -> str:
        """What it is about, and the advice."""
        part = capital(self.part)
        if not self.is_significant:
            return f"{part} (not significant): {self.advice}"
        scale = Scale([self.time_us, self.step_us])
        own = scale.number(self.time_us)
        step = scale.time(self.step_us)
        share = percent(self.share)
        of_step = f"{own} of {step}, {share}"
        if without_interval:
            of_step = f"{of_step}; not judged: no interval"
        return f"{part} ({of_step}): {self.advice}"


@dataclass(frozen=True)
class Next:
    """The fact, the parts of the step that its actions are about, and how long the first is, which
    is the most that removing it saves.
    """

    fact: Fact
    parts: tuple[str, ...] = ()
    saves_at_most_us: float | None = None

    @property
    def part(self) -> str | None:
        """That of the first action."""
        return next(iter(self.parts), None)


def next_fact(rows: Sequence[CellRow], situation: Situation) -> Next:
    """What to do, numbered if that is several things; `rows` are the measured cells with the same
    options on as many nodes.
    """
    found = _next(rows, situation)
    lines = [*_measured_first(situation), *found.fact.lines]
    if situation.incomplete and traits_of(situation.chosen.strategy).stands_for:
        lines = [*_measured_first(situation)]  # nothing is to be done about a stand-in
    lines = list(dict.fromkeys(lines))
    not_split = situation.not_split
    if not_split is not None and found.parts == (IDLE,):
        lines.append(capital(not_split.next_step))
    late = situation.late
    if late is not None and not late.significant:
        lines.append(f"Trace more steps to see whether rank {late.rank} is always late")
    fact = replace(found.fact, lines=numbered(lines))
    return replace(found, fact=fact)


def _measured_first(situation: Situation) -> Iterator[str]:
    """What the run lacks, which comes before what its steps show."""
    if situation.repair is not None:
        yield situation.repair
    if situation.incomplete:
        yield RUN_AGAIN
    elif situation.more_repeats is not None:
        option = f"--repeats {situation.more_repeats}"
        if situation.noisy:
            yield f"Close other programs and measure more repeats ({option})"
        else:
            yield f"Measure more repeats to decide ({option})"
    if situation.add_baseline is not None:
        yield capital(situation.add_baseline)


def _next(rows: Sequence[CellRow], situation: Situation) -> Next:
    """What saves most."""
    chosen = situation.chosen
    larger = _larger_batch(rows, situation)
    if larger is not None:
        return _said(larger, TIMED)
    if situation.slower:
        step = "" if chosen.step_us is None else f" ({time(chosen.step_us)})"
        return _said(
            f"Train on one device, or try a larger batch or model: this step{step} is too short to split",
            TIMED,
        )
    slowed = slowed_by_tracing(chosen)
    if slowed is not None:
        return _said(
            f"Measure a larger batch or model: tracing made a step {slowed:.1f}x as long, so no saving can be stated"
        )
    actions = list(_actions(rows, situation))
    actions.sort(key=lambda action: (not action.is_shown, -action.time_us))
    if not _shows_parts(chosen, actions):
        return _said(situation.repair or _NOT_SHOWN)
    return _about_largest(actions, situation)


def _about_largest(actions: Sequence[Action], situation: Situation) -> Next:
    """The largest part that could be removed, and a second one that is nearly as large; `actions`
    has the largest one first.
    """
    first = actions[0]
    if not first.is_significant and any(_measured_first(situation)):
        # what is to be measured first may show it
        fact = Fact("next", "NEXT", (), first.basis)
        return Next(fact, (first.part,), first.time_us)
    if first.time_us <= 0:
        return _said(
            "Nothing stands out: no waiting or communication could be removed",
            f"{TRACED}; no interval",
        )
    named = [first]
    if first.share < NOTABLE_SAVING:
        of_step = f"{time(first.time_us)} ({first.share:.1%} of the step)"
        lines: tuple[str, ...] = (
            f"Nothing stands out: the largest part that could be removed, {first.part}, is {of_step}",
        )
    else:
        for second in actions[1:2]:
            if second.time_us >= _AS_MUCH * first.time_us:
                named.append(second)
        lines = tuple(action.line(situation.without_interval) for action in named)
    parts = tuple(action.part for action in named)
    fact = Fact("next", "NEXT", lines, first.basis)
    return Next(fact, parts, first.time_us)


def _shows_parts(chosen: CellRow, actions: Sequence[Action]) -> bool:
    """Whether the traces show what could be removed: a notable part, or that there is none."""
    if not actions:
        return False
    ledger = chosen.ledger
    communication_known = ledger is not None and ledger.exposed_us is not None
    return communication_known or actions[0].share >= NOTABLE_SAVING


def _said(line: str, basis: str = "not measured") -> Next:
    fact = Fact("next", "NEXT", (line,), basis)
    return Next(fact)


def _larger_batch(rows: Sequence[CellRow], situation: Situation) -> str | None:
    """A larger batch per device of the same strategy and devices, if its throughput is clearly
    higher by both intervals.
    """
    chosen = situation.chosen
    rate = chosen.samples_per_s
    batch = chosen.batch_size
    if rate is None or batch is None:
        return None
    at_most = chosen.number("samples_per_s_high") or math.inf
    larger = [
        row
        for row in rows
        if (row.strategy, row.devices) == (chosen.strategy, chosen.devices)
        and (row.batch_size or 0) > batch
        and (row.number("samples_per_s_low") or 0.0) > BATCH_GAIN * at_most
    ]
    if not larger:
        return None
    best = max(larger, key=lambda row: row.samples_per_s or 0.0)
    gain = (best.samples_per_s or 0.0) / rate
    check = "check that"
    if situation.knows_options:
        check = "dpscope train shows whether"
    return f"Raise the batch to {best.batch_size} per device: {gain:.2f}x as many samples per second; {check} accuracy holds"


def _actions(rows: Sequence[CellRow], situation: Situation) -> Iterator[Action]:
    chosen = situation.chosen
    ledger = chosen.ledger
    if ledger is None:
        return
    if traits_of(chosen.strategy).one_process:
        yield from _copies(rows, chosen, ledger)
    else:
        yield from _communication(situation, ledger)
    if chosen.step_us is not None and chosen.step_without_wait_us is not None:
        loader_us = chosen.step_us - chosen.step_without_wait_us
        feed = "feed the devices faster, with more loader workers (--workers)"
        yield Action("waiting for the loader", loader_us, feed, chosen.step_us, TIMED)
    # On a CPU idle time is when other processes used the cores.
    if ledger.idle_us is not None and situation.on_device:
        advice = _of_idle(situation, ledger)
        yield Action(IDLE, ledger.idle_us, advice, ledger.traced_step_us)


def _of_idle(situation: Situation, ledger: Ledger) -> str:
    unlaunched_us = ledger.unlaunched_us
    idle_us = ledger.idle_us or 0.0
    if situation.launch_bound:
        return (
            "the step is launch-bound; larger batch, or fewer launches (torch.compile, CUDA graphs)"
        )
    copies_us = ledger.host_copy_us or 0.0
    if copies_us > MOSTLY * idle_us:
        return (
            f"for {time(copies_us)} only copies from or to the host ran; copy less, or while kernels run "
            "(pinned memory, non_blocking=True)"
        )
    if unlaunched_us is not None and unlaunched_us < MOST_UNLAUNCHED * idle_us:
        waited = time(idle_us - unlaunched_us)
        return f"for {waited} work is queued and none runs; see what kernels wait for (other streams, copies)"
    if not unlaunched_us:
        return "see what the host does between launches: loader, .item(), many small kernels"
    late = situation.late
    of_late = ""
    if late is not None and late.unlaunched_us:
        of_late = f" (rank {late.rank}: {time(late.unlaunched_us)})"
    return (
        f"for {time(unlaunched_us)} no GPU work was queued{of_late}; look at the host first: "
        "loader, .item(), many small kernels"
    )


def _copies(rows: Sequence[CellRow], chosen: CellRow, ledger: Ledger) -> Iterator[Action]:
    """Copies of the model within one process: DDP makes none, but is not chosen where it was
    measured and is no faster.
    """
    if ledger.exposed_other_us is None:
        return
    case = (chosen.devices, chosen.batch_size)
    with_ddp = any(
        traits_of(row.strategy).reducer for row in rows if (row.devices, row.batch_size) == case
    )
    advice = "use DDP: DP copies the model in every step and hides none of that"
    if traits_of(chosen.strategy).stands_for:
        advice = "measure DDP (no copies)"
    elif with_ddp:
        advice = (
            "larger batch per device, so that each copy of the model serves more samples; DDP makes no copies, "
            "but is not clearly faster here"
        )
    yield _unsplit(ledger, ledger.exposed_other_us, advice)


def _unsplit(ledger: Ledger, other_us: float, advice: str) -> Action:
    """Exposed communication that is not split into waiting and transfer."""
    bounds = ledger.intervals.get("exposed_other")
    return Action(UNSPLIT, other_us, advice, ledger.traced_step_us, bounds=bounds)


def _communication(situation: Situation, ledger: Ledger) -> Iterator[Action]:
    """Waiting, transfer and other communication, each with what removes it."""
    step_us = ledger.traced_step_us
    if ledger.exposed_wait_us is None or ledger.exposed_transfer_us is None:
        if ledger.exposed_other_us is not None:
            advice = _to_split(situation.not_split)
            yield _unsplit(ledger, ledger.exposed_other_us, advice)
        return
    yield from _waiting(situation, ledger, ledger.exposed_wait_us)
    yield Action(
        TRANSFER,
        ledger.exposed_transfer_us,
        _of_transfer(situation, ledger),
        step_us,
        bounds=ledger.intervals.get("exposed_transfer"),
    )
    for kind, time_us in ledger.other_by_kind_us.items():
        if kind != "broadcast":
            advice = f"see which {kind} operations are exposed"
        elif situation.late is not None:
            continue  # waiting for that rank
        else:
            advice = _of_broadcasts(situation)
        yield Action(other_part(kind), time_us, advice, step_us)


def _to_split(not_split: NotSplit | None) -> str:
    if not_split is None:
        return "trace every rank to separate waiting from moving data"
    return not_split.next_step


def _waiting(situation: Situation, ledger: Ledger, wait_us: float) -> Iterator[Action]:
    late = situation.late
    step_us = ledger.traced_step_us
    turns = ""
    if situation.last is not None:
        turns = f" ({situation.last.turns})"
    compare = f"no rank is always last{turns}; stop other programs, check input lengths and loader"
    if late is None:
        bounds = ledger.intervals.get("exposed_wait")
        yield Action(WAITING, wait_us, compare, step_us, bounds=bounds)
        return
    if situation.late_samples is not None:
        advice = f"give the ranks equal batches: {situation.late_samples}"
    elif late.computes_longer:
        advice = f"{_more_compute(late)}: uneven batches or a slower device"
    else:
        advice = f"find out why rank {late.rank} is late; a faster link does not help"
    idle_us = late.unlaunched_us or late.idle_us or 0.0
    if situation.on_device and idle_us >= _IDLE_ITSELF * step_us:
        what = "had no queued work" if late.unlaunched_us else "was idle"
        advice += f"; its own GPU {what} for {time(idle_us)} of a step"
    yield Action("each other rank's wait", late.lateness_us, advice, step_us)
    yield Action("waiting for other ranks", wait_us * (1.0 - late.share), compare, step_us)


def _more_compute(late: LateRank) -> str:
    """What the late rank computes in a step, and each other one."""
    own = time(late.compute_us or 0.0)
    others = time(late.others_compute_us or 0.0)
    whose = "the other"
    if late.last.ranks > 2:
        whose = "the others"
    return f"rank {late.rank} computes {own}, {whose} {others}"


def _of_transfer(situation: Situation, ledger: Ledger) -> str:
    messages = situation.messages
    transfer_us = ledger.exposed_transfer_us or 0.0
    if messages is not None and messages.many and messages.small_transfer_us > transfer_us / 2:
        return fewer_messages(messages)
    moved_bytes = situation.chosen.bytes_per_step
    if moved_bytes is not None and moved_bytes < FEW_BYTES:
        return "larger batch or accumulation"  # no faster link: they are bound by latency
    # else the traces do not show the parallelism
    if traits_of(situation.chosen.strategy).identified:
        return "larger batch, gradient accumulation, fp16 gradients, faster link"
    return "larger batch, faster link"


def _of_broadcasts(situation: Situation) -> str:
    if not traits_of(situation.chosen.strategy).identified:
        return "see what the broadcasts carry: each step waits for their root"
    argument = "DDP's broadcast_buffers=False"
    how = "--broadcast-buffers off" if situation.knows_options else argument
    return f"try DDP without broadcasting buffers ({how}): each step waits for rank 0"
