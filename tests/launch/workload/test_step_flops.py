"""FLOPs of a step against closed formulas: two per multiply-add, forward once and backward
twice.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch
from torch import Tensor, nn

from dpscope.launch.workload.model_size import SIZES
from dpscope.launch.workload.models import GPT_SIZES, build_model
from dpscope.launch.workload.step_flops import cell_step_flops, count_step_flops, matmul_peak
from dpscope.launch.workload.tasks import BuiltModel
from dpscope.profiling.records.run import Cell, StepFlops
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RepeatFolder
from tests.helpers.run_cells import rank_result

BATCH = 4


def flat(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *layers)


class Attention(nn.Module):
    """T = 32 positions of width 96 in 4 heads, with trained queries."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.zeros(1, 4, 32, 24))
        self.contents = nn.Parameter(torch.zeros(1, 4, 32, 24))

    def forward(self, images: Tensor) -> Tensor:
        scaled = self.contents * images.mean(dim=(1, 2, 3)).view(-1, 1, 1, 1)
        attended = nn.functional.scaled_dot_product_attention(
            self.queries.expand_as(scaled), scaled, scaled
        )
        return attended.flatten(1)[:, :10]


FROZEN = flat(nn.Linear(3072, 64).requires_grad_(False), nn.Linear(64, 10))
GPT = GPT_SIZES["gpt_5m"]
RESNET_MULTIPLICATIONS = SIZES["resnet18_cifar"].multiplications or 0
# multiply-adds: 5 x 5, stride 2, 3 to 8 channels, 14 x 14 outputs of 75 products each
CONVOLUTION = 14 * 14 * 8 * 75


@pytest.mark.parametrize(
    ("model", "multiplications", "convolutions"),
    [
        # The first layer's input needs no gradient.
        (flat(nn.Linear(3072, 64), nn.ReLU(), nn.Linear(64, 10)), 2 * 3072 * 64 + 3 * 64 * 10, 0),
        (
            nn.Sequential(nn.Conv2d(3, 8, 5, stride=2), nn.Flatten(), nn.Linear(8 * 14 * 14, 10)),
            2 * CONVOLUTION + 3 * 10 * 8 * 14 * 14,
            2 * CONVOLUTION,
        ),
        # neither the first layer's weights nor its outputs need a gradient
        (FROZEN, 3072 * 64 + 2 * 64 * 10, 0),
        # two products of T x T x width forward, two each backward
        (Attention(), 3 * 2 * 32 * 32 * 96, 0),
        # Forward once and backward twice, except for the images' gradient in the stem.
        ("resnet18_cifar", 3 * RESNET_MULTIPLICATIONS - 32 * 32 * 64 * 27, None),
        # Of each multiplying parameter and token 3, for attention 6 T^2 x width per layer.
        (
            "gpt_5m",
            3 * GPT.context * (12 * GPT.layers * GPT.width**2 + GPT.vocabulary * GPT.width)
            + 6 * GPT.layers * GPT.context**2 * GPT.width,
            0,
        ),
    ],
    ids=["linear", "convolution", "frozen", "attention", "resnet18", "gpt"],
)
def test_flops_by_closed_formulas(
    model: nn.Module | str, multiplications: int, convolutions: int | None
) -> None:
    built = build_model(model) if isinstance(model, str) else BuiltModel(model)
    counted = count_step_flops(built, BATCH, "off")
    assert counted.total == 2 * BATCH * multiplications
    assert convolutions is None or counted.convolutions == 2 * BATCH * convolutions


def test_counting_changes_neither_model_nor_random_state() -> None:
    built = build_model("resnet8_cifar")
    before = {name: value.clone() for name, value in built.model.state_dict().items()}
    torch.manual_seed(7)
    count_step_flops(built, BATCH, "off")
    drawn = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(drawn, torch.rand(3))
    assert all(torch.equal(before[name], value) for name, value in built.model.state_dict().items())
    assert all(
        parameter.grad is None and not parameter.is_meta for parameter in built.model.parameters()
    )


@torch.library.custom_op("dpscope_test::doubled", mutates_args=())
def doubled(values: Tensor) -> Tensor:
    """An operator of a package that is not torch."""
    return values * 2


@doubled.register_fake
def _(values: Tensor) -> Tensor:
    return torch.empty_like(values)


class Calls(nn.Module):
    """Runs a function on its outputs."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(3072, 10), function

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.layer(images.flatten(1)) + self.function(images.flatten(1)[:, :10])
        return outputs


WITHOUT_PRODUCTS = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.LayerNorm(48))


@pytest.mark.parametrize(
    ("model", "compiled", "missing"),
    [
        (
            Calls(lambda values: doubled(values)),
            False,
            "operators that are not torch's are not counted: dpscope_test::doubled",
        ),
        (
            Calls(lambda values: values * float(values.sum())),
            False,
            "the step does not run on shapes alone (",
        ),
        (Calls(torch.relu), True, "compiled graphs are not counted"),
        (WITHOUT_PRODUCTS, False, "the step has no matrix product, convolution or attention"),
    ],
)
def test_flops_that_cannot_be_counted_are_missing_with_a_reason(
    model: nn.Module, compiled: bool, missing: str
) -> None:
    counted = count_step_flops(BuiltModel(model, classes=48), BATCH, "off", compiled)
    assert counted.total is None
    assert counted.missing.startswith(missing)


def test_the_precision_is_that_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    built = BuiltModel(flat(nn.Linear(3072, 10)))
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(allow_tf32=False))
    monkeypatch.setattr(torch.backends, "cudnn", SimpleNamespace(allow_tf32=True))
    plain, half, bf16 = (count_step_flops(built, BATCH, amp) for amp in ("off", "fp16", "bf16"))
    assert (plain.product_precision, plain.convolution_precision) == ("fp32", "tf32")
    assert (half.product_precision, half.convolution_precision) == ("half", "half")
    assert bf16.product_precision == bf16.convolution_precision == "bf16"


def test_the_rate_of_matrix_products_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scripted clock: products of 256 take 1 ms and those of 512 take 6 ms, 2 x 512^3 FLOPs in 6
    ms being the faster rate.
    """
    now_s = 0.0

    def multiply(first: Tensor, second: Tensor, *, out: Tensor) -> None:
        nonlocal now_s
        assert first.shape == second.shape == out.shape
        now_s += 1e-3 if len(out) == 256 else 6e-3

    real = matmul_peak("off")
    assert real.dtype == "float32"
    assert 1e-4 < real.tflops < 1e3
    monkeypatch.setattr(torch, "mm", multiply)
    monkeypatch.setattr("time.perf_counter", lambda: now_s)
    peak = matmul_peak("bf16")
    assert (peak.side, peak.dtype, peak.threads) == (512, "bfloat16", torch.get_num_threads())
    assert peak.tflops == pytest.approx(2 * 512**3 / 6e-3 / 1e12)


def test_a_repeat_takes_over_what_an_earlier_one_counted(tmp_path: Path) -> None:
    built, cell, stored = (
        BuiltModel(flat(nn.Linear(3072, 10))),
        Cell("ddp", 2, BATCH),
        StepFlops(7, 5, "fp32", "fp32"),
    )
    first, second = (RepeatFolder(tmp_path / f"repeat{number}") for number in range(2))
    assert cell_step_flops([first], built, cell, "off") == count_step_flops(built, BATCH, "off")
    first.path.mkdir()
    write_json(first.rank_path(0, 0), msgspec.structs.replace(rank_result(0, 2), flops=stored))
    assert cell_step_flops([first, second], built, cell, "off") == stored
