"""`dpscope estimate` in its four formats."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from dpscope.analysis.epoch_times.estimates import EpochEstimate
from dpscope.analysis.epoch_times.report import run_estimate
from tests.helpers.paths import PUBLISHED

TIMES = PUBLISHED / "epoch_times.csv"
THREE_TIMES = (
    "model,parameters,samples_per_epoch,strategy,batch_size,batch_size_is,devices,epoch_seconds\n"
    "r,25000000,50000,single,100,per_device,1,100\n"
    "r,25000000,50000,ddp,100,per_device,2,55\n"
    "r,25000000,50000,ddp,100,per_device,4,32\n"
)


def test_json_and_csv_hold_estimates_and_findings() -> None:
    content = json.loads(run_estimate(TIMES, "json"))
    assert set(content) == {"estimates", "laws", "findings"}
    assert len(content["estimates"]) == 32 * 10
    assert all(set(finding) == {"severity", "code", "message", "next_step"} for finding in content["findings"])
    added = ("coursework_ddp", "communication_seconds", "same_local_batch")
    chosen = [one for one in content["estimates"] if (one["study"], one["quantity"], one["method"]) == added]
    assert [one["value"] for one in chosen] == [pytest.approx(5.45), pytest.approx(8.875)]
    assert "NaN" not in json.dumps(content)
    rows = csv.DictReader(io.StringIO(run_estimate(TIMES, "csv")))
    for row, estimate in zip(rows, content["estimates"], strict=True):
        assert list(row) == list(estimate) == list(EpochEstimate._fields)
        assert (row["method"], row["sound"]) == (estimate["method"], str(estimate["sound"]).lower())
        assert (float(row["value"]) if row["value"] else None) == estimate["value"]


def test_text_fits_80_columns(tmp_path: Path) -> None:
    text = run_estimate(TIMES, "table")
    assert "14.12" in text
    odd = tmp_path / "odd.csv"
    odd.write_text(
        "study,strategy,batch_size,batch_size_is,devices,epoch_seconds,resolution_s\n"
        f"{'long name ' * 12},hierarchical,9007199254740992,per_device,123456,123456.789,1e9\n"
        f"{'long name ' * 12},single,9007199254740992,per_device,1,1e9,1e9\n"
    )
    for lines in (text, run_estimate(odd, "table")):
        assert max(map(len, lines.splitlines())) <= 80


def test_a_table_with_one_device_has_nothing_to_estimate(tmp_path: Path) -> None:
    table = tmp_path / "one.csv"
    table.write_text("strategy,batch_size,devices,epoch_seconds\nsingle,32,1,10\n")
    assert "nothing to estimate" in run_estimate(table, "table")
    assert json.loads(run_estimate(table, "json"))["estimates"] == []
    assert run_estimate(table, "csv") == ",".join(EpochEstimate._fields) + "\n"
    assert run_estimate(table, "markdown").startswith("# Estimates")


def test_unknown_study_is_null_and_bars_are_escaped(tmp_path: Path) -> None:
    table = tmp_path / "bare.csv"
    table.write_text("run,strategy,batch_size,devices,epoch_seconds\na,d|p,32,2,6\n")
    assert json.loads(run_estimate(table, "json"))["estimates"][0]["study"] is None
    assert "| d\\|p | 32 | 2 |" in run_estimate(table, "markdown")


def test_three_epoch_times_give_bandwidth_a_law_and_its_misuse(tmp_path: Path) -> None:
    """250 steps x 100 MB over 5 s, 125 x 150 MB over 7 s; 7/32 as serial fraction is 1/(0.21875 + 0.78125/4) = 2.42x."""
    table = tmp_path / "times.csv"
    table.write_text(THREE_TIMES)
    text = " ".join(run_estimate(table, "table").split())
    assert "5 GB/s (ddp, batch 100, 2 devices), 2.68 GB/s (ddp, batch 100, 4 devices)" in text
    assert "gustafson: serial_fraction 0.265; 6.15x on 8" in text
    assert "not a serial fraction" in text
    assert "would give 2.42x on 4 for a measured 3.12x (batch_size 100)." in text
    (law,) = json.loads(run_estimate(table, "json"))["laws"]
    assert law["speedups"] == {"2": pytest.approx(100 / 55), "4": pytest.approx(100 / 32)}
    assert law["misuse"]["4"] == pytest.approx(1 / (7 / 32 + 25 / 32 / 4))
    table.write_text(THREE_TIMES.replace(",55", ",50").replace(",32", ",25"))  # nothing is added
    assert "not a serial fraction" not in run_estimate(table, "table")
    table.write_text(THREE_TIMES.replace("per_device", "global"))
    assert "amdahl" in {law["law"] for law in json.loads(run_estimate(table, "json"))["laws"]}


@pytest.mark.process
def test_the_command_prints_and_refuses_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dpscope.launch.cli", "estimate"]
    ended = subprocess.run([*command, str(TIMES)], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout == run_estimate(TIMES, "table")
    absent = subprocess.run([*command, "absent.csv"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (absent.returncode, absent.stdout) == (2, "")
    assert absent.stderr == "dpscope: absent.csv does not exist; name a CSV file\n"
