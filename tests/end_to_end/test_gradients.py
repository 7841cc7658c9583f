"""Gradients of real gloo processes: variants of DDP, the stand-in for DataParallel, and testing in
shards, step by step.
"""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

from dpscope.launch.workload.models import build_model
from dpscope.launch.workload.strategies import wrap_for
from dpscope.launch.workload.tasks import BuiltModel
from dpscope.profiling.records.run import Cell, CellOptions
from tests.helpers.paths import USER_MODELS
from tests.helpers.ranks import run_ranks
from tests.user_models import gradients as script

LAYERED, DOUBLE = "tiny_models:layered", "tiny_models:double"
VIEWS, STATIC = "gradient_as_bucket_view=true", "static_graph=true"
EXACT = {
    "no overlap": CellOptions(overlap="off"),
    "small buckets": CellOptions(bucket_mb=1),
    "bucket views": CellOptions(ddp_args=VIEWS),
    "static graph": CellOptions(ddp_args=STATIC),
    "all of them": CellOptions(overlap="off", ddp_args=f"{VIEWS} {STATIC}"),
    # batch norm trains on its own batch's statistics
    "local buffers": CellOptions(broadcast_buffers="off"),
}
HALF = {"fp16": CellOptions(comm_hook="fp16"), "bf16": CellOptions(comm_hook="bf16")}
# Half a unit in the last place of fp16's 11 and bf16's 8 significant bits, twice (sent, and
# summed).
HALF_TOLERANCE = {"fp16": 2 * 2**-11, "bf16": 2 * 2**-8}
MICRO = {
    "two": CellOptions(accumulate=2),
    "eight": CellOptions(accumulate=8),
    "uneven": CellOptions(accumulate=3),
    "static graph, bucket views": CellOptions(accumulate=4, ddp_args=f"{STATIC} {VIEWS}"),
}


Found = dict[tuple[str, CellOptions], list[Tensor]]  # gradients by model and options


def cell(options: CellOptions = CellOptions()) -> Cell:  # noqa: B008 (frozen)
    return Cell(strategy="ddp", devices=2, batch_size=8, options=options)


WANTED = [
    (LAYERED, options) for options in (CellOptions(), *EXACT.values(), *HALF.values(), MICRO["two"])
]
WANTED += [(DOUBLE, options) for options in (CellOptions(), *MICRO.values())]


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(USER_MODELS))
    torch.set_num_threads(1)


def job(folder: Path, ranks: int, **request: object) -> dict[str, Any]:
    text = msgspec.json.encode({"cells": [], "shares": [], **request}).decode()
    run_ranks(
        [sys.executable, "gradients.py", text, str(folder / "found.pt")], ranks, cwd=USER_MODELS
    )
    found: dict[str, Any] = torch.load(folder / "found.pt")
    return found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All that two ranks are run for, from one job."""
    cells = [(model, cell(options)) for model, options in WANTED]
    return job(tmp_path_factory.mktemp("gradients"), 2, cells=cells, shares=["resnet18_cifar"])


@pytest.fixture(scope="module")
def ddp(two: dict[str, Any]) -> Found:
    return dict(zip(WANTED, two["cells"], strict=True))


def relative_error(found: Tensor, expected: Tensor) -> float:
    assert expected.norm() > 0
    return float((found - expected).norm() / expected.norm())


def test_how_gradients_travel_changes_no_bit_and_hooks_round_no_more(ddp: Found) -> None:
    expected = ddp[LAYERED, CellOptions()]
    assert (len(expected), expected[0].numel()) == (script.STEPS, 625_664)
    assert not torch.equal(expected[0], expected[1])  # it trains
    for name, options in EXACT.items():
        found = ddp[LAYERED, options]
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True)), (
            name
        )
    for dtype, options in HALF.items():
        (rounded, *_) = ddp[LAYERED, options]
        assert rounded.dtype == torch.float32
        assert 0 < relative_error(rounded, expected[0]) < HALF_TOLERANCE[dtype]


def test_micro_batches_add_up_to_the_whole_batch(ddp: Found) -> None:
    expected = ddp[DOUBLE, CellOptions()]
    for name, options in MICRO.items():
        found = ddp[DOUBLE, options]
        assert (found[0].dtype, len(found)) == (torch.float64, script.STEPS)
        # The loss is computed in fp32, whose rounding is the same in both but for thirds.
        bound = 1e-6 if name == "uneven" else 1e-10
        assert all(
            relative_error(one, other) < bound for one, other in zip(found, expected, strict=True)
        ), name


def host_gradients(model: str, devices: int) -> list[Tensor]:
    torch.manual_seed(0)
    built = build_model(model)
    wrapped = wrap_for(built.model, Cell("dp-host", devices, script.BATCH), torch.device("cpu"))
    images, labels = script.whole_batch(devices, built.input_shape, built.classes)
    nn.functional.cross_entropy(wrapped(images), labels).backward()  # type: ignore[no-untyped-call]
    return gradients(built)


def gradients(built: BuiltModel) -> list[Tensor]:
    found = [parameter.grad for parameter in built.model.parameters()]
    assert len(found) > 1
    return [gradient for gradient in found if gradient is not None]


def test_two_devices_give_ddps_gradients_bit_for_bit(two: dict[str, Any]) -> None:
    expected = two["shares"]["resnet18_cifar"]
    actual = host_gradients("resnet18_cifar", 2)
    assert sum(gradient.numel() for gradient in expected) == 11_173_962
    assert all(torch.equal(first, second) for first, second in zip(actual, expected, strict=True))


def test_uneven_shards_add_up_to_the_whole(two: dict[str, Any]) -> None:
    loss, accuracy, samples, whole_loss, right, buffers_kept = two["tested"]
    assert samples == script.SAMPLES
    assert loss == pytest.approx(whole_loss, rel=1e-6)
    assert accuracy == pytest.approx(100 * right / script.SAMPLES)
    assert buffers_kept
