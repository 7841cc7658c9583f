"""The examples work: the notebook runs, the example run makes a report."""

import ast
import json
import re
import shutil
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

from dpscope.analysis.report.build import make_report, write_report
from dpscope.analysis.runs.run_data import load_run
from tests.helpers.paths import ROOT


@pytest.mark.process
def test_the_notebook_runs_in_a_kernel_that_starts_in_its_folder() -> None:
    """Jupyter starts a kernel in the notebook's folder; the values are those of
    tests/data/README.md.
    """
    text = json.loads((ROOT / "examples" / "read_a_run.ipynb").read_text())
    last = "[*steps['communication_us'].tolist(), *sorted(comparison.table['cell'])]"
    text["cells"].append({**text["cells"][1], "id": "last", "source": last})
    notebook = nbformat.reads(json.dumps(text), as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(ROOT / "examples")}}
    ).execute()
    *times, ddp, dp, shared, whole = ast.literal_eval(
        notebook.cells[-1].outputs[0]["data"]["text/plain"]
    )
    assert times == pytest.approx([11_989.021, 12_300.029, 22_587.442], abs=0.01)
    assert (ddp, dp, shared, whole) == (
        "ddp-d2-b128",
        "dp-host-d2-b128",
        "single-d1-b128",
        "single-d1-b256",
    )
    sources = "".join(cell.source for cell in notebook.cells)
    assert set(re.findall(r"dpscope[\w.]*", sources)) - {"dpscope"} == {"dpscope.analysis"}


@pytest.mark.long
def test_the_example_run_is_small_complete_and_makes_a_report_from_five_repeats(
    tmp_path: Path,
) -> None:
    files = [path for path in (ROOT / "examples" / "run_cpu").rglob("*") if path.is_file()]
    # kept by readers
    stored = [path for path in files if not path.name.endswith(".tables.parquet")]
    assert len(stored) > 30
    assert sum(path.stat().st_size for path in stored) < 2e6
    shutil.copytree(ROOT / "examples" / "run_cpu", tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert {len(cell.results) for cell in run.cells.values()} == {5}
    assert {result.status for cell in run.cells.values() for result in cell.results} == {"ok"}
    assert {repeat for repeat, _ in run.cells["ddp-d2-b128"].ranks} == {0, 1, 2, 3, 4}
    page = write_report(make_report(run))
    assert page.stat().st_size > 10_000
    table = pd.read_csv(tmp_path / "run" / "report" / "comparison.csv").set_index("cell")
    assert table.loc["ddp-d2-b128", "step_count"] == 100  # 20 timed steps in each of 5 repeats
    # median of the 100 per-step means over the two ranks, from the stored samples alone
    samples = pd.concat(
        pd.read_parquet(path).assign(repeat=path.parent.name)
        for path in (tmp_path / "run" / "cells" / "ddp-d2-b128").glob("repeat*/samples_*.parquet")
    )
    timed = samples[samples["measuring_pass"] == "timed"]
    by_hand = timed.groupby(["repeat", "step"])["step_us"].mean().median()
    assert table.loc["ddp-d2-b128", "step_us"] == pytest.approx(by_hand)
