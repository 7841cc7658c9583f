"""Scripts of two processes that train together, started as by torchrun."""

import random
import sys
from pathlib import Path

import pytest

from dpscope.analysis.runs.run_data import load_run
from dpscope.analysis.traces.ranks.readers import find_files
from dpscope.analysis.whole_job.job import read_job
from dpscope.analysis.whole_job.summary import summarise
from dpscope.analysis.whole_job.tables import rank_rows
from dpscope.profiling.store.folders import RunFolder
from tests.helpers.paths import USER_MODELS
from tests.helpers.ranks import ended_ranks
from tests.helpers.words import words

ATTACH = (sys.executable, "-m", "dpscope.launch.attach")
WINDOWS = words("--warmup 5 --steps 8 --traced-steps 1")
GRADIENT_BYTES = 4 * (16 * 64 + 64 + 64 * 4 + 4)  # of two linear layers, 1,348 floats


@pytest.mark.process
def test_two_ranks_with_accumulation_validation_loader_workers_and_uneven_inputs(
    tmp_path: Path,
) -> None:
    script = str(USER_MODELS / "attached_training.py")
    command = [*ATTACH, "--out", str(tmp_path / "run"), *WINDOWS, script, "1", "raise"]
    for status, output, errors in ended_ranks(command, 2):
        assert status == 1
        assert output.endswith("trained\n")
        assert errors.endswith("ValueError: theirs\n")
        assert errors.count('  File "') == 2  # main and its caller, none of dpscope's
        assert "dpscope:" not in errors  # the measurement was complete by then
    run = load_run(tmp_path / "run")
    (data,) = run.measured
    assert data.cell.name == "ddp-d2-b8-bucket-1mb-accumulate-2"
    assert data.communication_known
    assert {rank.model.gradient_bytes for _, rank in data.ranks} == {GRADIENT_BYTES}
    # without the step with the validation
    assert [rank.blocks[0].samples for _, rank in data.ranks] == [8 * 7] * 2
    reduced = data.collectives[data.collectives["kind"] == "all_reduce"]
    # Join's have a few bytes
    per_step = reduced[reduced["bytes"] > 64].groupby(["rank", "step"])["bytes"].sum()
    assert set(per_step) == {GRADIENT_BYTES}
    assert len(data.counter_checks) == 2
    assert all(check.buckets_equal for check in data.counter_checks)
    assert "steps_left_out" in {finding.code for finding in data.findings}


@pytest.mark.process
def test_a_job_that_ends_within_its_windows_keeps_what_both_ranks_timed(tmp_path: Path) -> None:
    script = str(USER_MODELS / "attached_training.py")
    command = [
        *ATTACH,
        "--out",
        str(tmp_path / "run"),
        "--warmup",
        "5",
        "--steps",
        "500",
        script,
        "0",
        "exit",
    ]
    ended = ended_ranks(command, 2)
    assert [status for status, _, _ in ended] == [3, 3]
    message = "dpscope: the script called os._exit(3): 17 of 500 steps were timed, 3 traced, and DDP's counters are missing; "
    # Rank 0 may end before rank 1 has saved its part.
    kept = ("what was measured is saved\n", "saved, once all 2 processes have saved theirs\n")
    assert ended[0][2] in {message + one for one in kept}
    assert ended[1][2] == ""
    (planned,) = RunFolder(tmp_path / "run").manifest().plan
    ((_, repeat),) = RunFolder(tmp_path / "run").done_repeats(planned.cell)
    # 30 and 32, less 5 + 8 and the one with the validation
    assert [rank.blocks[0].steps for rank in repeat.ranks()] == [16, 18]
    assert not list((tmp_path / "run" / "cells").glob(".tmp-*"))


LATE = """
import sys, time, torch
from torch import distributed
distributed.init_process_group("gloo")
for _ in range(20):
    if distributed.get_rank() == int(sys.argv[1]):
        time.sleep(0.1)
    distributed.all_reduce(torch.zeros(1000))
distributed.destroy_process_group()
"""


@pytest.mark.process
def test_all_collectives_of_a_script_are_recorded_and_show_its_late_rank(tmp_path: Path) -> None:
    """It takes no training step: that nothing is measured changes nothing for the records."""
    script, late = tmp_path / "late.py", random.randrange(3)
    script.write_text(LATE)
    options = ["--out", str(tmp_path / "run"), "--record-collectives"]
    ended = ended_ranks([*ATTACH, *options, str(script), str(late)], 3)
    assert "gloo records when a collective was created, and no durations" in ended[0][2]
    (recorded,) = RunFolder(tmp_path / "run").collectives()
    summary = summarise(read_job(find_files(recorded), 1 << 30))
    assert summary.job.ranks == (0, 1, 2)
    assert summary.waiting.counts.matched == 3 * 20
    worst = rank_rows(summary)[0]
    assert worst["rank"] == late
    assert worst["lateness_us"] == pytest.approx(100_000, rel=0.15)
