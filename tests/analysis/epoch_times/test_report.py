"""`dpscope estimate` in its formats."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from dpscope.analysis.epoch_times.report import Answer, run_estimate, run_prediction
from tests.helpers.paths import PUBLISHED

TIMES = PUBLISHED / "epoch_times.csv"
THREE_TIMES = (
    "model,parameters,samples_per_epoch,strategy,batch_size,batch_size_is,devices,epoch_seconds\n"
    "r,25000000,50000,single,100,per_device,1,100\n"
    "r,25000000,50000,ddp,100,per_device,2,55\n"
    "r,25000000,50000,ddp,100,per_device,4,32\n"
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


def test_the_first_line_is_the_answer_and_reasons_name_their_series(tmp_path: Path) -> None:
    """40 / 13 = 3.077, 77% of 4. Two strategies at one batch and count are not one series."""
    table = tmp_path / "times.csv"
    table.write_text(
        "strategy,batch_size,devices,epoch_seconds\nsingle,128,1,40\ndp,128,2,30\nddp,128,2,22\nddp,128,4,13\n"
    )
    answer = run_estimate(table, "table")
    assert isinstance(answer, Answer)
    assert answer.first == (
        "Table: 3.077x one device is the largest speedup (ddp, batch 128, N 4, strong or weak: unknown), 77% efficient."
    )
    assert cast(str, run_estimate(table, "markdown")).startswith(answer.first)
    (unknown,) = (one for one in answer.findings if one.code == "added_time_unknown")
    assert unknown.message.count("batch_size_is is not given") == 1
    assert (
        "dp, batch 128, N 2; ddp, batch 128, N 2; ddp, batch 128, N 4: batch_size_is"
        in unknown.message
    )
    assert unknown.next_step == "add a column batch_size_is with global or per_device"
    alone = tmp_path / "alone.csv"
    alone.write_text("strategy,batch_size,devices,epoch_seconds\nddp,128,4,13\n")
    assert cast(Answer, run_estimate(alone, "table")).first.startswith("Table: no speedup")


def test_step_times_keep_their_unit_and_are_bounded_by_their_last_digit(tmp_path: Path) -> None:
    """4 x 97 / 103 = 3.767; 103 - 97 = 6 ms added, each time off by 0.5 ms at most: 5 to 7."""
    table = tmp_path / "steps.csv"
    table.write_text(
        "ranks,batch_per_rank,step_ms,strategy\n1,8,97,single\n1,8,99,ddp\n4,8,103,ddp\n"
    )
    answer = run_estimate(table, "table")
    assert isinstance(answer, Answer)
    (overview,) = answer.tables
    assert overview.rows == (("ddp", "8", "4", "103", "NA", "3.767", "97", "6", "5 to 7", "NA"),)
    assert overview.notes == (
        "ddp, batch 8, N 1: not used, as the one device of the others is single's",
    )
    assert "time [ms]" in answer.tables[0].headings
    assert "epoch" not in answer.legend


def test_a_batch_that_is_not_stated_is_not_invented(tmp_path: Path) -> None:
    """The batch cancels: 2 x 100 / 110 = 1.818, and 10 ms added. Strong scaling needs it."""
    table = tmp_path / "steps.csv"
    table.write_text("ranks,step_ms\n1,100\n2,110\n")
    answer = run_estimate(table, "table")
    assert isinstance(answer, Answer)
    assert answer.first.startswith(
        "Table: 1.818x one device is the largest speedup (not stated, N 2, weak)"
    )
    (overview,) = answer.tables
    assert overview.rows == (
        ("not stated", "NA", "2", "110", "NA", "1.818", "100", "10", "9 to 11", "NA"),
    )
    content = json.loads(cast(str, run_estimate(table, "json")))
    assert {one["batch_size"] for one in content["estimates"]} == {None}
    reasons = " ".join(one["reason"] for one in content["estimates"])
    assert "T_1 at the same batch" in reasons
    assert "no column batch_per_rank: the global batch is unknown" in reasons
    assert not re.search(r"batch \d", reasons)
    table.write_text("ranks,step_ms\n2,110\n")
    (finding,) = cast(Answer, run_estimate(table, "table")).findings
    assert finding.next_step == "time one device, too"
    table.write_text("ranks,step_ms\n2,110\n4,120\n")
    assert "time: of a step. low:" in cast(str, run_prediction(table, "8", "markdown")[0])


def test_the_answer_has_a_line_for_each_study(tmp_path: Path) -> None:
    """100 / 80 = 1.25, 62.5% of 2; the other has no time of one device."""
    table = tmp_path / "times.csv"
    table.write_text(
        "study,strategy,batch_size,batch_size_is,devices,epoch_seconds\n"
        "a,single,8,per_device,1,160\na,ddp,8,per_device,2,128\nb,ddp,8,per_device,2,50\n"
    )
    answer = run_estimate(table, "table")
    assert isinstance(answer, Answer)
    first, second = answer.first.splitlines()
    assert first.startswith("a: 1.25x one device is the largest speedup (ddp, batch 8, N 2, weak)")
    assert second == "b: no speedup is known: no row of one device."


def test_predictions_begin_with_how_many_there_are_and_explain_their_columns() -> None:
    text = cast(str, run_prediction(TIMES, "8,16", "markdown")[0])
    assert text.startswith("19 of 34 times predicted, 2 measured.\n")
    assert text.count("low: lower end of the band that holds 9 of 10 errors on the rows left") == 1
    assert "coursework_ddp: predicted times" in text
    assert "time: of an epoch. low:" in text
