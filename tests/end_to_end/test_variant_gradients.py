"""Variants of DDP train as DDP does: gradients of real gloo processes, step by step."""

import importlib.util
import sys

import msgspec
import pytest
import torch
from torch import Tensor

from dpscope.profiling.records.run import Cell, CellOptions
from tests.helpers.paths import USER_MODELS
from tests.helpers.ranks import run_ranks

STEPS = 3
LAYERED, DOUBLE = "tiny_models:layered", "tiny_models:double"
EXACT = {
    "no overlap": CellOptions(overlap="off"),
    "small buckets": CellOptions(bucket_mb=1),
    "bucket views": CellOptions(gradient_as_bucket_view="on"),
    "static graph": CellOptions(static_graph="on"),
    "all of them": CellOptions(overlap="off", gradient_as_bucket_view="on", static_graph="on"),
    "local buffers": CellOptions(broadcast_buffers="off"),  # batch norm trains on its own batch's statistics
}
HALF = {"fp16": CellOptions(comm_hook="fp16"), "bf16": CellOptions(comm_hook="bf16")}
# Half a unit in the last place of fp16's 11 and bf16's 8 significant bits, twice (sent, and summed).
HALF_TOLERANCE = {"fp16": 2 * 2**-11, "bf16": 2 * 2**-8}
MICRO = {
    "two": CellOptions(accumulate=2),
    "eight": CellOptions(accumulate=8),
    "uneven": CellOptions(accumulate=3),
    "static graph, bucket views": CellOptions(accumulate=4, static_graph="on", gradient_as_bucket_view="on"),
}


def cell(options: CellOptions = CellOptions()) -> Cell:  # noqa: B008 (frozen)
    return Cell(strategy="ddp", devices=2, batch_size=8, options=options)


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, CellOptions], list[Tensor]]:
    """Gradients by model and options, all from one job of two processes."""
    wanted = [(LAYERED, options) for options in (CellOptions(), *EXACT.values(), *HALF.values(), MICRO["two"])]
    wanted += [(DOUBLE, options) for options in (CellOptions(), *MICRO.values())]
    saved = tmp_path_factory.mktemp("gradients") / "gradients.pt"
    models = msgspec.json.encode([model for model, _ in wanted]).decode()
    cells = msgspec.json.encode([cell(options) for _, options in wanted]).decode()
    run_ranks([sys.executable, "variant_gradients.py", models, cells, str(saved)], 2, cwd=USER_MODELS)
    return dict(zip(wanted, torch.load(saved), strict=True))


def relative_error(found: Tensor, expected: Tensor) -> float:
    assert expected.norm() > 0
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", EXACT)
def test_how_gradients_travel_changes_no_bit(ddp: dict[tuple[str, CellOptions], list[Tensor]], name: str) -> None:
    expected, found = ddp[LAYERED, CellOptions()], ddp[LAYERED, EXACT[name]]
    assert len(expected) == STEPS
    assert expected[0].numel() == 625_664
    assert not torch.equal(expected[0], expected[1])  # it trains
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", HALF)
def test_hooks_round_gradients_and_no_more(ddp: dict[tuple[str, CellOptions], list[Tensor]], dtype: str) -> None:
    expected, found = ddp[LAYERED, CellOptions()][0], ddp[LAYERED, HALF[dtype]][0]
    assert found.dtype == torch.float32
    assert 0 < relative_error(found, expected) < HALF_TOLERANCE[dtype]


@pytest.mark.parametrize("name", MICRO)
def test_micro_batches_add_up_to_the_whole_batch(ddp: dict[tuple[str, CellOptions], list[Tensor]], name: str) -> None:
    expected, found = ddp[DOUBLE, CellOptions()], ddp[DOUBLE, MICRO[name]]
    assert found[0].dtype == torch.float64
    assert len(found) == STEPS
    # The loss is computed in fp32, whose rounding is the same in both but for thirds.
    bound = 1e-6 if name == "uneven" else 1e-10
    assert all(relative_error(one, other) < bound for one, other in zip(found, expected, strict=True))


def test_dataparallel_cuts_its_batch_into_the_same_micro_batches(
    ddp: dict[tuple[str, CellOptions], list[Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With batch norm, whose statistics tell which samples shared a micro-batch on a device."""
    monkeypatch.syspath_prepend(str(USER_MODELS))
    spec = importlib.util.spec_from_file_location("variant_gradients", USER_MODELS / "variant_gradients.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    options = MICRO["two"]
    host = script.gradients_of(LAYERED, Cell(strategy="dp-host", devices=2, batch_size=8, options=options), 0)
    assert relative_error(host[0], ddp[LAYERED, options][0]) < 1e-6
    assert relative_error(host[0], ddp[LAYERED, CellOptions()][0]) > 1e-3
