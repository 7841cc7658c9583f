"""The public Python API: what `from dpscope.analysis import ...` gives. Whatever lies deeper may
move.

Each name is loaded when it is first asked for: importing this takes no time. docs/python-api.md
says what each one does.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpscope.analysis.cells.columns import column
    from dpscope.analysis.cells.comparison import compare
    from dpscope.analysis.costs.cost import Links
    from dpscope.analysis.epoch_times.epoch_time import EpochTable, EpochTime
    from dpscope.analysis.epoch_times.estimates import EpochEstimate, epoch_estimates
    from dpscope.analysis.epoch_times.report import estimate_markdown, estimate_report
    from dpscope.analysis.epoch_times.table import read_epoch_times
    from dpscope.analysis.output.api_results import Analysis, analyze, analyze_jobs, analyze_traces
    from dpscope.analysis.report.build import make_report, write_report
    from dpscope.analysis.runs.run_data import load_run
    from dpscope.analysis.stats.missing import Missing
    from dpscope.analysis.traces.merge.merge_ranks import merge_traces
    from dpscope.analysis.traces.ranks.frames import (
        align_clocks,
        collectives,
        dp_phases,
        match_ranks,
        step_breakdown,
        step_waits,
        waits_caused,
    )
    from dpscope.analysis.traces.ranks.matching import RankOrigin
    from dpscope.analysis.traces.ranks.reduce import reduce_traces
    from dpscope.analysis.traces.reading.chunks import ReadLimits
    from dpscope.analysis.traces.reading.reader import read_trace
    from dpscope.analysis.traces.reading.traces import read_traces
    from dpscope.analysis.traces.steps.attribution import attribute
    from dpscope.analysis.what_if.bases import base_of_run, base_of_traces
    from dpscope.analysis.what_if.predict import predict
    from dpscope.analysis.what_if.scenario import Scenario
    from dpscope.profiling.machine.link_specifications import parse_link
    from dpscope.profiling.store.errors import DpscopeError

__all__ = [
    "Analysis",
    "DpscopeError",
    "EpochEstimate",
    "EpochTable",
    "EpochTime",
    "Links",
    "Missing",
    "RankOrigin",
    "ReadLimits",
    "Scenario",
    "align_clocks",
    "analyze",
    "analyze_jobs",
    "analyze_traces",
    "attribute",
    "base_of_run",
    "base_of_traces",
    "collectives",
    "column",
    "compare",
    "dp_phases",
    "epoch_estimates",
    "estimate_markdown",
    "estimate_report",
    "load_run",
    "make_report",
    "match_ranks",
    "merge_traces",
    "parse_link",
    "predict",
    "read_epoch_times",
    "read_trace",
    "read_traces",
    "reduce_traces",
    "step_breakdown",
    "step_waits",
    "waits_caused",
    "write_report",
]

_HOMES = {
    "cells.columns": "column",
    "cells.comparison": "compare",
    "costs.cost": "Links",
    "epoch_times.epoch_time": "EpochTable EpochTime",
    "epoch_times.estimates": "EpochEstimate epoch_estimates",
    "epoch_times.report": "estimate_markdown estimate_report",
    "epoch_times.table": "read_epoch_times",
    "output.api_results": "Analysis analyze analyze_jobs analyze_traces",
    "traces.ranks.reduce": "reduce_traces",
    "report.build": "make_report write_report",
    "runs.run_data": "load_run",
    "stats.missing": "Missing",
    "traces.merge.merge_ranks": "merge_traces",
    "traces.ranks.frames": "align_clocks collectives dp_phases match_ranks step_breakdown step_waits waits_caused",
    "traces.ranks.matching": "RankOrigin",
    "traces.reading.chunks": "ReadLimits",
    "traces.reading.reader": "read_trace",
    "traces.reading.traces": "read_traces",
    "traces.steps.attribution": "attribute",
    "what_if.bases": "base_of_run base_of_traces",
    "what_if.predict": "predict",
    "what_if.scenario": "Scenario",
}
_MODULES = {
    name: f"dpscope.analysis.{module}" for module, names in _HOMES.items() for name in names.split()
} | {
    "DpscopeError": "dpscope.profiling.store.errors",
    "parse_link": "dpscope.profiling.machine.link_specifications",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
