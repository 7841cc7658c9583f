"""The files of a report: figures in the requested formats and no others of dpscope's; a file edited
by hand stays.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from dpscope.analysis.report.build import Report, make_report, write_report
from dpscope.analysis.runs.run_data import load_run
from dpscope.profiling.store.ownership import ForeignFileError
from tests.helpers.paths import EXAMPLE_RUN


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """A report of the example run, of one figure, to be written for the first time."""
    run = shutil.copytree(EXAMPLE_RUN, tmp_path / "run", ignore=shutil.ignore_patterns("report"))
    made = make_report(load_run(run))
    vars(made)["figures"] = {"waits": Figure(figsize=(1, 1))}  # what a cached property keeps
    return made


@pytest.mark.long
def test_figures_have_the_requested_formats_and_no_others_stay(report: Report) -> None:
    folder = report.run.folder.report_path

    def files(formats: Sequence[str] = ("png",)) -> set[str]:
        write_report(report, formats)
        return {path.name for path in folder.glob("figures/*")}

    assert files() == {"waits.png"}
    assert files(["svg", "pdf"]) == {"waits.svg", "waits.pdf"}
    (folder / "figures/waits.svg").write_text("<svg>edited by hand</svg>")
    with pytest.raises(ForeignFileError, match=r"waits\.svg was not written by dpscope"):
        write_report(report, ["svg"])
    assert files(["pdf"]) == {"waits.pdf", "waits.svg"}, "what was edited stays"
    assert files([]) == {"waits.svg"}
    vars(report)["figures"] = {"busbw": Figure(figsize=(1, 1))}
    assert files() == {"waits.svg", "busbw.png"}
    vars(report)["figures"] = {"waits": Figure(figsize=(1, 1))}
    assert files() == {"waits.svg", "waits.png"}, "a figure that is drawn no more is removed"
