"""One measured cell: the tables of all its repeats, and tables derived from them, each computed once.

How far the repeats of a run's cells lie apart, pooled over the cells, and each cell's ledger with intervals from it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd

from dpscope.analysis.runs import traced_job
from dpscope.analysis.runs.traced_job import CellStraggler, TracedJob
from dpscope.analysis.runs.traffic_check import CounterCheck
from dpscope.analysis.stats import samples as stats
from dpscope.analysis.traces.ranks.exposed_parts import NotSplit
from dpscope.analysis.traces.ranks.frames import waits_caused
from dpscope.analysis.traces.ranks.ledger import STEP_PARTS, Ledger, critical_rows, ledger_of
from dpscope.analysis.traces.ranks.timeline import StepTimeline
from dpscope.analysis.traces.reading.table import Table, as_table
from dpscope.profiling.records.attach_codes import AttachCode
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run import Cell, CellResult, RankResult

TRACES_ALONE = "traces alone: nothing else is known of their job"
PARTS = (*STEP_PARTS, "exposed", "traced_step", "tracer")
"""Parts of a cell's step: those that add up to the traced step, all exposed communication, the traced step, the tracer."""
STEP_KEYS = ["repeat", "rank", "device", "step"]

AnyCell = Cell | TracedJob


def knows_batch(cell: AnyCell) -> bool:
    """Whether a cell's samples per device and step are known."""
    return isinstance(cell, Cell)


