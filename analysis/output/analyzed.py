"""The public API's analysis of traces: what `dpscope analyze` knows of a job, its verdict
included.
"""

from concurrent.futures import Executor
from dataclasses import dataclass, fields
from functools import cached_property

from dpscope.analysis.findings.answers import Verdict, traces_verdict
from dpscope.analysis.traces.ranks import trace_analysis
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.process_pool import FileProgress
from dpscope.analysis.traces.ranks.readers import Paths
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS, ReadLimits
from dpscope.profiling.records.short_repr import short_repr


@dataclass(frozen=True)
class AnalyzedJob(Job):
    """A `Job` with the verdict on it."""

    __repr__ = short_repr

    @cached_property
    def verdict(self) -> Verdict:
        """The four answers, as `dpscope analyze` prints them, and the facts behind them."""
        return traces_verdict(self)


def _with_verdict(found: Job) -> AnalyzedJob:
    return AnalyzedJob(**{one.name: getattr(found, one.name) for one in fields(found)})


def analyze_traces(
    paths: Paths,
    limits: ReadLimits = DEFAULT_LIMITS,
    executor: Executor | None = None,
    progress: FileProgress | None = None,
) -> AnalyzedJob:
    """`trace_analysis.analyze_traces`, with the verdict."""
    return _with_verdict(trace_analysis.analyze_traces(paths, limits, executor, progress))


def analyze_jobs(
    paths: Paths, limits: ReadLimits = DEFAULT_LIMITS, progress: FileProgress | None = None
) -> dict[str, AnalyzedJob]:
    """`trace_analysis.analyze_jobs`, each job with its verdict."""
    return {
        name: _with_verdict(one)
        for name, one in trace_analysis.analyze_jobs(paths, limits, progress).items()
    }
