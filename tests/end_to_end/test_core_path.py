"""The path from the command to the report in one job of two processes; `make check` runs it after
every edit.
"""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.sweeps import half_written, processes_of
from tests.helpers.words import words

TINY = words(
    "--device cpu --model tiny_models:tiny --strategy ddp --devices 2 --batch-size 8 "
    "--samples 512 --steps 8 --traced-steps 2 --repeats 1 --no-calibrate --timeout 90"
)


@pytest.mark.core
def test_two_processes_are_measured_traced_and_reported(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "dpscope.launch.cli", "run", *TINY, "--out", str(out)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert f"Report: {out / 'report' / 'report.html'}" in finished.stdout, (
        finished.stdout + finished.stderr
    )
    with (out / "report" / "comparison.csv").open() as file:
        (row,) = csv.DictReader(file)
    # 8 x 3 x 3 x 3 + 8 + 8 + 8 x 4 + 4 = 268 parameters, and buffers of 8 + 8 floats and one int64
    assert (row["cell"], row["status"], float(row["bytes_per_step"])) == (
        "ddp-d2-b8",
        "ok",
        4 * 268 + 72,
    )
    parts_us = [float(row[f"{part}_us"]) for part in ("compute", "exposed", "idle")]
    assert sum(parts_us) == pytest.approx(float(row["traced_step_us"]))
    assert float(row["step_us"]) > 0
    assert half_written(out) == []
    assert processes_of(out) == []
