"""The public API's analysis of a run or of traces: what `dpscope analyze` knows, its verdict
included.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from dpscope.analysis.costs.calibration_files import costs_at
from dpscope.analysis.findings.facts import Verdict
from dpscope.analysis.findings.verdict import traces_verdict
from dpscope.analysis.report.build import Report, make_report
from dpscope.analysis.runs.run_data import RunData, load_run, traced_run
from dpscope.analysis.traces.ranks import trace_analysis
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.analysis.traces.ranks.process_pool import FileProgress
from dpscope.analysis.traces.ranks.readers import Paths
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS, ReadLimits
from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import is_run_folder

if TYPE_CHECKING:
    import pandas as pd


_MOST_LETTERS = 80  # of a line of a repr, as on a terminal


class Frames(Mapping[str, "pd.DataFrame"]):
    """DataFrames by name, each made when it is first asked for."""

    def __init__(self, makers: Mapping[str, "Callable[[], pd.DataFrame]"]) -> None:
        self._makers = makers
        self._made: dict[str, pd.DataFrame] = {}

    def __getitem__(self, name: str) -> "pd.DataFrame":
        if name not in self._makers:
            raise KeyError(f"{name}: choose from {', '.join(self)}")
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __repr__(self) -> str:
        return f"Frames({', '.join(self)})"


@dataclass(frozen=True)
class Analysis:
    """A run, or the traces of one job, with what is concluded from it."""

    report: Report

    @property
    def run(self) -> RunData:
        """What was read: its `cells` are by name a `Job` each."""
        return self.report.run

    @property
    def verdict(self) -> Verdict:
        """The facts that `dpscope analyze` prints, and the numbers behind them."""
        return self.report.verdict

    @property
    def ledger(self) -> Ledger | None:
        """Where a step goes, of the cell that the verdict is about; None where none was traced."""
        return self.verdict.ledger

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Each with severity, code, message and next step."""
        return self.report.findings

    @cached_property
    def frames(self) -> Frames:
        """The tables as DataFrames: `cells` has every column, `every_step` and its like a row for
        each that was traced, the others are those of the report.

        Names of columns end in their unit; a missing number is NaN.
        """
        tables = {**self.report.first, **self.report.tables, **self.report.study}
        return Frames(
            {
                "cells": lambda: self.report.comparison.table,
                "every_step": lambda: self._joined(lambda job: job.steps),
                "every_collective": lambda: self._joined(lambda job: job.collectives),
                "every_phase": lambda: self._joined(lambda job: job.dp_phases),
                **{name: table.frame for name, table in tables.items()},
            }
        )

    def _joined(self, table: "Callable[[Job], pd.DataFrame]") -> "pd.DataFrame":
        """A table of every cell, in which a column names it."""
        import pandas as pd

        parts = []
        for job in self.run.measured:
            rows = table(job).copy()
            rows.insert(0, "cell", job.name)
            parts.append(rows)
        return pd.concat(parts, ignore_index=True)

    def __repr__(self) -> str:
        cells = ", ".join(self.run.cells)
        title = f"Analysis of {self.run.path}: {cells}"
        names = ", ".join(self.frames)
        return _outline(title, self.verdict, ("verdict, ledger, findings, run", f"frames: {names}"))

    def _repr_html_(self) -> str:
        """What a notebook shows: the verdict as a table."""
        rows = []
        for fact in self.verdict.shown:
            lines = "<br>".join(map(escape, fact.lines))
            rows.append(f"<tr><th>{escape(fact.label)}</th><td>{lines}</td></tr>")
        return f"<p>{escape(self.verdict.setting)}</p><table>{''.join(rows)}</table>"


def _outline(title: str, verdict: Verdict, names: Sequence[str]) -> str:
    """What print shows: a title, the verdict, and what there is to look at by name."""
    lines = [title, verdict.setting, *(fact.text for fact in verdict.shown), *names]
    shown = []
    for line in lines:
        shown += wrap(line, _MOST_LETTERS, subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(shown)


def analyze(
    paths: Paths, link: str | None = None, calibration: str | Path | None = None
) -> Analysis:
    """Read a run folder, or the traces of one job, and draw the conclusions of `dpscope analyze`.

    `link`, such as ``25GB/s``, is the link between the devices; `calibration` is a file or a run
    folder. Raises DpscopeError for what cannot be read, and for traces of several jobs.
    """
    named = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    if not named:
        raise DpscopeError("analyze: paths is empty; give a run folder, or trace files")
    try:
        stated_link = None if link is None else parse_link(link)
    except ValueError as error:
        raise DpscopeError(f"analyze: link {link}: {error}") from error
    costs = None if calibration is None else costs_at(Path(calibration))
    return Analysis(make_report(_read(named), stated_link, costs))


def _read(paths: Sequence[Path]) -> RunData:
    if len(paths) == 1 and is_run_folder(paths[0]):
        return load_run(paths[0])
    return traced_run(trace_analysis.analyze_traces(paths), paths)


@dataclass(frozen=True)
class AnalyzedJob(Job):
    """A `Job` with the verdict on it."""

    @cached_property
    def verdict(self) -> Verdict:
        """The facts that `dpscope analyze` prints, and the numbers behind them."""
        return traces_verdict(self)

    def __repr__(self) -> str:
        tables = "tables: steps, collectives, waits, dp_phases, exposed_parts, kernels"
        others = "verdict, ledger, late, summaries, findings"
        return _outline(f"Job: {self.name}", self.verdict, (others, tables))


def _with_verdict(found: Job) -> AnalyzedJob:
    return AnalyzedJob(**{field.name: getattr(found, field.name) for field in fields(found)})


def analyze_traces(
    paths: Paths, limits: ReadLimits = DEFAULT_LIMITS, progress: FileProgress | None = None
) -> AnalyzedJob:
    """`trace_analysis.analyze_traces`, with the verdict."""
    return _with_verdict(trace_analysis.analyze_traces(paths, limits, progress))


def analyze_jobs(
    paths: Paths, limits: ReadLimits = DEFAULT_LIMITS, progress: FileProgress | None = None
) -> dict[str, AnalyzedJob]:
    """`trace_analysis.analyze_jobs`, each job with its verdict."""
    return {
        name: _with_verdict(one)
        for name, one in trace_analysis.analyze_jobs(paths, limits, progress).items()
    }
