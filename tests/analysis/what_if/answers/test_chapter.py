"""The report's chapter of predictions: from the run's largest DDP cell, with its error on others, and only where it holds."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpscope.analysis.runs.run_data import RunData, load_run
from dpscope.analysis.what_if.answers.chapter import WhatIfChapter, chapter_of
from tests.helpers.known import known
from tests.helpers.paths import ROOT


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """Five repeats of LeNet-5 on two processes of a CPU."""
    return load_run(ROOT / "examples" / "run_cpu")


@pytest.fixture(scope="module")
def chapter(example: RunData) -> WhatIfChapter:
    found = known(chapter_of(example))
    return found


@pytest.mark.long
def test_the_measured_count_comes_first_and_numbers_end_at_eight_times_it(chapter: WhatIfChapter) -> None:
    table = chapter.tables["what_if"]
    assert [row[0] for row in table.rows] == ["2", "4", "8", "16"]
    base = chapter.answer.question.base
    assert table.rows[0][table.headings.index("step [ms]")] == f"{base.step_us / 1e3:.1f}"
    widths = [float(high) - float(low) for low, high in (row[4].split(" to ") for row in table.rows)]
    assert widths == sorted(widths)


def test_a_cpu_is_told_as_one_and_where_the_base_is_from(chapter: WhatIfChapter) -> None:
    notes = " ".join(chapter.tables["what_if"].notes)
    assert "ddp-d2-b128" in notes
    assert "none of this applies to GPUs" in notes
    assert "No other cell measures the method's error here: it is assumed (4%)." in notes


def test_what_one_change_saves_is_sorted_and_has_a_band(chapter: WhatIfChapter) -> None:
    """Parts of the step first, then other changes."""
    rows = chapter.tables["what_if_savings"].rows
    assert [row[0] for row in rows[:2]] == ["waiting for late ranks", "exposed transfer"]
    for of in (rows[:2], rows[2:]):
        saved = [float(row[1]) for row in of]
        assert saved == sorted(saved, reverse=True)
    assert all(re.fullmatch(r"-?[\d.]+ to -?[\d.]+", row[2]) for row in rows)


def test_the_figure_holds_what_is_predicted_and_what_was_measured(chapter: WhatIfChapter) -> None:
    figure = known(chapter.figure())
    predicted, measured = (np.asarray(line.get_xydata()) for line in figure.axes[0].get_lines())
    assert predicted[:, 0].tolist() == [2, 4, 8, 16]
    assert measured.tolist() == [pytest.approx(predicted[0].tolist(), rel=1e-6)]


def test_a_run_without_a_ddp_cell_has_no_chapter(example: RunData) -> None:
    alone = {name: data for name, data in example.cells.items() if data.cell.strategy != "ddp"}
    assert chapter_of(replace(example, cells=alone)) is None


def test_traces_alone_have_no_chapter(example: RunData) -> None:
    assert chapter_of(replace(example, recorded=None)) is None


@pytest.mark.long
def test_the_page_shows_it(tmp_path: Path, example: RunData) -> None:
    from dpscope.analysis.report.build import make_page, make_report

    report = make_report(example)
    assert {"what_if", "what_if_ledger", "what_if_savings"} <= set(report.tables)
    assert "what_if" in report.figures
    section = next(
        one for one in make_page(report, {"what_if": "<svg></svg>"}).sections if one.section.name == "what_if"
    )
    assert [figure.name for figure in section.figures] == ["what_if"]