@dataclass(frozen=True)
class CellData:
    """All finished repeats of one cell; tables have a `repeat` column and are empty where nothing was measured."""

    cell: AnyCell
    skip_reason: str | None
    results: tuple[CellResult, ...] = ()
    ranks: tuple[tuple[int, RankResult], ...] = ()  # (repeat, result of one process)
    samples: pd.DataFrame = field(default_factory=pd.DataFrame)
    steps: pd.DataFrame = field(default_factory=pd.DataFrame)  # step_breakdown + the columns of step_waits
    exposed_parts: pd.DataFrame = field(default_factory=pd.DataFrame)
    collectives: pd.DataFrame = field(default_factory=pd.DataFrame)
    kernels: pd.DataFrame = field(default_factory=pd.DataFrame)  # kernel_times
    dp_phases: pd.DataFrame = field(default_factory=pd.DataFrame)  # of DataParallel and dp-host
    copies: pd.DataFrame = field(default_factory=pd.DataFrame)  # between devices: rank, device, step, bytes, count
    timelines: tuple[tuple[int, StepTimeline], ...] = ()  # (repeat, a rank's step), of the first repeat with traces
    counter_checks: tuple[CounterCheck, ...] = ()
    findings: tuple[Finding, ...] = ()
    not_split: NotSplit | None = None  # why foreign traces do not separate wait from transfer
    communication_known: bool = True  # False if a trace lacks what the strategy must have moved

    @property
    def planned(self) -> Cell:
        """The cell of a run's plan; use `cell` where the data may be of traces alone."""
        assert isinstance(self.cell, Cell)
        return self.cell

    @property
    def nodes(self) -> int:
        """Hosts that the cell spans, counted from its processes where older versions did not store them; 1 for traces."""
        planned = self.cell.nodes if isinstance(self.cell, Cell) else 1
        return max(planned, len({rank.node for _, rank in self.ranks}))

    @property
    def measured(self) -> bool:
        """Whether one of its repeats ended well, or its traces were read."""
        return bool(self.ranks) or isinstance(self.cell, TracedJob)

    @property
    def trained_alone(self) -> bool:
        """Whether its processes did not communicate, each training a model by itself."""
        return any(finding.code == AttachCode.TRAINED_ALONE.code for finding in self.findings)

    @property
    def knows_options(self) -> bool:
        """Whether dpscope ran its steps and chose their options, rather than a script or the author of the traces."""
        return bool(self.ranks) and all(rank.attached is None for _, rank in self.ranks)

    @property
    def knows_samples(self) -> bool:
        """Whether the samples of its steps are known; if a script shows no batch, one per device is counted instead."""
        return all(rank.attached is None or rank.attached.batch_known for _, rank in self.ranks)

    @property
    def device_name(self) -> str | None:
        """The first device's name; None where the traces do not record it."""
        if isinstance(self.cell, TracedJob):
            return self.cell.device_name
        return next((name for _, rank in self.ranks for name in rank.device_names), None)

    @property
    def on_device(self) -> bool:
        """Whether devices were traced, not only the CPU."""
        return bool(len(self.steps) and self.steps["device"].notna().any())

    def step_samples(self, column: str = "step_us", measuring_pass: str = "timed") -> list[stats.Samples]:
        """One array per repeat: a column's mean over ranks for every whole step of a pass, microseconds.

        The wait for the loader is the maximum over ranks, because the others wait for that rank in their all-reduces. Steps
        with fewer samples than the others, the last of an epoch, are left out.
        """
        known = self._known_samples
        if (column, measuring_pass) not in known:
            if self.samples.empty:
                return []
            chosen = self.samples[self.samples["measuring_pass"] == measuring_pass]
            whole = chosen["samples"] >= chosen["samples"].max()
            groups = chosen[whole].groupby(["repeat", "epoch", "step"], dropna=False)[column]
            per_step = groups.max() if column == "data_wait_us" else groups.mean()
            by_repeat = per_step.groupby(level="repeat")
            known[column, measuring_pass] = [group.to_numpy(dtype=float) for _, group in by_repeat]
        return list(known[column, measuring_pass])

    @cached_property
    def _known_samples(self) -> dict[tuple[str, str], list[stats.Samples]]:
        return {}

    @cached_property
    def whole_windows(self) -> pd.DataFrame:
        """Traced steps with a complete window; of a job whose traces have none, its partial ones, from their first event."""
        if self.steps.empty:
            return self.steps
        whole = self.steps[~self.steps["partial_window"].fillna(True).astype(bool)]
        return self.steps if whole.empty and isinstance(self.cell, TracedJob) else whole

    @cached_property
    def critical_windows(self) -> pd.DataFrame:
        """The `whole_windows` that a cell's values come from: of a process with several devices, its critical device's."""
        return self.whole_windows[critical_rows(as_table(self.whole_windows))]

    @cached_property
    def whole_collectives(self) -> pd.DataFrame:
        """The collectives of `whole_windows`."""
        if self.whole_windows.empty or self.collectives.empty:
            return self.collectives.iloc[:0]
        return self.collectives.merge(self.whole_windows[STEP_KEYS], on=STEP_KEYS)

    @cached_property
    def traced_ledger(self) -> Ledger | None:
        """Where a whole traced step goes, without intervals; None without such a step."""
        windows = self.whole_windows
        return ledger_of(as_table(windows), as_table(self.exposed_parts)) if len(windows) else None

    @cached_property
    def waits(self) -> pd.DataFrame:
        """`waits_caused` of the whole steps of each repeat, with their `repeat`; empty if waits are unknown."""
        own = self._step_collectives
        if own.empty or not self.communication_known:
            return pd.DataFrame()
        return concatenated([waits_caused(table).assign(repeat=repeat) for repeat, table in own.groupby("repeat")])

    @cached_property
    def mean_waits(self) -> pd.DataFrame:
        """Mean waits per (late rank, waiting rank), the longest first; a repeat without such a wait counts as 0."""
        if self.waits.empty:
            return self.waits
        sums = ["collectives", "wait_per_step_us"]
        pairs = self.waits.groupby(["late_rank", "waiting_rank"], as_index=False)[sums].sum()
        pairs["share"] = pairs["wait_per_step_us"] / pairs["wait_per_step_us"].sum()
        pairs["wait_per_step_us"] /= self.steps["repeat"].nunique()
        return pairs.sort_values("wait_per_step_us", ascending=False, kind="stable")

    @cached_property
    def straggler(self) -> CellStraggler | None:
        """The rank that most waiting is for in every repeat; None if ranks take turns, which is noise."""
        if self.cell.traits.one_process or self._step_collectives.empty:
            return None
        return traced_job.straggler_of(self._with_broadcast_waits, float(self.whole_windows["step_us"].mean()))

    @cached_property
    def broadcast_waits_us(self) -> float:
        """Wait in small broadcasts, microseconds per step: mean over ranks and steps."""
        return traced_job.broadcast_waits_us(self._with_broadcast_waits)

    @cached_property
    def _step_collectives(self) -> pd.DataFrame:
        """The collectives of the steps that have a whole window on some device."""
        if self.whole_windows.empty or self.collectives.empty:
            return pd.DataFrame()
        return self.collectives.merge(self.whole_windows[["repeat", "rank", "step"]].drop_duplicates())

    @cached_property
    def _with_broadcast_waits(self) -> Table:
        return traced_job.with_broadcast_waits(as_table(self._step_collectives))

    @cached_property
    def parts_by_repeat(self) -> pd.DataFrame:
        """A row per repeat with traced and timed steps and a column for each of PARTS, microseconds; NaN is unknown.

        Means over ranks and whole traced steps, as in `Ledger`; `tracer` is the repeat's untraced median minus its mean traced
        step.
        """
        windows = self.critical_windows
        if windows.empty or self.samples.empty:
            return pd.DataFrame(columns=list(PARTS), dtype=float)
        numbers = sorted(set(self.samples.loc[self.samples["measuring_pass"] == "timed", "repeat"]))
        untraced = {number: float(np.median(steps)) for number, steps in zip(numbers, self.step_samples(), strict=True)}
        columns = {f"{part}_us": part for part in (*STEP_PARTS, "exposed")} | {"step_us": "traced_step"}
        means = windows.groupby("repeat")[list(columns)].mean().astype("Float64").astype(float).rename(columns=columns)
        means = means[means.index.isin(list(untraced))]
        return means.assign(tracer=means.index.map(untraced).astype(float) - means["traced_step"])[list(PARTS)]


