"""One job: what is known of it, and the tables of its ranks in all repeats, each derived table
computed once.

A cell of a run, a script that was attached to and the traces of a job that no run made are the same
thing with more or fewer facts. One that is not known raises Missing with the reason.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dpscope.analysis.stats import samples as stats
from dpscope.analysis.stats.missing import Missing, known
from dpscope.analysis.stats.turns import TurnSamples
from dpscope.analysis.traces.ranks import exposed_parts, lateness
from dpscope.analysis.traces.ranks.contention import (
    Contentions,
    contentions,
    of_enough_hidden,
    with_contention,
)
from dpscope.analysis.traces.ranks.lateness import LastRank, LateRank
from dpscope.analysis.traces.ranks.ledger import STEP_PARTS, Ledger, critical_rows, ledger_of
from dpscope.analysis.traces.ranks.matching import MATCHED_COLUMNS
from dpscope.analysis.traces.ranks.messages import Messages, messages_of
from dpscope.analysis.traces.ranks.not_split import NotSplit, why_not_split
from dpscope.analysis.traces.ranks.rank_tables import COLUMNS, TraceSummary
from dpscope.analysis.traces.ranks.timeline import StepTimeline
from dpscope.analysis.traces.ranks.whole_steps import STEP_KEYS, far_longer_count, whole_steps
from dpscope.analysis.traces.reading.table import FrameOf, Table, joined, without_rows
from dpscope.analysis.traces.steps import collectives
from dpscope.profiling.records.attach_codes import AttachCode
from dpscope.profiling.records.finding import Finding, counted, listed
from dpscope.profiling.records.run import Cell, CellOptions, CellResult, RankResult
from dpscope.profiling.records.short_repr import short_repr
from dpscope.profiling.records.strategies import CellStrategy, StrategyTraits, traits_of

if TYPE_CHECKING:
    import pandas as pd

TRACES_ALONE = "traces alone: nothing else is known of their job"
PARTS = (*STEP_PARTS, "exposed", "traced_step", "tracer")
"""Parts of a job's step: those that add up to the traced step, all exposed communication, the
traced step, the tracer.
"""
JobStrategy = CellStrategy | Literal["other"]
_GATHERED = ("results", "ranks", "summaries", "counter_checks", "left_out", "findings")
"""What a job holds of each of its repeats, next to tables."""


@dataclass(frozen=True)
class Tables:
    """The tables of all ranks and repeats of a job, each with a column `repeat`; without rows where
    nothing was measured.
    """

    steps: Table  # with_waits
    collectives: Table  # match_tables
    dp_phases: Table  # of DataParallel and dp-host
    exposed: Table  # step_tables
    copies: Table  # between devices: rank, device, step, bytes, count
    kernels: Table  # kernel_times
    exposed_parts: Table
    samples: Table  # RepeatFolder.samples


_COLUMNS = {
    **COLUMNS,
    "steps": (*COLUMNS["steps"], "transfer_us", "wait_us", *exposed_parts.EXPOSED),
    "collectives": (*COLUMNS["collectives"], *MATCHED_COLUMNS),
    "exposed_parts": exposed_parts.COLUMNS,
    "samples": ("measuring_pass", "epoch", "step", "step_us", "data_wait_us", "samples", "rank"),
}


NO_TABLES = Tables(
    **{name: without_rows((*columns, "repeat")) for name, columns in _COLUMNS.items()}
)


def join_tables(repeats: Sequence[Tables]) -> Tables:
    """The tables of repeats, one below the other."""
    every = [NO_TABLES, *repeats]
    return Tables(
        **{name: joined([vars(tables)[name] for tables in every]) for name in vars(NO_TABLES)}
    )


@dataclass(frozen=True)
class CounterCheck:
    """One rank's comparison over `steps` steps: `span_ratio` is trace span / DDP's span, their
    median.

    `union_within_span` and `spans_agree` hold if they do in more than half of the steps, within
    SPAN_TOLERANCE and the time that the rank's threads waited for a core. `not_comparable`: why the
    spans cannot be compared.
    """

    rank: int
    steps: int
    span_ratio: float | None
    buckets_equal: bool
    spans_agree: bool
    union_within_span: bool
    not_comparable: str | None = None


@dataclass(frozen=True)
class LeftOut:
    """Why a repeat is left out of traced values: its traces are not whole."""

    repeat: int
    label: str  # of the limit on a run's first screen
    reason: str
    next_step: str


@dataclass(frozen=True)
class Job:
    """All repeats of one job, every table with a column `repeat`.

    `devices` and `processes` count the whole job, also where traces of some ranks are missing.
    """

    __repr__ = short_repr

    name: str
    strategy: JobStrategy  # "other" if traces show none of dpscope's
    devices: int
    processes: int
    plan: Cell | None = None  # of the run that measured it
    skip_reason: str | None = None
    results: tuple[CellResult, ...] = ()
    ranks: tuple[tuple[int, RankResult], ...] = ()  # (repeat, result of one process)
    tables: Tables = NO_TABLES
    summaries: tuple[TraceSummary, ...] = ()  # of each trace
    # of traces that do not show their rank's communication, next to others that do
    without_communication: tuple[TraceSummary, ...] = ()
    # (repeat, a rank's step), of the first repeat with traces
    timelines: tuple[tuple[int, StepTimeline], ...] = ()
    counter_checks: tuple[CounterCheck, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    findings: tuple[Finding, ...] = ()
    # usable on each host where they are the devices; None for GPUs, and of traces alone
    cores: int | None = None
    communication_known: bool = True  # False if a trace lacks what the strategy must have moved
    # as which of the run's cells it was measured in each repeat
    places: tuple[int, ...] | None = None

    samples = FrameOf()  # a row per timed or traced step
    steps = FrameOf()  # a row per (repeat, rank, device, step), with what it waits and transfers
    collectives = FrameOf()  # a row per collective of a rank, matched across ranks
    dp_phases = FrameOf()  # a row per (repeat, rank, device, step, phase) of `nn.DataParallel`
    copies = FrameOf()  # between devices, a row per (repeat, rank, device, step)
    kernels = FrameOf()  # how long kernels run next to communication and alone
    exposed = FrameOf()  # where communication is exposed, a row per stretch of time
    # what exposed communication is: transfer, wait or other, by kind and late rank
    exposed_parts = FrameOf()

    def with_findings(self, *findings: Finding) -> "Job":
        """The same job with these findings after its own. What was computed of its tables is kept:
        of thousands of ranks it takes as long as reading them.
        """
        job = replace(self, findings=(*self.findings, *findings))
        computed = vars(self).keys() - vars(job).keys()
        vars(job).update({name: vars(self)[name] for name in computed})
        return job

    @property
    def cell(self) -> Cell:
        """The cell of the run's plan. Raises Missing for traces alone."""
        return known(self.plan, TRACES_ALONE)

    @property
    def traits(self) -> StrategyTraits:
        """What its strategy is like."""
        return traits_of(self.strategy)

    @property
    def nodes(self) -> int:
        """Hosts that the job spans; 1 for traces."""
        return self.plan.nodes if self.plan is not None else 1

    @property
    def variant(self) -> str:
        """Its options that are not the default, in words."""
        return self.plan.variant if self.plan is not None else ""

    @property
    def options(self) -> CellOptions:
        """The options that it is known to have run under: none for traces alone."""
        return self.plan.options if self.plan is not None else CellOptions()

    @property
    def measured(self) -> bool:
        """Whether one of its repeats ended well, or its traces were read."""
        return bool(self.ranks) or self.plan is None

    @property
    def rank(self) -> RankResult:
        """The result of its first process. Raises Missing for traces alone."""
        if not self.ranks:
            raise Missing(TRACES_ALONE)
        return self.ranks[0][1]

    @property
    def world_size(self) -> int | None:
        """Ranks of the job; None where no trace records them."""
        sizes = (summary.parallelism.world_size for summary in self.summaries)
        return max((size for size in sizes if size is not None), default=None)

    @property
    def has_unknown_size(self) -> bool:
        """Whether its one process communicates with others, and nothing shows with how many."""
        alone = self.processes == 1 and self.world_size is None and not self.traits.one_process
        return alone and len(self.tables.collectives) > 0

    @property
    def sources(self) -> list[str]:
        """The files that hold the traces."""
        return [summary.source for summary in self.summaries]

    @property
    def cut_short(self) -> list[str]:
        """The traces whose file ends too early, or cannot be read to its end."""
        every = (*self.summaries, *self.without_communication)
        return [summary.source for summary in every if summary.cut_short]

    @property
    def left_out_text(self) -> str:
        """Why repeats are left out of traced values, and how many are left."""
        reasons = listed([left_out.reason for left_out in self.left_out], 1)
        repeats = len({repeat for repeat, _ in self.ranks})
        left = repeats - len(self.left_out)
        return f"{reasons}; traced values are from {left} of {counted(repeats, 'repeat')}"

    @property
    def why_not_traced(self) -> str:
        """Why no repeat has whole traces; empty if one has."""
        repeats = {repeat for repeat, _ in self.ranks}
        none_left = bool(repeats) and len(self.left_out) == len(repeats)
        return self.left_out_text if none_left else ""

    @property
    def not_split(self) -> NotSplit | None:
        """Why communication is not split into transfer and waiting; None where it is, at least in
        part.
        """
        matched = self.tables.collectives
        if matched.known("transfer_us").any():
            return None
        ranks = [summary.rank for summary in self.summaries]
        return why_not_split(ranks, self.world_size, matched, self.findings)

    @property
    def trained_alone(self) -> bool:
        """Whether its processes did not communicate, each training a model by itself."""
        return any(finding.code == AttachCode.TRAINED_ALONE.code for finding in self.findings)

    @property
    def no_scaling(self) -> str:
        """Why its steps say nothing about what more devices gain; empty if they do."""
        if self.trained_alone:
            return "each process trained alone"
        here = -(-self.devices // self.nodes)
        if self.cores is not None and here > self.cores:
            return f"{counted(here, 'device')} share {counted(self.cores, 'core')}"
        return ""

    @property
    def knows_options(self) -> bool:
        """Whether dpscope ran its steps and chose their options, rather than a script or the author
        of the traces.
        """
        return bool(self.ranks) and all(rank.attached is None for _, rank in self.ranks)

    @property
    def knows_samples(self) -> bool:
        """Whether the samples of its steps are known; if a script shows no batch, one per device is
        counted instead.
        """
        return all(rank.attached is None or rank.attached.batch_known for _, rank in self.ranks)

    @cached_property
    def samples_by_rank(self) -> Mapping[int, float]:
        """Samples of a timed step of each rank of a script, in its first repeat; empty for others,
        whose batches are equal.
        """
        if not self.ranks or self.knows_options or not self.knows_samples:
            return {}
        first = self.ranks[0][0]
        samples: dict[int, float] = {}
        for repeat, rank in self.ranks:
            if repeat == first and rank.blocks and rank.blocks[0].steps:
                samples[rank.rank] = rank.blocks[0].samples / rank.blocks[0].steps
        return samples

    @property
    def batch_text(self) -> str:
        """The batch per device, or its range over the ranks of a script."""
        devices = self.devices // self.processes
        counts = {round(count / devices) for count in self.samples_by_rank.values()}
        return f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{self.cell.batch_size}"

    @property
    def global_batch_size(self) -> int:
        """Samples of a step over all devices: of a script the sum over its ranks, which may
        differ.
        """
        if len(self.samples_by_rank) == self.processes:
            return round(sum(self.samples_by_rank.values()))
        return self.cell.global_batch_size

    @property
    def device_name(self) -> str | None:
        """The first device's name; None where the traces do not record it."""
        names = [name for _, rank in self.ranks for name in rank.device_names]
        names += [summary.device_name for summary in self.summaries if summary.device_name]
        return next(iter(names), None)

    @property
    def traced_devices(self) -> str:
        """The names of the devices traced, each with their number; empty where none is recorded."""
        counts: Counter[str] = Counter()
        for summary in self.summaries:
            if summary.device_name is not None and summary.on_device:
                counts[summary.device_name] += max(1, summary.parallelism.devices)
        return ", ".join(f"{count} x {name}" for name, count in counts.items())

    @property
    def foreign_format(self) -> str | None:
        """What the files are called whose ranks another program than torch.profiler recorded; None
        where none did.
        """
        formats = dict.fromkeys(summary.format for summary in self.summaries)
        return next((name for name in formats if name != TraceSummary.format), None)

    @property
    def on_device(self) -> bool:
        """Whether devices were traced, not only the CPU."""
        traced = any(summary.on_device for summary in self.summaries)
        return traced or bool(self.tables.steps.known("device").any())

    def step_samples(self, column: str = "step_us", measuring_pass: str = "timed") -> TurnSamples:
        """One array per repeat: a column's mean over ranks for every whole step of a pass,
        microseconds.

        The wait for the loader is the maximum over ranks, because the others wait for that rank in
        their all-reduces. Steps with fewer samples than the rank's others, the last of an epoch,
        are left out.
        """
        key = column, measuring_pass
        if key not in self._computed_samples:
            self._computed_samples[key] = self._samples_of(*key)
        samples: TurnSamples = self._computed_samples[key]
        return samples

    @cached_property
    def _computed_samples(self) -> dict[tuple[str, str], TurnSamples]:
        return {}

    def _samples_of(self, column: str, measuring_pass: str) -> TurnSamples:
        chosen = self.tables.samples.having("measuring_pass", measuring_pass)
        ranks = chosen.group("repeat", "rank")
        whole = chosen.take(chosen["samples"] >= ranks.most(chosen.real("samples"))[ranks.code])
        steps = whole.group("repeat", "epoch", "step", in_order=True)
        over_ranks = steps.most if column == "data_wait_us" else steps.means
        per_step = over_ranks(whole[column])
        repeats = whole["repeat"][steps.first]
        numbers = np.unique(repeats).tolist()
        places = None
        if self.places is not None and max(numbers, default=0) < len(self.places):
            places = [self.places[repeat] for repeat in numbers]
        return TurnSamples([per_step[repeats == repeat] for repeat in numbers], places)

    @cached_property
    def whole_windows(self) -> Table:
        """Traced steps that averages are of; of traces alone without a complete window, from their
        first event.
        """
        whole = whole_steps(self.tables.steps)
        if self.plan is None:
            return whole
        return whole.take(~whole.truths("partial_window", missing=True))

    @property
    def has_whole_step(self) -> bool:
        """Whether a step was recorded from its begin to its end; a run leaves out all others."""
        partial = self.whole_windows.truths("partial_window", missing=True)
        return self.plan is not None or not partial.all()

    @cached_property
    def critical_windows(self) -> Table:
        """The `whole_windows` that a cell's values come from: of a process with several devices,
        its critical device's.
        """
        return self.whole_windows.take(critical_rows(self.whole_windows))

    @cached_property
    def whole_collectives(self) -> Table:
        """The collectives of `whole_windows`."""
        return self.tables.collectives.within(self.whole_windows, STEP_KEYS)

    @cached_property
    def traced_ledger(self) -> Ledger | None:
        """Where a whole traced step goes, without intervals; None without such a step."""
        ledger = ledger_of(self.whole_windows, self.tables.exposed_parts)
        if ledger is None:
            return ledger
        return replace(ledger, left_out_steps=far_longer_count(self.tables.steps))

    @cached_property
    def messages(self) -> Messages:
        """What is exposed of small collectives, and of large reductions."""
        parts, of_steps = self.tables.exposed_parts, self.whole_collectives
        return messages_of(self.whole_windows, parts, of_steps, sorted(collectives.REDUCING))

    @cached_property
    def contentions(self) -> Contentions:
        """How much longer kernels run next to communication than free ones of the same class."""
        found = contentions(self.tables.kernels)
        return of_enough_hidden(found, self.traced_ledger)

    @cached_property
    def ledger(self) -> Ledger | None:
        """`traced_ledger` with the contention among the job's own kernels; None if communication is
        unknown.
        """
        if not self.communication_known or self.traced_ledger is None:
            return None
        return with_contention(self.traced_ledger, self.contentions)

    @cached_property
    def waits_caused(self) -> Table:
        """`waits_by_pair` of the whole steps of each repeat, with their `repeat`; without rows if
        waits are unknown.
        """
        by_repeat = [without_rows((*lateness.PAIR_COLUMNS, "repeat"))]
        if self.communication_known:
            for repeat, matched in _by_repeat(self.step_collectives):
                by_repeat.append(lateness.waits_by_pair(matched).assign(repeat=repeat))
        return joined(by_repeat)

    @cached_property
    def every_wait(self) -> Table:
        """`waits_caused` with what is exposed of each wait, a mean over the repeat's windows."""
        columns = (*lateness.PAIR_COLUMNS, *exposed_parts.EXPOSED_WAIT, "repeat")
        by_repeat = [without_rows(columns)]
        parts = dict(_by_repeat(self.tables.exposed_parts))
        windows = dict(_by_repeat(self.whole_windows))
        for repeat, waits in _by_repeat(self.waits_caused):
            exposed = parts.get(repeat, NO_TABLES.exposed_parts)
            by_repeat.append(exposed_parts.with_exposed_waits(waits, exposed, windows[repeat]))
        return joined(by_repeat)

    @property
    def waits(self) -> "pd.DataFrame":
        """`every_wait` as a DataFrame."""
        return self.every_wait.frame

    @cached_property
    def mean_waits(self) -> Table:
        """Mean waits per (late rank, waiting rank), the longest exposed one first; a repeat without
        such a wait counts as 0.
        """
        waits = self.waits_caused
        repeats = len(self.tables.steps.group("repeat"))
        pairs = waits.group("late_rank", "waiting_rank", in_order=True)
        wait_us = pairs.sums(waits["wait_per_step_us"])
        means = waits.take(pairs.first).assign(
            collectives=pairs.sums(waits["collectives"]).astype(np.int64),
            wait_per_step_us=wait_us / max(repeats, 1),
            wait_share=wait_us / wait_us.sum() if len(wait_us) else wait_us,
        )
        longest = means.take(np.argsort(-wait_us, kind="stable"))
        parts = self.tables.exposed_parts
        return exposed_parts.with_exposed_waits(longest, parts, self.whole_windows)

    @cached_property
    def last_rank(self) -> LastRank | None:
        """The rank that arrives last in most steps; None if waits are unknown, or in one
        process.
        """
        judged = self.communication_known and not self.traits.one_process
        return lateness.last_rank(self.step_collectives) if judged else None

    @cached_property
    def late(self) -> LateRank | None:
        """What that rank costs; None if ranks take turns in arriving last."""
        return lateness.late_rank(self.whole_windows, self.last_rank, self.traced_ledger)

    @cached_property
    def broadcast_waits_us(self) -> float:
        """Wait in small broadcasts, microseconds per step: mean over ranks and steps."""
        return lateness.broadcast_waits_us(self.step_collectives)

    @cached_property
    def step_collectives(self) -> Table:
        """The collectives of the steps that have a whole window on some device."""
        return self.tables.collectives.within(self.whole_windows, ("repeat", "rank", "step"))

    @cached_property
    def parts_by_repeat(self) -> Mapping[str, stats.Floats]:
        """For each of PARTS its known values by repeat, of repeats with traced and timed steps;
        microseconds.

        Means over ranks and whole traced steps, as in `Ledger`; `tracer` is the repeat's untraced
        median minus its mean traced step.
        """
        timed = self.tables.samples.having("measuring_pass", "timed")
        numbers = np.unique(timed["repeat"])
        medians_us = np.array([np.median(steps) for steps in self.step_samples()])
        windows = self.critical_windows.take(np.isin(self.critical_windows["repeat"], numbers))
        repeats = windows.group("repeat", in_order=True)
        traced = np.searchsorted(numbers, windows["repeat"][repeats.first])
        means = {part: repeats.means(windows[f"{part}_us"]) for part in (*STEP_PARTS, "exposed")}
        means["traced_step"] = repeats.means(windows["step_us"])
        means["tracer"] = medians_us[traced] - means["traced_step"]
        return {part: values[~np.isnan(values)] for part, values in means.items()}


def _by_repeat(table: Table) -> list[tuple[int, Table]]:
    """Each repeat's number and rows; of a single one they are the table itself."""
    repeats = np.unique(table["repeat"]).tolist()
    return [(repeat, table.take(table["repeat"] == repeat)) for repeat in repeats]


def planned_job(cell: Cell, skip_reason: str | None = None) -> Job:
    """A cell of a plan of which nothing has been read."""
    return Job(cell.name, cell.strategy, cell.devices, cell.processes, cell, skip_reason)


def together(jobs: Sequence[Job]) -> Job:
    """Jobs that are alike, each with the repeats it holds, as one: the first with what was read of
    all.
    """
    gathered: dict[str, Any] = {}
    for name in _GATHERED:
        gathered[name] = tuple(chain.from_iterable(getattr(job, name) for job in jobs))
    return replace(
        jobs[0],
        tables=join_tables([job.tables for job in jobs]),
        timelines=next((job.timelines for job in jobs if job.timelines), ()),
        communication_known=all(job.communication_known for job in jobs),
        **gathered,
    )


def as_repeats(jobs: Sequence[Job]) -> Job:
    """Jobs that are alike as the repeats of one, numbered from 0."""
    if len(jobs) == 1:
        return jobs[0]
    numbered = []
    for repeat, job in enumerate(jobs):
        tables = {name: table.assign(repeat=repeat) for name, table in vars(job.tables).items()}
        numbered.append(replace(job, tables=Tables(**tables)))
    return together(numbered)
