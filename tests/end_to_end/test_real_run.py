"""A real run of the command to the report, on a tiny model with real gloo processes; by torchrun:
test_core_path.py.
"""

import csv
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from dpscope.analysis.cells.columns import columns
from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.runs.run_data import load_run
from dpscope.analysis.traces.ranks.readers import find_files
from dpscope.analysis.what_if.answer import chapter_of
from dpscope.analysis.whole_job.job import read_job
from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.store.folders import RepeatFolder, RunFolder
from tests.helpers.fork_server import FIGURES
from tests.helpers.light_torchrun import light_jobs
from tests.helpers.sweeps import half_written
from tests.helpers.words import words

MODEL = words(
    "--device cpu --data fake --workers 0 --samples 37 --steps 12 --traced-steps 5 --timeout 90"
)
TIMED, TRACED = 12, 6  # one traced step more than requested


def dpscope(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dpscope.launch.cli", *map(str, arguments)],
        env=os.environ | {"COLUMNS": "80", FIGURES: "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("real") / "run"
    with light_jobs():
        finished = dpscope(
            "run", *MODEL, "--model", "tiny_models:tiny", "--batch-size", "8", "--scaling", "both",
            "--ddp-alone", "--repeats", "1", "--link", "1GB/s", "--record-collectives", "--out", out,
        )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert f"Report: {out / 'report' / 'report.html'}" in finished.stdout
    recorded = out / "cells" / "ddp-d2-b8" / "repeat0" / "collectives"
    assert f"Collectives of 3 whole jobs: dpscope analyze {recorded}" in finished.stdout
    return out


def test_every_column_is_filled_or_missing_for_a_reason(run_folder: Path) -> None:
    comparison = compare(load_run(run_folder), parse_link("1GB/s"))
    cells = [
        "single-d1-b4",
        "single-d1-b8",
        "ddp-d1-b8",
        "dp-host-d2-b4",
        "dp-host-d2-b8",
        "ddp-d2-b4",
        "ddp-d2-b8",
    ]
    assert sorted(comparison.table["cell"]) == sorted(cells)
    assert (comparison.table["status"] == "ok").all()
    for row in comparison.table.to_dict("records"):
        for column in (one.name for one in columns()):
            reason = comparison.reasons.get((row["cell"], column))
            assert pd.isna(row[column]) == (reason is not None), (
                row["cell"],
                column,
                row[column],
                reason,
            )
            assert reason != ""
    rows = {row["cell"]: row for row in comparison.table.to_dict("records")}
    ddp = rows["ddp-d2-b4"]
    # tiny model: 8 x 3 x 3 x 3 + 8 + 8 + 8 x 4 + 4 = 268 parameters, 1,072 B; buffers 8 + 8 floats
    # and one int64: 72 B
    assert ddp["bytes_per_step"] == 1072 + 72
    assert ddp["counter_buckets_equal"]
    assert ddp["strong_speedup"] == pytest.approx(rows["single-d1-b8"]["step_us"] / ddp["step_us"])
    # ring at 1 GB/s on two ranks: 1,072 B x 2 x 1/2 / 1e9 B/s = 1.072 us
    assert ddp["ring_us"] == pytest.approx(1.072)
    added = [ddp[f"{part}_us"] for part in ("exposed", "slowdown", "added_idle", "added_tracer")]
    assert sum(added) == pytest.approx(ddp["same_local_batch_us"])
    assert ddp["traced_step_us"] == pytest.approx(
        ddp["compute_us"] + ddp["exposed_us"] + ddp["idle_us"]
    )


def test_what_each_process_measured_is_stored(run_folder: Path) -> None:
    """Every epoch ends with a batch that is short, on two devices as well, which is in no pass."""
    run = RunFolder(run_folder)
    assert half_written(run.path) == []
    assert run.manifest().config.matrix.devices == (1, 2)
    for planned in run.manifest().plan:
        cell = planned.cell
        ((index, folder),) = run.done_repeats(cell)
        ranks = folder.ranks()
        assert (index, [rank.rank for rank in ranks]) == (0, list(range(cell.processes)))
        assert len(folder.traces()) == cell.processes
        samples = pd.DataFrame(folder.samples(ranks))
        counts = samples.groupby(["rank", "measuring_pass"]).size()
        assert set(counts.index.get_level_values("rank")) == set(range(cell.processes))
        assert (counts.xs("timed", level="measuring_pass") == TIMED).all()
        assert (counts.xs("traced", level="measuring_pass") == TRACED).all()
        assert samples.step_us.min() > 0
        assert set(samples.samples) == {cell.global_batch_size // cell.processes}
        assert (samples.data_wait_us < samples.step_us).all()
        timed = samples[(samples["rank"] == 0) & (samples.measuring_pass == "timed")]
        assert ranks[0].blocks[0].data_wait_s == pytest.approx(timed.data_wait_us.sum() / 1e6)
        assert all(rank.threads == run.manifest().threads_per_process for rank in ranks)
        assert sum(rank.blocks[0].samples for rank in ranks) == TIMED * cell.global_batch_size
        if cell.strategy == "ddp" and cell.devices > 1:
            assert_counted(folder)


def assert_counted(folder: RepeatFolder) -> None:
    """Each rank has DDP's counters of the steps that the counters pass traced."""
    ranks = folder.ranks()
    assert len(folder.counters_traces()) == len(ranks)
    for rank in ranks:
        counters = folder.counters(0, rank.rank)
        assert [entry.step for entry in counters] == list(range(2, 2 + TRACED))
        assert all(sum(entry.bucket_bytes) == rank.model.gradient_bytes for entry in counters)
        assert all(entry.backward_comm_us > 0 for entry in counters)


def test_every_collective_of_the_jobs_is_recorded(run_folder: Path) -> None:
    folders = RunFolder(run_folder).collectives()
    cells = ["ddp-d1-b8", "ddp-d2-b4", "ddp-d2-b8"]  # those with a process for each device
    assert [folder.parents[1].name for folder in folders] == cells
    for folder, ranks in zip(folders, (1, 2, 2), strict=True):
        job = read_job(find_files(folder), 1 << 30)
        assert job.ranks == tuple(range(ranks))
        for process in job.processes:
            # buffers are sent from rank 0 and gradients reduced in each of 5 steps of warm-up, of
            # 12 timed and of at least 6 traced ones
            kinds = Counter(process.calls[code].kind for code in process.call)
            assert min(kinds["all_reduce"], kinds["broadcast"]) >= 23
            assert not process.unfinished.any()


def test_report_is_whole_and_opens_offline(run_folder: Path) -> None:
    report = run_folder / "report"
    page = (report / "report.html").read_text(encoding="utf-8")
    figures = set(re.findall(r'<figure id="figure-(\w+)"', page))
    assert figures >= {"waterfall", "scaling"}
    # a run whose collectives were far from their costs has no prediction
    run = load_run(run_folder)
    what_if = chapter_of(run, compare(run, parse_link("1GB/s")).collective_costs)
    assert what_if is not None
    assert ("what_if" in figures) == bool(what_if.known)
    drawn = re.findall(r"<svg(?! class=\"swatch\")", page)  # legends have swatches
    assert len(drawn) == len(figures)
    assert not (report / "figures").exists()  # files only where --figures asks for them
    assert re.findall(r"""<[^>]*\s(?:src|href)\s*=\s*["']?[^"'>]*//[^"'>]*""", page) == []
    with open(report / "comparison.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 7
    assert {one.name for one in columns()} <= set(rows[0])
    assert "ddp-d2-b4" in (report / "comparison.md").read_text()
