"""The examples do what they say: the notebook's cells run, the example run makes a report."""

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dpscope.analysis.report.build import make_report, write_report
from dpscope.analysis.runs.run_data import load_run
from tests.helpers.paths import ROOT


def test_every_cell_of_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    notebook = json.loads((ROOT / "examples" / "read_a_run.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 5
    names: dict[str, Any] = {}
    for source in cells:
        exec(compile(source, "read_a_run.ipynb", "exec"), names)
    # README.md of tests/data: communication of the three steps
    assert names["steps"]["communication_us"].tolist() == pytest.approx([11_989.021, 12_300.029, 22_587.442], abs=0.01)
    assert set(names["comparison"].table["cell"]) == {"single-d1-b8", "dp-host-d2-b8", "ddp-d2-b8"}


def test_the_example_run_makes_a_report_from_two_repeats(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "run_cpu", tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert {repeat for repeat, _ in run.cells["ddp-d2-b8"].ranks} == {0, 1}
    page = write_report(make_report(run))
    assert page.stat().st_size > 10_000
    table = pd.read_csv(tmp_path / "run" / "report" / "comparison.csv").set_index("cell")
    assert table.loc["ddp-d2-b8", "step_count"] == 20  # 10 timed steps in each of 2 repeats
    # median of the 20 per-step means over the two ranks, from the stored samples alone
    samples = pd.concat(
        pd.read_parquet(path).assign(repeat=path.parent.name)
        for path in (tmp_path / "run" / "cells" / "ddp-d2-b8").glob("repeat*/samples_*.parquet")
    )
    timed = samples[samples["measuring_pass"] == "timed"]
    by_hand = timed.groupby(["repeat", "step"])["step_us"].mean().median()
    assert table.loc["ddp-d2-b8", "step_us"] == pytest.approx(by_hand)
