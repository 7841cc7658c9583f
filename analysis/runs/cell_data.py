"""One measured cell: the tables of all its repeats, and tables derived from them, each computed once.

How far the repeats of a run's cells lie apart, pooled over the cells, and each cell's ledger with intervals from it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dpscope.analysis.runs.counter_check import CounterCheck
from dpscope.analysis.runs.traced_job import TracedJob, traced_job
from dpscope.analysis.stats import samples as stats
from dpscope.analysis.stats.turns import TurnSamples
from dpscope.analysis.traces.data_parallel import phases
from dpscope.analysis.traces.ranks import exposed_parts, lateness
from dpscope.analysis.traces.ranks.contention import contentions, with_contention
from dpscope.analysis.traces.ranks.exposed_parts import Messages, NotSplit
from dpscope.analysis.traces.ranks.lateness import LastRank, LateRank
from dpscope.analysis.traces.ranks.ledger import STEP_PARTS, Ledger, critical_rows, ledger_of
from dpscope.analysis.traces.ranks.matching import MATCHED_COLUMNS
from dpscope.analysis.traces.ranks.timeline import StepTimeline
from dpscope.analysis.traces.ranks.trace_analysis import TraceAnalysis
from dpscope.analysis.traces.ranks.whole_steps import far_longer_count, whole_steps
from dpscope.analysis.traces.reading.table import FrameOf, Table, joined
from dpscope.analysis.traces.steps import breakdown, collectives, kernel_times
from dpscope.profiling.records.attach_codes import AttachCode
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run import Cell, CellResult, RankResult
from dpscope.profiling.records.short_repr import short_repr

if TYPE_CHECKING:
    import pandas as pd

TRACES_ALONE = "traces alone: nothing else is known of their job"
PARTS = (*STEP_PARTS, "exposed", "traced_step", "tracer")
"""Parts of a cell's step: those that add up to the traced step, all exposed communication, the traced step, the tracer."""
STEP_KEYS = ("repeat", "rank", "device", "step")

AnyCell = Cell | TracedJob


def knows_batch(cell: AnyCell) -> bool:
    """Whether a cell's samples per device and step are known."""
    return isinstance(cell, Cell)


@dataclass(frozen=True)
class CellTables:
    """The tables of all repeats of a cell, each with a column `repeat`; without rows where nothing was measured."""

    samples: Table  # RepeatFolder.samples
    steps: Table  # with_waits
    exposed_parts: Table
    collectives: Table
    kernels: Table  # kernel_times
    dp_phases: Table  # of DataParallel and dp-host
    copies: Table  # between devices: rank, device, step, bytes, count


_COLUMNS = {
    "samples": ("measuring_pass", "epoch", "step", "step_us", "data_wait_us", "samples", "rank"),
    "steps": (*breakdown.COLUMNS, "transfer_us", "wait_us", *exposed_parts.EXPOSED),
    "exposed_parts": exposed_parts.COLUMNS,
    "collectives": (*collectives.COLUMNS, *MATCHED_COLUMNS),
    "kernels": kernel_times.COLUMNS,
    "dp_phases": phases.COLUMNS,
    "copies": phases.COPY_COLUMNS,
}
NO_TABLES = CellTables(**{name: Table.of(**dict.fromkeys((*own, "repeat"), ())) for name, own in _COLUMNS.items()})
_READ_AS = {name: name for name in _COLUMNS if name != "samples"} | {"steps": "steps_with_waits"}  # as in TraceTables
_NO_WAITS = Table.of(**dict.fromkeys((*lateness.PAIR_COLUMNS, "repeat"), ()))


def tables_of(repeats: Sequence[tuple[int, TraceAnalysis]], samples: Sequence[Table] = ()) -> CellTables:
    """The tables of the traces of each repeat, and of its samples, which name their repeat."""
    own = {
        name: [getattr(one.tables, read_as).assign(repeat=repeat) for repeat, one in repeats]
        for name, read_as in _READ_AS.items()
    }
    every = {"samples": samples, **own}
    return CellTables(**{name: joined([none, *every[name]]) for name, none in vars(NO_TABLES).items()})


