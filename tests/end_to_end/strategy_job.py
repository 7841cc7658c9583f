"""A job of one of tests/user_models' scripts that run every strategy."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.helpers.paths import ROOT
from tests.helpers.ranks import run_ranks

Found = tuple[dict[str, Any], dict[str, Job]]  # what rank 0 found, and the traces by case


def run_job(script: str, processes: int, folder: Path, cases: Iterable[str]) -> Found:
    """Runs ``tests.user_models.<script>`` on so many processes."""
    run_ranks(
        [sys.executable, "-m", f"tests.user_models.{script}", str(folder)], processes, cwd=ROOT
    )
    traces = {name: analyze_traces(sorted((folder / name).iterdir())) for name in cases}
    return json.loads((folder / "found.json").read_text()), traces
