"""What the Python API returns: numbers that can be plotted, a repr that fits a screen, the verdict
on traces.
"""

import gzip
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from dpscope.analysis import (
    analyze,
    analyze_traces,
    compare,
    estimate_report,
    load_run,
    read_epoch_times,
    read_trace,
)
from dpscope.analysis.cells.columns import columns
from dpscope.profiling.records.short_repr import short_repr
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.examples import FIVE_REPEATS
from tests.helpers.known import known
from tests.helpers.paths import DATA, EXAMPLE_RUN

analyzed = cache(analyze)

V100, RANK_0 = DATA / "v100x8_ddp_dlrm", DATA / "a100x2_ddp_resnet50_rank0.json.gz"


def check_plots(frame: pd.DataFrame, numeric: list[str]) -> None:
    axes = Figure().subplots()
    for name in numeric:
        column = frame[name]
        assert isinstance(column.dtype, np.dtype), name
        assert column.dtype.kind == "f" or not column.isna().any(), name
        axes.bar(range(len(column)), column)


def test_a_wrong_cell_names_those_of_the_run_and_a_folder_is_compared_like_its_run() -> None:
    run = load_run(DATA / "run_tiny")
    with pytest.raises(
        KeyError, match=r"foo is no cell .* from single-d1-b8, dp-host-d2-b8, ddp-d2-b8"
    ):
        run.cells["foo"]
    assert "foo" not in run.cells
    assert compare(DATA / "run_tiny").table.equals(compare(run).table)


@pytest.mark.long
def test_every_numeric_column_plots_and_a_missing_number_is_nan() -> None:
    table = compare(load_run(EXAMPLE_RUN)).table
    check_plots(
        table, [column.name for column in columns() if column.quantity not in ("text", "flag")]
    )
    assert table.loc[table["cell"] == "single-d1-b8", "transfer_us"].isna().to_list() == [True]
    analysis = analyze_traces(RANK_0)  # of one rank of two: no transfer is known
    assert np.isnan(analysis.collectives["transfer_us"]).all()
    check_plots(
        analysis.collectives,
        ["rank", "bytes", "sequence", "start_us", "transfer_us", "busbw_gb_per_s"],
    )
    check_plots(analysis.steps, [name for name in map(str, analysis.steps) if name.endswith("_us")])


@pytest.mark.long
@pytest.mark.parametrize("folder", [EXAMPLE_RUN, FIVE_REPEATS, V100], ids=lambda path: path.name)
def test_frames_hold_the_values_of_the_tables(folder: Path) -> None:
    """Each cell of a table is its frame's value in the unit of the heading; times carry theirs."""
    analysis = analyzed(folder)
    report = analysis.report
    for name, table in {**report.first, **report.tables, **report.study}.items():
        frame = analysis.frames[name]
        assert len(frame) == len(table.rows)
        assert len(frame.columns) == len(table.headings), name
        shown_columns = zip(*table.rows, strict=True)
        named = zip(table.headings, map(str, frame.columns), shown_columns, strict=True)
        for heading, stored, shown in named:
            divisor = {"[ms]": 1e3, "[s]": 1e6, "[µs]": 1.0}.get(heading.rpartition(" ")[2])
            if divisor is None:
                continue
            assert stored.endswith("_us"), (name, stored)
            for value, text in zip(frame[stored], shown, strict=True):
                number = text.partition(" ")[0]
                if number == "NA":
                    assert np.isnan(value), (name, stored)
                else:
                    places = len(number.partition(".")[2])
                    assert float(number) == pytest.approx(value / divisor, abs=0.51 * 10**-places)


def test_a_name_that_is_none_is_refused_with_those_there_are() -> None:
    analysis = analyzed(EXAMPLE_RUN)
    with pytest.raises(KeyError, match="foo: choose from cells, every_step"):
        analysis.frames["foo"]
    with pytest.raises(KeyError, match="foo: choose from which, accuracy, speed, cost"):
        analysis.verdict.fact("foo")


def test_a_printed_job_is_its_verdict_and_the_names_of_its_tables() -> None:
    job = analyze_traces(RANK_0)
    lines = repr(job).splitlines()
    assert lines[0] == f"Job: {job.name}"
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 80
    for name in lines[-1].partition("tables: ")[2].replace(";", ",").split(", "):
        assert hasattr(job, name), name
    assert "verdict, ledger" in lines[-2]
    unwrapped = " ".join(repr(job).split())
    assert known(job.verdict.fact("cost")).text in unwrapped, "no line is cut"
    with pytest.raises(DpscopeError, match="no path is given"):
        analyze_traces([])


def test_a_notebook_shows_the_verdict_as_a_table() -> None:
    analysis = analyzed(EXAMPLE_RUN)
    html = analysis._repr_html_()
    for fact in analysis.verdict.shown:
        assert f"<th>{fact.label}</th>" in html


def test_a_column_of_words_keeps_its_type_where_all_are_missing() -> None:
    types = analyzed(EXAMPLE_RUN).frames["cells"].dtypes
    assert not [name for name, kind in types.items() if str(kind) == "object"]


def test_a_printed_number_has_six_digits_and_no_address_is_printed() -> None:
    @dataclass(frozen=True)
    class Result:
        __repr__ = short_repr

        time_us: float
        table: object

    assert repr(Result(2.0 / 3.0, object())) == (
        "Result(\n    time_us=0.666667,\n    table=<object>,\n)"
    )


def test_a_printed_estimate_fits_a_screen() -> None:
    report = estimate_report(read_epoch_times(DATA / "scaling" / "ddp_t4_cifar10.csv"))
    assert len(report.estimates) > 100
    lines = repr(report).splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 120


def test_an_export_is_no_trace_of_one_process(tmp_path: Path) -> None:
    packed = DATA / "nsys_two_ranks.sqlite.gz"
    export = tmp_path / "two_ranks.sqlite"
    export.write_bytes(gzip.decompress(packed.read_bytes()))
    for path in (packed, export):
        with pytest.raises(DpscopeError, match=r"if it is compressed .*read_traces reads it"):
            read_trace(path)


@pytest.mark.long
@pytest.mark.parametrize("folder", [V100, DATA / "compiled_ddp"], ids=lambda path: path.name)
def test_a_share_of_waiting_is_the_same_wherever_it_is_named_the_same(folder: Path) -> None:
    job = analyze_traces(folder)
    shown = analyzed(folder).frames["waits"].set_index(["late_rank", "waiting_rank"])
    waits = job.waits.set_index(["late_rank", "waiting_rank"])
    for name in ("exposed_wait_us", "exposed_share"):
        assert waits.loc[shown.index, name].tolist() == pytest.approx(shown[name].tolist())
    assert waits["wait_share"].sum() == pytest.approx(1.0)
    if folder == V100:
        late = known(job.late)
        exposed, hidden_too = (
            waits.groupby(level="late_rank")[name].sum() for name in ("exposed_share", "wait_share")
        )
        assert (exposed[7], hidden_too[7]) == pytest.approx((late.share, late.last.share))
