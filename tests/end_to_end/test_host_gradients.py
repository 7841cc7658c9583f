"""The stand-in for DataParallel on CPU threads gives the gradients of DDP in real processes."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dpscope.launch.workload.models import build_model
from dpscope.launch.workload.strategies import wrap
from dpscope.launch.workload.tasks import BuiltModel
from tests.helpers.paths import USER_MODELS
from tests.helpers.ranks import run_ranks

spec = importlib.util.spec_from_file_location("compare_gradients", USER_MODELS / "compare_gradients.py")
assert spec is not None
assert spec.loader is not None
compare_gradients = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compare_gradients)


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(USER_MODELS))
    torch.set_num_threads(1)


def ddp_gradients(model: str, devices: int, folder: Path) -> list[Tensor]:
    saved = folder / "gradients.pt"
    run_ranks([sys.executable, "compare_gradients.py", model, str(saved)], devices, cwd=USER_MODELS)
    loaded: list[Tensor] = torch.load(saved)
    return loaded


def host_gradients(model: str, devices: int) -> list[Tensor]:
    torch.manual_seed(0)
    built = build_model(model)
    wrapped = wrap(built.model, "dp-host", devices, torch.device("cpu"))
    images, labels = compare_gradients.whole_batch(devices, built.input_shape, built.classes)
    nn.functional.cross_entropy(wrapped(images), labels).backward()  # type: ignore[no-untyped-call]
    return gradients(built)


def gradients(built: BuiltModel) -> list[Tensor]:
    found = [parameter.grad for parameter in built.model.parameters()]
    assert len(found) > 1
    return [gradient for gradient in found if gradient is not None]


def test_two_devices_give_ddps_gradients_bit_for_bit(tmp_path: Path) -> None:
    expected = ddp_gradients("resnet18_cifar", 2, tmp_path)
    actual = host_gradients("resnet18_cifar", 2)
    assert sum(gradient.numel() for gradient in expected) == 11_173_962
    assert all(torch.equal(first, second) for first, second in zip(actual, expected, strict=True))


def test_four_devices_give_ddps_gradients_but_for_the_order_of_sums(tmp_path: Path) -> None:
    expected = torch.cat([gradient.flatten() for gradient in ddp_gradients("tiny_models:tiny", 4, tmp_path)])
    actual = torch.cat([gradient.flatten() for gradient in host_gradients("tiny_models:tiny", 4)])
    assert expected.norm() > 0
    assert (actual - expected).norm() <= 1e-6 * expected.norm()
