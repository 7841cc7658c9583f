"""The report page without a browser: content, escaping, omissions; the numbers of figures and
models by hand.
"""

import json
from dataclasses import replace
from typing import Literal

import msgspec
import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

from dpscope.analysis.cells.comparison import compare, exposed_by_phase, gap_parts
from dpscope.analysis.costs.costs import Costs
from dpscope.analysis.figures import draw as figures
from dpscope.analysis.figures.calibration import bandwidths
from dpscope.analysis.figures.step import waterfall
from dpscope.analysis.report import page as pages
from dpscope.analysis.report.build import Report, make_page, make_report
from dpscope.analysis.report.formulas import formula_table
from dpscope.analysis.report.prediction_tables import collective_table
from dpscope.analysis.report.sections import SECTIONS
from dpscope.analysis.report.views import FIRST, STUDY, VIEWS
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.reading.table import Table
from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.records.run import Cell
from tests.helpers.examples import loaded
from tests.helpers.known import known
from tests.helpers.paths import DATA
from tests.helpers.run_cells import (
    all_reduces,
    calibration,
    cell_data,
    run_of,
    traced_table,
    windows,
    with_tables,
)

DDP = Cell(strategy="ddp", devices=2, batch_size=8)
DP = Cell(strategy="dp", devices=2, batch_size=8)
STEPS = 6


def measured(cell: Cell, step_us: float, **columns: float) -> Job:
    steps = windows(cell, STEPS, 1, step_us=step_us, **columns)
    return cell_data(cell, [[step_us] * STEPS], steps)


@pytest.fixture(scope="module")
def example() -> Report:
    return make_report(loaded(), parse_link("1GB/s"))


@pytest.mark.long
def test_every_table_has_its_section_and_every_heading_its_meaning(example: Report) -> None:
    tables = example.tables
    assert {"time", "gap", "dp_phases", "waits", "predictions", "formulas", "checks"} <= set(tables)
    assert len({view.name for view in VIEWS}) == len(VIEWS)
    sections = [section.name for section in SECTIONS]
    placed = [sections.index(view.section) for view in VIEWS if view.section not in (FIRST, STUDY)]
    assert placed == sorted(placed)  # every output shows the tables in the order of the sections
    for name, table in tables.items():
        explained = zip(table.headings, table.meanings, strict=True)
        assert [heading for heading, meaning in explained if not meaning] == [], name


def test_a_what_if_section_without_predictions_states_why() -> None:
    """Tracing made a step of three milliseconds twice as long."""
    report = make_report(loaded(DATA / "run_tiny"))
    (table,) = report.section("what_if").values()
    assert pages.has_values(table)
    assert all(line.startswith("No prediction for ") for (line,) in table.rows)
    assert "tracing made a step 2.0x as long" in table.rows[0][0]


def test_the_page_escapes_text(example: Report) -> None:
    hostile = "<script>alert(1)</script>"
    page = make_page(example, {})
    finding = msgspec.structs.replace(example.findings[0], message=hostile)
    view = replace(page.timelines[0], cell=hostile, notes=(hostile,))
    table = page.tables["numbers"]["time"]
    changed = replace(table, title=hostile, rows=((hostile,) * len(table.headings),))
    tables = {**page.tables, "numbers": {"time": changed}}
    page = replace(page, name=hostile, setting=hostile, environment=((hostile, hostile),))
    text = pages.render_page(replace(page, findings=(finding,), timelines=(view,), tables=tables))
    assert hostile not in text
    assert text.count("&lt;script&gt;alert(1)") > 10
    assert text.count("<script") == 3


def test_json_in_the_page_can_end_no_element() -> None:
    value = {"name": "</script><!-- & \u2028 <script>"}
    text = pages.script_json(value)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == value


def test_a_links_name_is_text_in_a_figure() -> None:
    hostile = '<script>alert(1)</script> $x_1$ & "id="'
    link = LinkRate(gb_per_s=5.0, name=hostile, source="a file")
    sources = Costs(
        None, msgspec.structs.replace(calibration({"all_reduce": (10.0, 2.0)}), links={2: link})
    )
    figure = known(bandwidths(run_of(exchanging_once()), sources))
    svg = figures.for_page("busbw", figures.saved(figure, "svg").decode())
    assert "<script" not in svg
    assert "&lt;script&gt;alert(1)&lt;/script&gt; $x_1$ &amp;" in svg


