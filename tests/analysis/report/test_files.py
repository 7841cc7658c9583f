"""The files of a report: figures in the requested formats and no others of dpscope's; a file edited
by hand stays.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from dpscope.analysis.report.build import Report, make_report, write_report
from dpscope.analysis.report.training_report import training_markdown, training_page, write_training
from dpscope.analysis.runs.run_data import load_run
from dpscope.analysis.text.latex import in_latex
from dpscope.analysis.training.data import load_training
from dpscope.analysis.training.tables import training_json
from dpscope.profiling.store.ownership import ForeignFileError
from tests.helpers.paths import DATA, EXAMPLE_RUN
from tests.helpers.trainings import plain_epochs, write_train_json


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
        return {path.name for path in folder.glob("figures/*")} - {"captions.tex"}

    assert files() == {"waits.png"}
    assert files(["svg", "pdf"]) == {"waits.svg", "waits.pdf"}
    (folder / "figures/waits.svg").write_text("<svg>edited by hand</svg>")
    with pytest.raises(ForeignFileError, match=r"waits\.svg was not written by dpscope"):
        write_report(report, ["svg"])
    assert files(["pdf"]) == {"waits.pdf", "waits.svg"}, "what was edited stays"
    assert files([]) == {"waits.pdf", "waits.svg"}, "what was asked for before is kept"
    vars(report)["figures"] = {"busbw": Figure(figsize=(1, 1))}
    assert files() == {"waits.svg", "busbw.png"}
    vars(report)["figures"] = {"waits": Figure(figsize=(1, 1))}
    assert files() == {"waits.svg", "waits.png"}, "a figure that is drawn no more is removed"


@pytest.mark.long
def test_a_report_without_formats_writes_earlier_figures_again_but_for_edited_ones(
    report: Report,
) -> None:
    vars(report)["figures"] = {name: Figure(figsize=(1, 1)) for name in ("waits", "busbw")}
    folder = write_report(report, ["svg"]).parent / "figures"
    before = (folder / "busbw.svg").read_text()
    (folder / "waits.svg").write_text("<svg>edited by hand</svg>")
    vars(report)["figures"] = {name: Figure(figsize=(2, 1)) for name in ("waits", "busbw", "batch")}
    write_report(report)
    assert (folder / "waits.svg").read_text() == "<svg>edited by hand</svg>"
    assert (folder / "busbw.svg").read_text() != before
    assert {path.name for path in folder.iterdir()} == {
        "waits.svg", "busbw.svg", "batch.svg", "captions.tex",
    }  # fmt: skip
    captions = (folder / "captions.tex").read_text()
    assert captions.count(r"\begin{figure}") == 3
    # 2 of the 6.3 inches of a text
    assert captions.count(r"\includegraphics[width=0.32\linewidth]") == 3
    assert r"\graphicspath" in captions.splitlines()[1]
    # once, to which the others refer: what was measured, on what, how often, but not of which batch
    assert captions.count(in_latex(report.measured[0])) == 1
    assert captions.count(r"Measured as in Figure~\ref{fig:waits}.") == 2
    assert "batch" not in report.measured[0]
    (folder / "captions.tex").write_text("my own")
    write_report(report)
    assert (folder / "captions.tex").read_text() == "my own"
    with pytest.raises(ForeignFileError, match=r"captions\.tex was not written by dpscope"):
        write_report(report, ["pdf"])


@pytest.mark.long
def test_trainings_leave_the_figures_of_a_measured_run(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"training_loss": Figure(figsize=(1, 1))}
    monkeypatch.setattr("dpscope.analysis.figures.draw.draw_training", lambda *_: small)
    folder = write_report(report, ["png"]).parent
    write_train_json(report.run.path, plain_epochs("single", 1, 0, [80.0], [4.0]))
    assert write_training(load_training(report.run.path), ["png"]) == folder / "training.md"
    assert {path.name for path in folder.glob("figures/*")} == {
        "waits.png", "training_loss.png", "captions.tex",
    }  # fmt: skip
    # those of the run, which has all figures
    assert "{waits}" in (folder / "figures/captions.tex").read_text()


def test_trainings_of_too_few_seeds_are_undecided() -> None:
    """Two seeds of each cell, 25.00% and 41.67%: the median is 33.33%."""
    data = load_training(DATA / "trained_tiny")
    accuracy, speed, following = training_page(data, {}).verdict.facts
    assert accuracy.text == (
        "UNDECIDED: ddp-d2-b8 33.33%, single-d1-b16 33.33% test accuracy: 2 seeds each, 3 are needed"
    )
    times = "1.27x as fast as single-d1-b16 (4 epochs, no interval)"
    assert speed.text == f"SPEED: ddp-d2-b8 trains an epoch {times}"
    assert following.lines == (
        "1. Train for more epochs (--epochs 4)",
        "2. Train with more seeds (--seeds 0,1,2)",
    )
    assert json.loads(training_json(data))["answer"] == f"{accuracy.text}; {speed.lines[0]}"
    assert f"**UNDECIDED** {accuracy.lines[0]}" in training_markdown(data)
