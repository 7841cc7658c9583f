"""FLOPs a second and MFU, by hand and against a published training."""

from dataclasses import replace

import msgspec
import pytest

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.cells.device_use import least_step_us
from dpscope.profiling.machine.gpu_speed import gpu_speed
from dpscope.profiling.records.run import StepFlops
from tests.helpers.examples import loaded

A100 = "NVIDIA A100-SXM4-40GB"


def test_convolutions_and_products_have_their_own_peak() -> None:
    """156 TFLOP of convolutions at TF32's 156 TFLOP/s take 1 s, 39 TFLOP of products in single precision at 19.5 another 2 s."""
    speed = gpu_speed(A100)
    assert speed is not None
    flops = StepFlops(total=195 * 10**12, convolutions=156 * 10**12, convolution_precision="tf32")
    assert least_step_us(flops, speed) == pytest.approx(3e6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("flops", "name", "least_us", "reason"),
    [
        (StepFlops(total=312 * 10**9, product_precision="half"), A100, 1000.0, ""),
        (StepFlops(total=10**9), "cpu", None, "no specified peak of cpu"),
        (StepFlops(missing="compiled graphs are not counted"), A100, None, "compiled graphs are not counted"),
        (None, A100, None, "not counted: a script, or a run of an older version"),
    ],
)
def test_a_cells_row(flops: StepFlops | None, name: str, least_us: float | None, reason: str) -> None:
    run = loaded()
    cell = next(iter(run.cells))
    data = run.cells[cell]
    ranks = tuple(
        (repeat, msgspec.structs.replace(rank, flops=flops, device_names=(name,))) for repeat, rank in data.ranks
    )
    changed = replace(run, cells={**run.cells, cell: replace(data, ranks=ranks)})
    comparison = compare(changed)
    row = comparison.table.set_index("cell").loc[cell]
    if least_us is None:
        assert row.isna()["mfu"]
        assert comparison.reasons[cell, "mfu"] == reason
    else:
        assert row["mfu"] == pytest.approx(least_us / row["step_us"])
        assert row["achieved_tflops"] == pytest.approx(312e9 / (row["step_us"] / 1e6) / 1e12)
        assert row["flops_per_step"] == 312 * 10**9


@pytest.mark.parametrize(
    ("parameters", "layers", "width", "context", "tokens_per_s", "percent"),
    [
        (1_315_950_592, 24, 2048, 2048, 45_455, 41.82),
        (1_328_533_504, 24, 2048, 8192, 29_157, 37.73),
        (2_657_080_320, 32, 2560, 4096, 20_964, 42.31),
        (6_658_859_008, 32, 4096, 2048, 10_643, 46.44),
        (6_784_688_128, 32, 4096, 32_768, 3_318, 30.94),
        (12_853_954_560, 40, 5120, 2048, 4_792, 39.79),
    ],
)
def test_published_utilisation(
    parameters: int, layers: int, width: int, context: int, tokens_per_s: int, percent: float
) -> None:
    """MPT 1b to 13b on 8 H100 in bf16, of mosaicml/llm-foundry (scripts/train/benchmarking/README.md, Apache-2.0).

    Tokens per second and GPU give its MFU: 6 FLOPs a parameter and token, 12 x width x context a layer for attention.
    """
    speed = gpu_speed("NVIDIA H100 80GB HBM3")
    assert speed is not None
    a_second = StepFlops(
        total=tokens_per_s * (6 * parameters + 12 * layers * width * context), product_precision="half"
    )
    assert 100 * least_step_us(a_second, speed) / 1e6 == pytest.approx(percent, rel=2e-3)