def dp_phases(exposed: dict[str, float]) -> Table:
    """Rows of `dp_phases` for both devices in every step, all equal."""
    rows = (
        {"rank": 0, "device": device, "step": step, "phase": phase, "exposed_us": value}
        for device in (0, 1)
        for step in range(STEPS)
        for phase, value in exposed.items()
    )
    return traced_table("dp_phases", rows)


def test_the_waterfall_goes_from_ddp_to_data_parallel() -> None:
    """DP 1000 us: 600 compute, 250 exposed, 30 host copies, 120 idle. DDP 700: 550, 100, 10, 40.
    The gap is 300.
    """
    dp = measured(
        DP, 1000.0, compute_us=600.0, communication_us=250.0, hidden_us=0.0, exposed_us=250.0, host_copy_us=30.0,
        idle_us=150.0,
    )  # fmt: skip
    dp = with_tables(
        dp, dp_phases=dp_phases({"replicate": 140.0, "gather": 15.0, "gradient_reduce": 90.0})
    )
    ddp = measured(
        DDP, 700.0, compute_us=550.0, communication_us=300.0, hidden_us=200.0, exposed_us=100.0, host_copy_us=10.0,
        idle_us=50.0,
    )  # fmt: skip
    run = run_of(dp, ddp)
    comparison = compare(run)
    (gap,) = comparison.gaps
    parts = gap_parts(run, comparison, gap)
    assert exposed_by_phase(dp) == {"replicate": 140.0, "gather": 15.0, "gradient_reduce": 90.0}
    assert parts is not None
    found = {part.label: part.gap_us for part in parts}
    assert sum(found.values()) == pytest.approx(300.0)
    assert (found["replicate"], found["gradient reduce"], found["compute"]) == (140, 90, 50)
    assert found["DDP's exposed communication"] == -100
    assert found["other exposed communication"] == pytest.approx(5)  # 250 - 140 - 15 - 90
    # DP's step 1.2 to 1.6 times DDP's 0.7 ms: 0.14 to 0.42 ms after it
    judged = replace(gap, ratio=replace(gap.ratio, low=1.2, high=1.6))
    (axes,) = known(waterfall(run, replace(comparison, gaps=(judged,)))).axes
    (bars,) = (each for each in axes.containers if isinstance(each, ErrorbarContainer))
    assert np.ravel(bars[0].get_xdata()) == pytest.approx([0.3])
    (whisker,) = bars[2][0].get_segments()
    assert whisker[:, 0] == pytest.approx([0.14, 0.42])
    unknown = run_of(measured(DP, 1000.0, compute_us=600.0), ddp)
    assert gap_parts(unknown, compare(unknown), compare(unknown).gaps[0]) is None


def exchanging() -> Job:
    """4 MB all-reduced in 2500 us of a step of 9000, none of it hidden."""
    ddp = measured(
        DDP,
        9000.0,
        compute_us=6000.0,
        communication_us=2500.0,
        hidden_us=0.0,
        exposed_us=2500.0,
        idle_us=500.0,
    )
    return with_tables(ddp, collectives=all_reduces(DDP, STEPS, [(4_000_000, 100.0, 2500.0)]))


def exchanging_once() -> Job:
    """The same as matching would have it: both ranks' rows of a step are one collective."""
    data = exchanging()
    table = data.tables.collectives
    rates = table.assign(
        match=table["step"], busbw_gb_per_s=table["bytes"] / table["transfer_us"] / 1e3
    )
    return with_tables(data, collectives=rates)


