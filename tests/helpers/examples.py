"""The two example runs, loaded and reported once in a test process."""

from functools import cache
from pathlib import Path

from dpscope.analysis.output.run_screen import Targets, report_of
from dpscope.analysis.report.build import Report
from dpscope.analysis.runs.run_data import RunData, load_run
from tests.helpers.paths import EXAMPLE_RUN, ROOT

FIVE_REPEATS = ROOT / "examples" / "run_cpu"


@cache
def loaded(folder: Path = EXAMPLE_RUN) -> RunData:
    return load_run(folder)


@cache
def reported(folder: Path = EXAMPLE_RUN) -> Report:
    return report_of(folder, Targets())