@dataclass(frozen=True)
class CellData:
    """All finished repeats of one cell."""

    __repr__ = short_repr

    cell: AnyCell
    skip_reason: str | None
    results: tuple[CellResult, ...] = ()
    ranks: tuple[tuple[int, RankResult], ...] = ()  # (repeat, result of one process)
    tables: CellTables = NO_TABLES
    timelines: tuple[tuple[int, StepTimeline], ...] = ()  # (repeat, a rank's step), of the first repeat with traces
    counter_checks: tuple[CounterCheck, ...] = ()
    findings: tuple[Finding, ...] = ()
    not_split: NotSplit | None = None  # why foreign traces do not separate wait from transfer
    cores: int | None = None  # usable on each host where they are the devices; None for GPUs, and of traces alone
    communication_known: bool = True  # False if a trace lacks what the strategy must have moved
    places: tuple[int, ...] | None = None  # as which of the run's cells it was measured in each repeat

    samples = FrameOf()  # a row per timed or traced step
    steps = FrameOf()
    collectives = FrameOf()
    dp_phases = FrameOf()
    copies = FrameOf()

    @property
    def planned(self) -> Cell:
        """The cell of a run's plan; use `cell` where the data may be of traces alone."""
        assert isinstance(self.cell, Cell)
        return self.cell

    @property
    def nodes(self) -> int:
        """Hosts that the cell spans; 1 for traces."""
        return self.cell.nodes if isinstance(self.cell, Cell) else 1

    @property
    def measured(self) -> bool:
        """Whether one of its repeats ended well, or its traces were read."""
        return bool(self.ranks) or isinstance(self.cell, TracedJob)

    @property
    def trained_alone(self) -> bool:
        """Whether its processes did not communicate, each training a model by itself."""
        return any(finding.code == AttachCode.TRAINED_ALONE.code for finding in self.findings)

    @property
    def no_scaling(self) -> str:
        """Why its steps say nothing about what more devices gain; empty if they do."""
        if self.trained_alone:
            return "each process trained alone"
        here = -(-self.cell.devices // self.nodes)
        if self.cores is not None and here > self.cores:
            return f"{counted(here, 'device')} share {counted(self.cores, 'core')}"
        return ""

    @property
    def knows_options(self) -> bool:
        """Whether dpscope ran its steps and chose their options, rather than a script or the author of the traces."""
        return bool(self.ranks) and all(rank.attached is None for _, rank in self.ranks)

    @property
    def knows_samples(self) -> bool:
        """Whether the samples of its steps are known; if a script shows no batch, one per device is counted instead."""
        return all(rank.attached is None or rank.attached.batch_known for _, rank in self.ranks)

    @cached_property
    def samples_by_rank(self) -> Mapping[int, float]:
        """Samples of a timed step of each rank of a script, in its first repeat; empty for others, whose batches are equal."""
        known = self.ranks and not self.knows_options and self.knows_samples
        first = [rank for repeat, rank in self.ranks if repeat == self.ranks[0][0]] if known else []
        timed = [(rank.rank, block) for rank in first for block in rank.blocks[:1] if block.steps]
        return {rank: block.samples / block.steps for rank, block in timed}

    @property
    def cycle(self) -> int:
        """Steps after which a script does the same again: times are means over whole cycles."""
        return max((rank.attached.cycle for _, rank in self.ranks if rank.attached is not None), default=1)

    @property
    def batch_text(self) -> str:
        """The batch per device, or its range over the ranks of a script."""
        counts = {round(count / (self.cell.devices // self.cell.processes)) for count in self.samples_by_rank.values()}
        return f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{self.cell.batch_size}"

    @property
    def global_batch_size(self) -> int:
        """Samples of a step over all devices: of a script the sum over its ranks, which may differ."""
        whole = len(self.samples_by_rank) == self.cell.processes
        return round(sum(self.samples_by_rank.values())) if whole else self.cell.global_batch_size

    @property
    def device_name(self) -> str | None:
        """The first device's name; None where the traces do not record it."""
        if isinstance(self.cell, TracedJob):
            return self.cell.device_name
        return next((name for _, rank in self.ranks for name in rank.device_names), None)

    @property
    def on_device(self) -> bool:
        """Whether devices were traced, not only the CPU."""
        return bool(self.tables.steps.known("device").any())

    def step_samples(self, column: str = "step_us", measuring_pass: str = "timed") -> TurnSamples:
        """One array per repeat: a column's mean over ranks for every whole step of a pass, microseconds.

        The wait for the loader is the maximum over ranks, because the others wait for that rank in their all-reduces. Steps
        with fewer samples than the rank's others, the last of an epoch, are left out.
        """
        known = self._known_samples
        if (column, measuring_pass) not in known:
            chosen = self.tables.samples.having("measuring_pass", measuring_pass)
            ranks = chosen.group("repeat", "rank")
            whole = chosen.take(chosen["samples"] >= ranks.most(chosen.real("samples"))[ranks.code])
            steps = whole.group("repeat", "epoch", "step", in_order=True)
            per_step = steps.most(whole[column]) if column == "data_wait_us" else steps.means(whole[column])
            repeats = whole["repeat"][steps.first]
            numbers = np.unique(repeats).tolist()
            listed = self.places or ()
            places = [listed[repeat] for repeat in numbers] if max(numbers, default=0) < len(listed) else None
            by_repeat = [per_step[repeats == repeat] for repeat in numbers]
            known[column, measuring_pass] = TurnSamples(by_repeat, places)
        return TurnSamples(known[column, measuring_pass], known[column, measuring_pass].places)

    @cached_property
    def _known_samples(self) -> dict[tuple[str, str], TurnSamples]:
        return {}

    @cached_property
    def whole_windows(self) -> Table:
        """Traced steps that averages are of; of a job whose traces have no complete window, from their first event."""
        whole = whole_steps(self.tables.steps, alike=self.cycle == 1)
        of_job = isinstance(self.cell, TracedJob)
        return whole if of_job else whole.take(~whole.truths("partial_window", missing=True))

    @cached_property
    def critical_windows(self) -> Table:
        """The `whole_windows` that a cell's values come from: of a process with several devices, its critical device's."""
        return self.whole_windows.take(critical_rows(self.whole_windows))

    @cached_property
    def whole_collectives(self) -> Table:
        """The collectives of `whole_windows`."""
        return self.tables.collectives.within(self.whole_windows, STEP_KEYS)

    @cached_property
    def traced_ledger(self) -> Ledger | None:
        """Where a whole traced step goes, without intervals; None without such a step."""
        found = ledger_of(self.whole_windows, self.tables.exposed_parts)
        left_out = far_longer_count(self.tables.steps) if self.cycle == 1 else 0
        return None if found is None else replace(found, left_out_steps=left_out)

    @cached_property
    def messages(self) -> Messages:
        """What is exposed of small collectives, and of large reductions."""
        parts, own = self.tables.exposed_parts, self.whole_collectives
        return exposed_parts.messages_of(self.whole_windows, parts, own, sorted(collectives.REDUCING))

    @cached_property
    def job_ledger(self) -> Ledger | None:
        """`traced_ledger` with the contention among the cell's own kernels; None if communication is unknown."""
        ledger = self.traced_ledger if self.communication_known else None
        return with_contention(ledger, contentions(self.tables.kernels)) if ledger is not None else None

    @cached_property
    def waits_caused(self) -> Table:
        """`waits_by_pair` of the whole steps of each repeat, with their `repeat`; without rows if waits are unknown."""
        own = self._step_collectives
        repeats = np.unique(own["repeat"]).tolist() if self.communication_known else []
        pairs = (lateness.waits_by_pair(own.take(own["repeat"] == one)).assign(repeat=one) for one in repeats)
        return joined([_NO_WAITS, *pairs])

    @property
    def waits(self) -> "pd.DataFrame":
        """`waits_caused` as a DataFrame."""
        return self.waits_caused.frame

    @cached_property
    def mean_waits(self) -> Table:
        """Mean waits per (late rank, waiting rank), the longest exposed one first; a repeat without such a wait counts as 0."""
        waits, repeats = self.waits_caused, len(self.tables.steps.group("repeat"))
        pairs = waits.group("late_rank", "waiting_rank", in_order=True)
        wait_us = pairs.sums(waits["wait_per_step_us"])
        means = waits.take(pairs.first).assign(
            collectives=pairs.sums(waits["collectives"]).astype(np.int64),
            wait_per_step_us=wait_us / max(repeats, 1),
            share=wait_us / wait_us.sum() if len(wait_us) else wait_us,
        )
        longest = means.take(np.argsort(-wait_us, kind="stable"))
        return exposed_parts.with_exposed_waits(longest, self.tables.exposed_parts, self.whole_windows)

    @cached_property
    def last_rank(self) -> LastRank | None:
        """The rank that arrives last in most steps; None if waits are unknown, or in one process."""
        known = self.communication_known and not self.cell.traits.one_process
        return lateness.last_rank(self._step_collectives) if known else None

    @cached_property
    def late(self) -> LateRank | None:
        """What that rank costs; None if ranks take turns in arriving last."""
        return lateness.late_rank(self.whole_windows, self.last_rank, self.traced_ledger)

    @cached_property
    def broadcast_waits_us(self) -> float:
        """Wait in small broadcasts, microseconds per step: mean over ranks and steps."""
        return lateness.broadcast_waits_us(self._step_collectives)

    @cached_property
    def _step_collectives(self) -> Table:
        """The collectives of the steps that have a whole window on some device."""
        return self.tables.collectives.within(self.whole_windows, ("repeat", "rank", "step"))

    @cached_property
    def parts_by_repeat(self) -> Mapping[str, stats.Floats]:
        """For each of PARTS its known values by repeat, of repeats with traced and timed steps; microseconds.

        Means over ranks and whole traced steps, as in `Ledger`; `tracer` is the repeat's untraced median minus its mean traced
        step.
        """
        numbers = np.unique(self.tables.samples.having("measuring_pass", "timed")["repeat"]).tolist()
        untraced = {number: float(np.median(steps)) for number, steps in zip(numbers, self.step_samples(), strict=True)}
        windows = self.critical_windows.take(np.isin(self.critical_windows["repeat"], numbers))
        repeats = windows.group("repeat", in_order=True)
        columns = {part: f"{part}_us" for part in (*STEP_PARTS, "exposed")} | {"traced_step": "step_us"}
        means = {part: repeats.means(windows[column]) for part, column in columns.items()}
        untraced_us = np.array([untraced[number] for number in windows["repeat"][repeats.first].tolist()])
        means["tracer"] = untraced_us - means["traced_step"]
        return {part: values[~np.isnan(values)] for part, values in means.items()}


def traced_cell(jobs: Sequence[TraceAnalysis]) -> CellData:
    """The cell of a job that no run made; each of `jobs`, which are alike, is a repeat of it."""
    repeats = list(enumerate(jobs))
    return CellData(
        cell=traced_job(jobs[0]),
        skip_reason=None,
        tables=tables_of(repeats),
        timelines=tuple((repeat, timeline) for repeat, one in repeats for timeline in one.timelines),
        findings=tuple(finding for one in jobs for finding in one.findings),
        not_split=next((one.not_split for one in jobs if one.not_split is not None), None),
        communication_known=all(one.communication_known for one in jobs),
    )


@dataclass(frozen=True)
class RunSpreads:
    """`step`: of logarithms of untraced medians. `parts`: of PARTS, as shares of the cell's untraced step."""

    step: stats.Spread = stats.ALONE
    parts: Mapping[str, stats.Spread] = field(default_factory=lambda: dict.fromkeys(PARTS, stats.ALONE))

    def ledger(self, data: CellData) -> Ledger | None:
        """Means over ranks and whole traced windows, with 95% intervals over repeats; None without a traced step.

        `slowdown_us` is left out: it needs the cell of one device. Intervals come from the values of each repeat as shares of the
        untraced step; none with too few steps. They end at 0, but for the tracer's. A part that is 0 in every window has none:
        other cells' spread is not its own.
        """
        if (ledger := data.traced_ledger) is None:
            return None
        if data.cell.devices == 1 or not data.communication_known:
            ledger = replace(
                ledger, exposed_wait_us=None, exposed_transfer_us=None, exposed_other_us=None, communication_us=None
            )
        if not data.communication_known:
            ledger = replace(ledger, idle_us=None)  # it would hold what the trace does not show
        step_us = stats.pooled_median(data.step_samples())
        if step_us is not None and ledger.traced_step_us is not None:
            ledger = replace(ledger, tracer_us=step_us - ledger.traced_step_us)
        if step_us is None or min(sum(map(len, data.step_samples())), ledger.steps) < stats.FEWEST_SAMPLES:
            return ledger
        intervals = {}
        for part in PARTS:
            share = stats.half_width(data.parts_by_repeat[part] / step_us, self.parts[part])
            value = getattr(ledger, f"{part}_us")
            if share is not None and share < 1 and value is not None and (value or part == "tracer"):
                # an interval wider than the step itself is left out: it says nothing
                least = -math.inf if part == "tracer" else 0.0
                intervals[part] = stats.Interval(max(least, value - share * step_us), value + share * step_us)
        return replace(ledger, intervals=intervals)


def step_spread(cells: Sequence[CellData]) -> stats.Spread:
    """The spread of the untraced steps of a run's cells, which are measured in turns."""
    return stats.spread_in_turns(data.step_samples() for data in cells)


def run_spreads(cells: Sequence[CellData]) -> RunSpreads:
    """The pooled spreads of measured cells.

    What is 0 in every window, by the strategy, is no sample of a spread, and neither is what one device exposes.
    """
    timed = [(data, float(np.median(np.concatenate(steps)))) for data in cells if (steps := data.step_samples())]
    parts = {}
    for part in PARTS:
        own = (one for one in timed if one[0].cell.devices > 1 or "exposed" not in part)
        shares = (data.parts_by_repeat[part] / step_us for data, step_us in own)
        parts[part] = sum((stats.spread_of(one) for one in shares if one.any()), stats.ALONE)
    return RunSpreads(step_spread(cells), parts)