def test_formulas_hold_the_numbers_that_give_their_result() -> None:
    """A calibration of 10 us + S / 2 GB/s: 4,000,000 B take 10 + 2000 us. Over a link of 1 GB/s: 2
    x 1/2 x 4 ms.
    """
    sources, run = Costs(None, calibration({"all_reduce": (10.0, 2.0)})), run_of(exchanging())
    table = formula_table(run, compare(run, calibration=sources.calibration))
    rows = {row[1]: row for row in table.rows}
    one = rows["all_reduce, 1 a step"]
    assert one[2] == "alpha + S/B = 10.0 µs + 4.00 MB / 2 GB/s"
    assert one[3:] == ("calibration", "2.01 ms", "2.50 ms", "-19.6")  # 2010 / 2500 - 1
    schedule = rows["DDP's schedule, exposed communication"]
    assert "ready 0.0 µs, takes 2.01 ms alone, ends 2.01 ms" in schedule[2]
    assert schedule[4:] == ("2.01 ms", "2.50 ms", "-19.6")
    linked = formula_table(run, compare(run, parse_link("1GB/s")))
    ring = next(row for row in linked.rows if row[1].startswith("ring"))
    assert "2(2−1)/2 × 4.00 MB / 1 GB/s" in ring[2]
    assert ring[4] == "4.00 ms"


def test_a_transfer_is_predicted_drawn_and_explained_by_the_fit_of_the_fastest_rank() -> None:
    """4 MB: 4 us + S / 2.5 GB/s = 1,604 us of the fastest rank, 2.49 GB/s; the schedule waits for
    the slowest, 2,010 us.
    """
    slowest, fastest = (calibration({"all_reduce": line}) for line in ((10.0, 2.0), (4.0, 2.5)))
    shortest = msgspec.structs.replace(fastest.fits[0], statistic="shortest")
    sources = Costs(None, msgspec.structs.replace(slowest, fits=(*slowest.fits, shortest)))
    run = run_of(exchanging_once())
    table = formula_table(run, compare(run, calibration=sources.calibration))
    rows = {row[1]: row for row in table.rows}
    one = rows["all_reduce, 1 a step"]
    assert (one[2], one[4]) == ("alpha + S/B = 4.00 µs + 4.00 MB / 2.5 GB/s", "1.60 ms")
    assert "takes 2.01 ms alone" in rows["DDP's schedule, exposed communication"][2]
    assert any("slowest rank" in note for note in table.notes)
    for fits, predicted in (
        (sources.calibration, "measured and predicted: the fastest"),
        (slowest, "predicted: the slowest"),
    ):
        (note,) = known(collective_table(compare(run, calibration=fits))).notes
        assert predicted in note
    curves = known(bandwidths(run, sources)).axes[0].lines
    (fit,) = (line for line in curves if line.get_label() == "calibration's fit")
    sizes, rates = (np.asarray(line, dtype=float) for line in fit.get_data())
    assert np.interp(np.log(4e6), np.log(sizes), rates) == pytest.approx(4e6 / 1604 / 1e3, rel=1e-3)


def test_a_few_findings_are_unfolded_and_every_error(example: Report) -> None:
    def unfolded(*severities: Literal["error", "warning", "info"]) -> list[str]:
        found = [
            Finding(
                severity=severity, code="noisy", message=f"finding {number}", next_step="repeat"
            )
            for number, severity in enumerate(severities)
        ]
        page = replace(make_page(example, {}), findings=found)
        first, _, folded = pages.render_page(page).partition("more finding")
        shown = [one.message for one in found if f"F{one.message[1:]}." in first]
        assert all(f"F{one.message[1:]}." in first + folded for one in found)
        return shown

    seven: list[Literal["warning"]] = ["warning"] * 7
    six: list[Literal["error"]] = ["error"] * 6
    assert unfolded(*seven, "info") == [f"finding {number}" for number in range(5)]
    assert unfolded(*six, "warning") == [f"finding {number}" for number in range(6)]
    assert unfolded("error", "warning", "info") == ["finding 0", "finding 1"]


def test_an_answer_links_to_its_section_where_that_has_content(example: Report) -> None:
    page = make_page(example, {})
    assert [section.name for section in page.sections_about("shortcuts")] == ["estimates"]
    assert 'More: <a href="#estimates">' in pages.render_page(page)
    empty = replace(page, tables={}, timelines=())
    assert empty.sections_about("shortcuts") == []
    assert not any(section.open for section in SECTIONS if section.name == "waiting")
