"""dpscope checked on all GPUs of this machine at once: `make gpu`. On one GPU every test here is
skipped.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dpscope.profiling.records.run import Cell
from dpscope.profiling.store.folders import RunFolder
from tests.helpers import gpu_checks
from tests.helpers.gpu_bench import CALIBRATION_OF_ALL, OPTIONS_ON_ALL, PATIENCE, Bench
from tests.helpers.known import known

Record = Callable[[str, object], None]

BATCH = 128
_NOT_JUDGED = 3  # exit status of `dpscope compare`


@pytest.mark.gpu(least=2, expected_s=150, limit_s=300)
def test_every_strategy_on_all_gpus(bench: Bench, all_run: Path, record_property: Record) -> None:
    """Cells are measured, the parts of each step add up to it, collectives are matched over all
    ranks and have possible rates.
    """
    analysis = bench.analysis(all_run)
    cells = [row["cell"] for row in analysis["cells"]]
    record_property("step_us", {row["cell"]: row["step_us"] for row in analysis["cells"]})
    record_property("mfu", {row["cell"]: row["mfu"] for row in analysis["cells"]})
    record_property(
        "busbw_gb_per_s", {row["cell"]: row["busbw_gb_per_s"] for row in analysis["cells"]}
    )
    assert gpu_checks.problems(analysis) == []
    # DDP on one device, too, and HSDP, which needs two groups of two
    assert len(cells) == (7 if bench.gpus >= 4 else 6)
    assert max(known(gpu_checks.step_difference(analysis, cell)) for cell in cells) <= 0.001
    assert gpu_checks.unmatched(analysis) == {}
    assert gpu_checks.impossible_rates(analysis) == []
    on_all = {
        row["cell"]
        for row in analysis["cells"]
        if row["devices"] == bench.gpus and row["strategy"] != "dp"
    }
    ranks = {(row["cell"], row["rank"]) for row in analysis["collectives"] if row["cell"] in on_all}
    assert len(ranks) == len(on_all) * bench.gpus


@pytest.mark.gpu(least=2, expected_s=10, limit_s=60)
def test_ddp_on_all_gpus(bench: Bench, all_run: Path) -> None:
    """As on two GPUs: bytes, buckets, numbers and matching of the all-reduces."""
    cell = Cell(strategy="ddp", devices=bench.gpus, batch_size=BATCH)
    measured = RunFolder(all_run).repeat(cell, 0)
    (first, *_) = measured.ranks()
    counters = measured.counters(first.node, first.rank)
    analysis = bench.analysis(all_run)
    assert gpu_checks.ddp_problems(analysis, cell.name, first.model.gradient_bytes, counters) == []


@pytest.mark.gpu(least=2, expected_s=90, limit_s=300)
def test_calibrated_rates_and_nccl_choices(bench: Bench, record_property: Record) -> None:
    """No rate is above the link's, and NCCL's own log has a choice at each size, of all-gather and
    reduce-scatter, too.
    """
    calibration = bench.calibration("calibration_of_all", CALIBRATION_OF_ALL, limit_s=250)
    record_property("choices", [len(choices.log.choices) for choices in calibration.nccl])
    assert calibration.nccl or bench.virtual, "NCCL wrote no log"
    assert gpu_checks.calibration_problems(calibration) == []


@pytest.mark.gpu(least=2, expected_s=60, limit_s=200)
def test_attach_on_all_gpus(bench: Bench, record_property: Record) -> None:
    """A script with DDP, unchanged: its steps are counted and traced, and its all-reduces
    matched.
    """
    out = bench.folder / "attached"
    script = ("--", Path(__file__).with_name("ddp_script.py"), 40)
    ended = bench.dpscope(
        "attach", "--devices", bench.gpus, "--steps", 15, "--out", out, *script, limit_s=180
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    analysis = bench.analysis(out)
    (cell,) = analysis["cells"]
    record_property("step_us", cell["step_us"])
    assert gpu_checks.problems(analysis) == []
    assert (cell["devices"], cell["batch_size"]) == (bench.gpus, BATCH)
    assert gpu_checks.unmatched(analysis) == {}
    assert any(row["kind"] == "all_reduce" for row in analysis["collectives"])


@pytest.mark.gpu(least=2, expected_s=90, limit_s=300)
def test_train_on_all_gpus(bench: Bench, record_property: Record) -> None:
    """Two epochs on one device, under DataParallel and DDP."""
    out = bench.folder / "trained"
    options = ("--strategy", "single,dp,ddp", "--devices", bench.gpus, "--epochs", 2, "--out", out)
    ended = bench.dpscope("train", *options, limit_s=280)
    record_property("printed", ended.stdout[-2000:])
    assert ended.returncode == 0, ended.stderr[-2000:]


@pytest.mark.gpu(least=2, expected_s=120, limit_s=300)
def test_two_runs_compared(bench: Bench, record_property: Record) -> None:
    """DDP on all devices, measured twice: within 10%; on a shared host `compare` may not judge
    it.
    """
    runs = bench.run("compared"), bench.run("compared_again")
    ended = bench.dpscope("compare", *runs, "--fail-over", "50%", "--format", "json")
    record_property("printed", ended.stdout)
    is_shared = PATIENCE > 1
    assert ended.returncode in ((0, _NOT_JUDGED) if is_shared else (0,)), (
        ended.stdout + ended.stderr[-2000:]
    )
    changes = json.loads(ended.stdout)["changes"]
    steps = [row for row in changes if row["quantity"] == "step"]
    assert [row["cell"] for row in steps] == [
        Cell(strategy="ddp", devices=bench.gpus, batch_size=BATCH).name
    ]
    assert is_shared or steps[0]["ratio"] == pytest.approx(1.0, abs=0.1)


@pytest.mark.gpu(least=2, expected_s=50, limit_s=250)
@pytest.mark.parametrize("name", OPTIONS_ON_ALL)
def test_options_on_all_gpus(bench: Bench, name: str) -> None:
    """A short run on all devices."""
    analysis = bench.analysis(bench.run(f"all_{name}"))
    assert gpu_checks.problems(analysis) == []
    assert gpu_checks.unmatched(analysis) == {}
    assert gpu_checks.impossible_rates(analysis) == []


@pytest.mark.gpu(least=1, expected_s=20, limit_s=100)
def test_warnings_of_all_runs(bench: Bench, record_property: Record) -> None:
    """Counted over the runs before: dpscope's by code, and what Python and NCCL warn of in the logs
    of jobs.
    """
    runs = sorted(manifest.parent for manifest in bench.folder.glob("*/manifest.json"))
    if not runs:
        pytest.skip("no run was measured")
    counted = {
        run.name: gpu_checks.counted_warnings(bench.analysis(run), run.rglob("log.txt"))
        for run in runs
    }
    record_property("warnings", counted)
    # The gradients that torch.compile makes of 1x1 convolutions have other strides than DDP's
    # buckets, of which torch 2.14 warns.
    plain = {name: warnings for name, warnings in counted.items() if "compile" not in name}
    unexpected = {
        name: warnings
        for name, warnings in plain.items()
        if warnings.keys() & {"UserWarning", "WARN"}
    }
    assert unexpected == {}
