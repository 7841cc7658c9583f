"""A report that stands is drawn again only if its data, its words, its files or the code that drew it changed."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dpscope.analysis.figures import draw
from dpscope.analysis.report import build
from dpscope.analysis.report.build import make_report, write_report
from dpscope.analysis.runs.run_data import load_run
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.store.files import write_text
from dpscope.profiling.store.ownership import ForeignFileError, bears_mark, remove_report
from tests.helpers.paths import EXAMPLE_RUN


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example run with its report."""
    run = shutil.copytree(
        EXAMPLE_RUN, tmp_path_factory.mktemp("stamp") / "run", ignore=shutil.ignore_patterns("report")
    )
    write_report(make_report(load_run(run)))
    return run


@pytest.fixture
def run(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, in which drawing a figure fails the test that did not ask for it."""

    def refused(*_: object) -> None:
        raise RuntimeError("drawn again")

    monkeypatch.setattr(draw, "write_files", refused)
    return shutil.copytree(written, tmp_path / "run")


def test_the_same_report_is_not_drawn_again(run: Path) -> None:
    stamp = run / "report" / "made_from.json"
    times = {path: path.stat().st_mtime_ns for path in (run / "report").rglob("*")}
    assert write_report(make_report(load_run(run))) == run / "report" / "report.html"
    assert {path: path.stat().st_mtime_ns for path in (run / "report").rglob("*")} == times
    assert bears_mark(stamp)
    remove_report(run)
    assert not stamp.exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda run: os.utime(next(run.rglob("samples_0_0.parquet"))),
        lambda run: (run / "report" / "figures" / "busbw.pdf").unlink(),
        lambda run: write_text(run / "report" / "report.html", "<title>dpscope: mine</title>"),
        lambda run: write_text(run / "report" / "made_from.json", '{"made_from": "?", "files": {}}'),
    ],
)
def test_a_changed_file_draws_it_again(run: Path, change: Callable[[Path], object]) -> None:
    change(run)
    with pytest.raises(RuntimeError, match="drawn again"):
        write_report(make_report(load_run(run)))


def test_another_question_or_other_code_draws_it_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_run(run)
    with pytest.raises(RuntimeError, match="drawn again"):
        write_report(make_report(loaded, LinkRate(5.0, "PCIe", "told")))
    monkeypatch.setattr(build, "data_digest", lambda *_: "of other code")
    with pytest.raises(RuntimeError, match="drawn again"):
        write_report(make_report(loaded))


def test_a_file_of_that_name_that_is_not_dpscopes_is_refused(run: Path) -> None:
    (run / "report" / "made_from.json").write_text('{"mine": 1}')
    with pytest.raises(ForeignFileError, match=r"made_from\.json was not written by dpscope"):
        write_report(make_report(load_run(run)))
