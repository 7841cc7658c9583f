"""What the Python API returns: numbers that can be plotted, a repr that fits a screen, the verdict
on traces.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from dpscope.analysis import (
    Scenario,
    analyze_jobs,
    analyze_traces,
    attribute,
    base_of_run,
    collectives,
    compare,
    load_run,
    make_report,
    match_ranks,
    predict,
    read_trace,
)
from dpscope.analysis.cells.columns import columns
from dpscope.analysis.findings.answers import traces_verdict
from tests.helpers.paths import DATA, EXAMPLE_RUN

V100, RANK_0 = DATA / "v100x8_ddp_dlrm", DATA / "a100x2_ddp_resnet50_rank0.json.gz"


def check_plots(frame: pd.DataFrame, numeric: list[str]) -> None:
    axes = Figure().subplots()
    for name in numeric:
        column = frame[name]
        assert isinstance(column.dtype, np.dtype), name
        assert column.dtype.kind == "f" or not column.isna().any(), name
        axes.bar(range(len(column)), column)


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
def test_the_repr_of_a_result_fits_a_screen(tmp_path: Path) -> None:
    run, analysis, trace = load_run(EXAMPLE_RUN), analyze_traces(V100), read_trace(RANK_0)
    attribution = attribute(trace)
    question = base_of_run(EXAMPLE_RUN, "ddp-d2-b8")
    results: list[Any] = [
        run, run.cells["ddp-d2-b8"], compare(run), make_report(run), analysis, analysis.verdict, trace, attribution,
        match_ranks([collectives(attribution)]), question, question.base,
        predict(question.base, Scenario(devices=4), question.costs),
    ]  # fmt: skip
    for result in results:
        lines = repr(result).splitlines()
        assert len(lines) <= 20, type(result)
        assert max(map(len, lines)) <= 140, type(result)
        assert lines[0] == f"{type(result).__name__}("


@pytest.mark.long
def test_the_verdict_is_on_what_is_returned() -> None:
    analysis = analyze_traces(V100)
    assert analysis.verdict == traces_verdict(analysis)
    assert "5.66 ms waiting for late ranks" in analysis.verdict.cost.text
    (job,) = analyze_jobs(V100).values()
    assert job.verdict.record() == analysis.verdict.record()
