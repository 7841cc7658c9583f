"""`dpscope estimate` in its four formats."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from dpscope.analysis.epoch_times.estimates import UNITS, EpochEstimate
from dpscope.analysis.epoch_times.report import run_estimate
from dpscope.analysis.text.text_table import markdown_table
from tests.helpers.paths import PUBLISHED

TIMES = PUBLISHED / "epoch_times.csv"


def test_json_holds_estimates_and_findings() -> None:
    content = json.loads(run_estimate(TIMES, "json"))
    assert set(content) == {"estimates", "findings"}
    assert len(content["estimates"]) == 32 * 10
    for estimate in content["estimates"]:
        assert list(estimate) == list(EpochEstimate._fields)
        assert estimate["quantity"] in UNITS
    for finding in content["findings"]:
        assert set(finding) == {"severity", "code", "message", "next_step"}
    sound = [
        estimate["value"]
        for estimate in content["estimates"]
        if estimate["method"] == "same_local_batch"
        and estimate["quantity"] == "communication_seconds"
        and estimate["study"] == "coursework_ddp"
    ]
    assert sound == [pytest.approx(5.45), pytest.approx(8.875)]
    assert "NaN" not in json.dumps(content)


def test_csv_is_the_estimates() -> None:
    rows = list(csv.DictReader(io.StringIO(run_estimate(TIMES, "csv"))))
    found = json.loads(run_estimate(TIMES, "json"))["estimates"]
    assert len(rows) == len(found)
    for row, estimate in zip(rows, found, strict=True):
        assert row["method"] == estimate["method"]
        assert row["sound"] == str(estimate["sound"]).lower()
        assert (float(row["value"]) if row["value"] else None) == estimate["value"]


def test_text_fits_80_columns(tmp_path: Path) -> None:
    text = run_estimate(TIMES, "table")
    assert max(map(len, text.splitlines())) <= 80
    assert "14.12" in text
    odd = tmp_path / "odd.csv"
    odd.write_text(
        "study,strategy,batch_size,batch_size_is,devices,epoch_seconds,resolution_s\n"
        f"{'long name ' * 12},hierarchical,9007199254740992,per_device,123456,123456.789,1e9\n"
        f"{'long name ' * 12},single,9007199254740992,per_device,1,1e9,1e9\n"
    )
    assert max(map(len, run_estimate(odd, "table").splitlines())) <= 80


def test_single_device_only_says_so(tmp_path: Path) -> None:
    table = tmp_path / "one.csv"
    table.write_text("strategy,batch_size,devices,epoch_seconds\nsingle,32,1,10\n")
    assert "nothing to estimate" in run_estimate(table, "table")
    content = json.loads(run_estimate(table, "json"))
    assert content["estimates"] == []
    assert "nothing_to_estimate" in {finding["code"] for finding in content["findings"]}
    assert run_estimate(table, "markdown").startswith("# Estimates")


def test_unknown_study_is_null_and_bars_are_escaped(tmp_path: Path) -> None:
    table = tmp_path / "bare.csv"
    table.write_text("run,strategy,batch_size,devices,epoch_seconds\na|b,ddp,32,2,6\n")
    assert json.loads(run_estimate(table, "json"))["estimates"][0]["study"] is None
    assert markdown_table(("run",), [("a|b",)])[-1] == "| a\\|b |"


def test_markdown_names_every_study() -> None:
    text = run_estimate(TIMES, "markdown")
    for heading in ("## coursework_l4 (second)", "## coursework_ddp", "## Findings"):
        assert heading in text


@pytest.mark.process
def test_nothing_heavy_is_imported() -> None:
    code = "import sys, dpscope.analysis.epoch_times.report; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "dpscope.analysis.epoch_times.report" in loaded
    assert {"torch", "scipy", "matplotlib"} & set(loaded) == set()
