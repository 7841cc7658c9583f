"""`dpscope estimate` in its formats."""

import subprocess
import sys
from pathlib import Path

import pytest

from dpscope.analysis.epoch_times.report import EstimateReport, estimate_tables, run_estimate
from tests.helpers.paths import PUBLISHED

TIMES = PUBLISHED / "epoch_times.csv"
THREE_TIMES = (
    "model,parameters,samples_per_epoch,strategy,batch_size,batch_size_is,devices,epoch_seconds\n"
    "r,25000000,50000,single,100,per_device,1,100\n"
    "r,25000000,50000,ddp,100,per_device,2,55\n"
    "r,25000000,50000,ddp,100,per_device,4,32\n"
)


def test_three_epoch_times_give_bandwidth(tmp_path: Path) -> None:
    """Weak scaling: 100/55 and 100/32. Added: 5 and 7 s. 250 steps x 100 MB over 5 s, 125 x 150 MB
    over 7 s.
    """
    table = tmp_path / "times.csv"
    table.write_text(THREE_TIMES)
    report = run_estimate(table, "table")
    assert isinstance(report, EstimateReport)
    (overview,) = estimate_tables(report)
    assert overview.rows == (
        ("ddp", "100", "2", "NA", "1.818", "50", "5", "5", "5", "5"),
        ("ddp", "100", "4", "NA", "3.125", "25", "7", "7", "7", "2.679"),
    )


@pytest.mark.process
def test_the_command_prints_and_refuses_in_one_line(tmp_path: Path) -> None:
    odd = tmp_path / "odd.csv"
    odd.write_text(
        "study,strategy,batch_size,batch_size_is,devices,epoch_seconds,resolution_s\n"
        f"{'long name ' * 12},hierarchical,9007199254740992,per_device,123456,123456.789,1e9\n"
        f"{'long name ' * 12},single,9007199254740992,per_device,1,1e9,1e9\n"
    )
    command = [sys.executable, "-m", "dpscope.launch.cli", "estimate"]
    for path, part in ((TIMES, "14.11"), (odd, "clock's resolution")):
        ended = subprocess.run(
            [*command, str(path)], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert part in " ".join(ended.stdout.split())
        assert max(map(len, ended.stdout.splitlines())) <= 80
    absent = subprocess.run(
        [*command, "absent.csv"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (absent.returncode, absent.stdout) == (2, "")
    assert absent.stderr == "dpscope: absent.csv does not exist; name a CSV file\n"
