"""FLOPs a second, their share of the peak, and the loss from it: by hand and against a published
training.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.cells.device_use import DEVICE, least_step_us
from dpscope.analysis.findings.run_findings import conclusions
from dpscope.analysis.traces.ranks.job import Job
from dpscope.launch.contents import app
from dpscope.profiling.machine.gpu_speed import gpu_speed
from dpscope.profiling.records.run import Cell, MatmulPeak, StepFlops
from dpscope.profiling.records.run_codes import RunCode
from tests.generated_traces.generator import write_ddp_job
from tests.helpers.examples import loaded
from tests.helpers.known import known
from tests.helpers.run_cells import cell_data, run_of, windows, with_ranks

A100 = "NVIDIA A100-SXM4-40GB"
V100 = "Tesla V100-SXM2-16GB"

POINTS = tuple(column.name for column in DEVICE.columns if column.quantity == "points")


def test_convolutions_and_products_have_their_own_peak() -> None:
    """156 TFLOP of convolutions at TF32's 156 TFLOP/s take 1 s, 39 TFLOP of products in single
    precision at 19.5 another 2 s.
    """
    speed = known(gpu_speed(A100))
    flops = StepFlops(total=195 * 10**12, convolutions=156 * 10**12, convolution_precision="tf32")
    assert least_step_us(flops, speed) == pytest.approx(3e6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("flops", "name", "least_us", "reason"),
    [
        (StepFlops(total=312 * 10**9, product_precision="half"), A100, 1000.0, ""),
        (StepFlops(total=312 * 10**9, product_precision="bf16"), A100, 1000.0, ""),
        (
            StepFlops(total=10**9, product_precision="bf16"),
            V100,
            None,
            f"{V100} emulates bf16: no peak of it is specified",
        ),
        (StepFlops(total=10**9), "cpu", None, "a CPU has no specified peak"),
        (StepFlops(total=10**9), "NVIDIA B999", None, "no specified peak of NVIDIA B999"),
        (
            StepFlops(missing="compiled graphs are not counted"),
            A100,
            None,
            "compiled graphs are not counted",
        ),
        (
            None,
            A100,
            None,
            "not counted: a script, or a run of an older version (--flops states them)",
        ),
    ],
)
def test_a_cells_row(
    flops: StepFlops | None, name: str, least_us: float | None, reason: str
) -> None:
    run = loaded()
    cell = next(iter(run.cells))
    changed = replace(
        run,
        cells={**run.cells, cell: with_ranks(run.cells[cell], flops=flops, device_names=(name,))},
    )
    row = compare(changed).rows[cell]
    if least_us is None:
        assert (row.mfu, row.reasons["mfu"]) == (None, reason)
    else:
        assert row.mfu == pytest.approx(least_us / known(row.step_us))
        assert row.achieved_tflops == pytest.approx(312e9 / (known(row.step_us) / 1e6) / 1e12)
        assert row.flops_per_step == 312 * 10**9


@pytest.mark.parametrize(
    ("parameters", "layers", "width", "context", "tokens_per_s", "percent"),
    [
        (1_315_950_592, 24, 2048, 2048, 45_455, 41.82),
        (6_784_688_128, 32, 4096, 32_768, 3_318, 30.94),
        (12_853_954_560, 40, 5120, 2048, 4_792, 39.79),
    ],
)
def test_published_utilisation(
    parameters: int, layers: int, width: int, context: int, tokens_per_s: int, percent: float
) -> None:
    """MPT 1b to 13b on 8 H100 in bf16, of mosaicml/llm-foundry
    (scripts/train/benchmarking/README.md, Apache-2.0).

    Tokens per second and GPU give its MFU: 6 FLOPs a parameter and token, 12 x width x context a
    layer for attention.
    """
    speed, per_token = (
        known(gpu_speed("NVIDIA H100 80GB HBM3")),
        6 * parameters + 12 * layers * width * context,
    )
    a_second = StepFlops(total=tokens_per_s * per_token, product_precision="half")
    assert 100 * least_step_us(a_second, speed) / 1e6 == pytest.approx(percent, rel=2e-3)


SINGLE, DDP = Cell("single", 1, 8), Cell("ddp", 2, 8)


def on(data: Job, device: str, flops: StepFlops | None, tflops: float | None = None) -> Job:
    """The cell on a device, with FLOPs that rank 0 counted and the rate at which each process
    multiplied matrices.
    """
    peak = None if tflops is None else MatmulPeak(tflops, side=512, dtype="float32", threads=1)
    return with_ranks(data, device_names=(device,), flops=flops, matmul_peak=peak)


def ddp_cell(step_us: float = 1000.0) -> Job:
    """A traced step of 1250 us: compute 700, exposed wait 100, transfer 250, other 50, idle 150;
    untraced `step_us`.
    """
    steps = windows(
        DDP, 5, 2, step_us=1250.0, compute_us=700.0, communication_us=400.0, exposed_us=400.0, exposed_wait_us=100.0,
        exposed_transfer_us=250.0, idle_us=150.0,
    )  # fmt: skip
    return cell_data(DDP, [[step_us] * 5] * 2, steps)


def test_the_loss_from_100_percent_adds_up() -> None:
    """156 TFLOP/s x 500 us in TF32: half of the untraced step, 40 of the traced step's 100
    points.
    """
    flops = StepFlops(total=78 * 10**9, product_precision="tf32")
    run = run_of(on(ddp_cell(), A100, flops))
    comparison = compare(run)
    row = comparison.table.iloc[0]
    assert row["achieved_tflops"] == pytest.approx(78.0)
    assert row["mfu"] == pytest.approx(0.5)
    assert row[list(POINTS)].drop("lost_contention_points").tolist() == pytest.approx(
        [40, 8, 20, 4, 12, 16]
    )
    assert row[list(POINTS)].isna()["lost_contention_points"]
    assert (
        comparison.reasons[DDP.name, "lost_contention_points"]
        == comparison.reasons[DDP.name, "contention_us"]
    )
    assert comparison.reasons[DDP.name, "cpu_peak_share"].startswith("a GPU")
    steps = windows(SINGLE, 5, 2, step_us=1000.0, compute_us=900.0, idle_us=100.0)
    # which has no exposed communication to lose
    alone = on(cell_data(SINGLE, [[1000.0] * 5] * 2, steps), A100, flops)
    points = compare(run_of(alone)).table.iloc[0][list(POINTS)].dropna()
    assert points.to_dict() == pytest.approx(
        {"used_points": 50, "lost_idle_points": 10, "lost_below_peak_points": 40}
    )


def test_more_than_the_peak_is_a_finding() -> None:
    """156 TFLOP/s in TF32 are 109.2e9 FLOPs in the 700 us in which the device computes."""
    for flops, above in ((109 * 10**9, False), (110 * 10**9, True)):
        run = run_of(on(ddp_cell(), A100, StepFlops(total=flops, product_precision="tf32")))
        found = [
            one.message
            for one in conclusions(run, compare(run))
            if one.code == RunCode.ABOVE_PEAK.code
        ]
        assert (
            found
            == [f"{DDP.name}: reaches 101% of the specified peak of its GPU while it computes"]
            * above
        )


@pytest.mark.long
def test_foreign_traces_with_stated_flops(tmp_path: Path) -> None:
    folder = write_ddp_job(tmp_path / "job")

    def row(flops: str) -> dict[str, float]:
        ended = CliRunner().invoke(
            app, ["analyze", str(folder), "--flops", flops, "--format", "json"]
        )
        (cell,) = json.loads(ended.stdout)["cells"]
        return dict(cell)

    cell = row("156M:tf32")  # 1 us at the peak of the A100 that the traces name
    assert cell["achieved_tflops"] == pytest.approx(156 / cell["traced_step_us"], abs=1e-6)
    assert cell["mfu"] == pytest.approx(1 / cell["traced_step_us"], abs=1e-6)
    assert sum(cell[name] or 0.0 for name in POINTS) == pytest.approx(100, abs=1e-4)
    unknown = row("156M")
    assert unknown["mfu"] is None
    assert "--flops 1.2T:bf16" in unknown["missing"]["mfu"]
    shown = CliRunner().invoke(app, ["analyze", str(folder), "--flops", "156M:tf32"]).stdout
    assert "Where 100 points of a device's peak go in a traced step" in shown
    assert "ABOVE PEAK" not in shown
    far = CliRunner().invoke(app, ["analyze", str(folder), "--flops", "156T:tf32"]).stdout
    assert "ABOVE PEAK" in far
    assert "No model applies" not in shown  # no link and no calibration was given to apply one
