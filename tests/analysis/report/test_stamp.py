"""A current report is made again only if its data, the request, its files or the code changed."""

import io
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from dpscope.analysis.output import analyze
from dpscope.analysis.output.analyze import Detail, Targets, show_run
from dpscope.analysis.report.build import Report, make_report, write_report
from dpscope.analysis.report.stamp import data_digest
from dpscope.analysis.runs.run_data import load_run
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.store.files import write_text
from dpscope.profiling.store.ownership import ForeignFileError, bears_mark, remove_report
from tests.helpers.paths import EXAMPLE_RUN

NAMES = {"waterfall", "step_split", "phases", "waits", "communication", "busbw", "scaling", "what_if"}


def shown(run: Path, detail: Detail = "summary", targets: Targets | None = None) -> str:
    """What the terminal shows of a run."""
    console = Console(file=io.StringIO(), width=100)
    assert show_run(run, targets or Targets(), console, detail)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def analyzed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The example run with its report, and all that was shown when it was made."""
    run = tmp_path_factory.mktemp("stamp") / "run"
    shutil.copytree(EXAMPLE_RUN, run, ignore=shutil.ignore_patterns("report"))
    return run, shown(run, "everything")


@pytest.fixture
def run(analyzed: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """That run, of which making a report fails the test that did not ask for it."""

    def refused(*_: object) -> None:
        raise RuntimeError("made again")

    monkeypatch.setattr(analyze, "report_of", refused)
    return analyzed[0]


@pytest.fixture
def report(analyzed: tuple[Path, str], tmp_path: Path) -> Report:
    """A report of that run, of one figure, to be written for the first time."""
    run = shutil.copytree(analyzed[0], tmp_path / "run", ignore=shutil.ignore_patterns("report"))
    made = make_report(load_run(run))
    vars(made)["figures"] = {"waits": Figure(figsize=(1, 1))}  # what a cached property keeps
    return made


@pytest.fixture
def copied(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it under the same name, to change."""
    shutil.copytree(run, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    stamp = tmp_path / "run" / "report" / "made_from.json"
    made_from = data_digest(Path("run"), repr(Targets()))  # a copy has another path, which findings may contain
    write_text(stamp, stamp.read_text().replace(data_digest(run, repr(Targets())), made_from))
    return Path("run")


@pytest.mark.long
def test_the_same_is_shown_and_no_file_is_written(run: Path, analyzed: tuple[Path, str]) -> None:
    times = {path: path.stat().st_mtime_ns for path in (run / "report").rglob("*")}
    assert shown(run, "everything") == analyzed[1]
    assert "Which" in shown(run)
    assert shown(run, "path") == f"{run}/report/report.html\n"
    assert {path: path.stat().st_mtime_ns for path in (run / "report").rglob("*")} == times
    assert {path.name for path in run.glob("report/figures/*")} == {f"{name}.png" for name in NAMES}


@pytest.mark.long
def test_a_stamp_is_removed_with_its_report_and_a_foreign_one_is_refused(report: Report) -> None:
    run = report.run.path
    stamp = write_report(report).with_name("made_from.json")
    assert bears_mark(stamp)
    remove_report(run)
    assert not stamp.exists()
    stamp.parent.mkdir(exist_ok=True)
    stamp.write_text('{"mine": 1}')
    with pytest.raises(ForeignFileError, match=r"made_from\.json was not written by dpscope"):
        write_report(report)


@pytest.mark.parametrize(
    "change",
    [
        lambda run: os.utime(next(run.rglob("samples_0_0.parquet"))),
        lambda run: (run / "report" / "figures" / "busbw.png").unlink(),
        lambda run: write_text(run / "report" / "report.html", "<title>dpscope: mine</title>"),
        lambda run: write_text(run / "report" / "made_from.json", '{"made_from": "?", "files": {}}'),
        lambda run: write_text(run / "calibration.json", "{}"),
    ],
)
def test_a_changed_file_makes_it_again(copied: Path, change: Callable[[Path], object]) -> None:
    change(copied)
    with pytest.raises(RuntimeError, match="made again"):
        shown(copied)


def test_files_that_cannot_be_looked_at_make_it_again(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that another command removes between the question whether it is there and that for its size."""

    def gone(*_: object) -> None:
        raise FileNotFoundError("report.html")

    monkeypatch.setattr("dpscope.analysis.report.stamp._files", gone)
    with pytest.raises(RuntimeError, match="made again"):
        shown(copied)


def test_another_question_another_format_or_other_code_makes_it_again(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for targets in (Targets(LinkRate(5.0, "PCIe", "stated")), Targets(efficiency=0.9), Targets(accuracy=50.0)):
        with pytest.raises(RuntimeError, match="made again"):
            shown(run, targets=targets)
    assert shown(run, targets=Targets(figure_formats=["png"]))
    for formats in ([], ["png", "svg"]):
        with pytest.raises(RuntimeError, match="made again"):
            shown(run, targets=Targets(figure_formats=formats))
    monkeypatch.setattr(analyze, "data_digest", lambda *_: "of other code")
    with pytest.raises(RuntimeError, match="made again"):
        shown(run)


@pytest.mark.long
def test_figures_are_have_the_requested_formats_and_keep_them(report: Report) -> None:
    folder = report.run.folder.report_path

    def files(formats: Sequence[str] | None) -> set[str]:
        write_report(report, formats)
        return {path.name for path in folder.glob("figures/*")}

    assert files(None) == {"waits.png"}
    assert files(["svg", "pdf"]) == {"waits.svg", "waits.pdf"}
    assert files(None) == {"waits.svg", "waits.pdf"}
    (folder / "figures/waits.svg").write_text("<svg>edited by hand</svg>")
    with pytest.raises(ForeignFileError, match=r"waits\.svg was not written by dpscope"):
        write_report(report)
    assert files(["pdf"]) == {"waits.pdf", "waits.svg"}, "what was edited stays"
    assert files([]) == {"waits.svg"}
    assert files(None) == {"waits.svg"}
