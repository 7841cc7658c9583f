"""`dpscope train` and `equal` run to their end; kernels compute nothing, so nothing is asserted of
losses and weights.
"""

import json
from pathlib import Path

import pytest

from tests.virtual_gpu.conftest import Plant
from tests.virtual_gpu.node import Device, Node, PlantedNode

MODEL = ("--model", "tests.user_models.tiny_models:tiny", "--batch-size", "8")
EPOCHS, SAMPLES = 2, 32


@pytest.fixture(scope="module")
def node(plant: Plant) -> PlantedNode:
    return plant(Node(devices=(Device(),) * 2))


def test_train(node: PlantedNode, tmp_path: Path) -> None:
    out = tmp_path / "run"
    cells = ("--strategy", "dp,ddp", "--devices", "2")
    amount = (
        "--epochs",
        str(EPOCHS),
        "--milestones",
        "1",
        "--data",
        "fake",
        "--samples",
        str(SAMPLES),
    )
    node.dpscope("train", *cells, *MODEL, *amount, "--workers", "0", "--out", str(out))
    records = json.loads((out / "train.json").read_text())["epochs"]
    assert sorted((record["cell"], record["epoch"]) for record in records) == [
        (cell, epoch) for cell in ("ddp-d2-b4", "dp-d2-b4") for epoch in range(1, EPOCHS + 1)
    ]
    # known without the device, whose kernels add nothing
    assert {record["train_samples"] for record in records} == {SAMPLES}
    assert node.truth().collectives["name"].str.contains("AllReduce").any()


def test_equal(node: PlantedNode, tmp_path: Path) -> None:
    """All three train; what they lost and gained cannot be judged without results, which is an
    error.
    """
    out = tmp_path / "run"
    printed = node.dpscope(
        "equal", "--devices", "2", *MODEL, "--steps", "2", "--out", str(out), status=1
    )
    for cell in ("single-d1-b8", "dp-d2-b4", "ddp-d2-b4"):
        assert f"{cell}: ok in " in printed
    assert "Traceback" not in printed
    assert (out / "equality.json").exists()