def concatenated(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """The frames below each other; the columns are those of the non-empty ones, if there are any."""
    return pd.concat([one for one in frames if len(one)] or frames[:1] or [pd.DataFrame()], ignore_index=True)


@dataclass(frozen=True)
class RunSpreads:
    """`step`: of logarithms of untraced medians. `parts`: of PARTS, as shares of the cell's untraced step."""

    step: stats.Spread = stats.ALONE
    parts: Mapping[str, stats.Spread] = field(default_factory=lambda: dict.fromkeys(PARTS, stats.ALONE))
    _ledgers: dict[int, tuple[CellData, Ledger | None]] = field(default_factory=dict, repr=False, compare=False)

    def ledger(self, data: CellData) -> Ledger | None:
        """Means over ranks and whole traced windows, with 95% intervals over repeats; None without a traced step.

        `slowdown_us` is left out: it needs the cell of one device. Computed once per cell.
        """
        if id(data) not in self._ledgers:
            self._ledgers[id(data)] = data, _ledger(data, self)
        return self._ledgers[id(data)][1]


def step_spread(cells: Sequence[CellData]) -> stats.Spread:
    """The spread of the untraced steps of a run's cells, which are measured in turns."""
    return stats.spread_in_turns(data.step_samples() for data in cells)


def run_spreads(cells: Sequence[CellData]) -> RunSpreads:
    """The pooled spreads of measured cells.

    What is 0 in every window, by the strategy, is no sample of a spread, and neither is what one device exposes.
    """
    timed = [data for data in cells if len(data.samples)]
    shares = [(one, one.parts_by_repeat / float(np.median(np.concatenate(one.step_samples())))) for one in timed]
    parts = {}
    for part in PARTS:
        values = (
            own[part].dropna().to_numpy() for data, own in shares if data.cell.devices > 1 or "exposed" not in part
        )
        parts[part] = sum((stats.spread_of(one) for one in values if one.any()), stats.ALONE)
    return RunSpreads(step_spread(cells), parts)


def _ledger(data: CellData, spreads: RunSpreads) -> Ledger | None:
    """Its intervals come from the values of each repeat as shares of the untraced step; none with too few steps.

    They end at 0, but for the tracer's. A part that is 0 in every window has none: other cells' spread is not its own.
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
    traced = len(data.critical_windows.drop_duplicates(["repeat", "step"]))
    if step_us is None or min(sum(map(len, data.step_samples())), traced) < stats.FEWEST_SAMPLES:
        return ledger
    intervals = {}
    for part in PARTS:
        share = stats.half_width((data.parts_by_repeat[part].dropna() / step_us).to_numpy(), spreads.parts[part])
        value = getattr(ledger, f"{part}_us")
        if share is not None and share < 1 and value is not None and (value or part == "tracer"):
            # an interval wider than the step itself is left out: it says nothing
            least = -math.inf if part == "tracer" else 0.0
            intervals[part] = stats.Interval(max(least, value - share * step_us), value + share * step_us)
    return replace(ledger, intervals=intervals)
