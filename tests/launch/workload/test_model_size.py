"""The model of a run, looked at before the run."""

import os
from pathlib import Path

import pytest
from torch import Tensor, nn

from dpscope.launch.measuring.planned_jobs import plan_run
from dpscope.launch.planning.run_config import load_config
from dpscope.launch.workload.model_size import SIZES, ModelSize, checked_model_size, size_of
from dpscope.launch.workload.models import build_model
from dpscope.launch.workload.tasks import BuiltModel
from dpscope.profiling.records.config import Workload
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import USER_MODELS


@pytest.mark.parametrize("name", list(SIZES))
def test_sizes_that_are_known_without_torch_are_those_of_the_models(name: str) -> None:
    assert size_of(build_model(name)) == SIZES[name]


def test_multiplications_of_one_sample_are_counted() -> None:
    """3 x 3 x 3 x 8 for each of 8 x 8 places, and 8 x 4; 216 weights, 4 x 8 + 4 of the linear layer."""
    layers = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )
    assert size_of(BuiltModel(layers, (3, 8, 8), 4)) == ModelSize(parameters=252, multiplications=216 * 64 + 32)


class _Looks(nn.Linear):
    """Its forward needs values, which shapes alone do not have."""

    def forward(self, samples: Tensor) -> Tensor:
        assert float(samples.sum()) >= 0
        return super().forward(samples)


def test_a_forward_that_shapes_cannot_take_is_not_counted() -> None:
    assert size_of(BuiltModel(_Looks(3, 2), (3,), 2)) == ModelSize(parameters=8, multiplications=None)


def test_a_model_of_ones_own_that_cannot_be_built_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "half_done.py").write_text("def make():\n    return undefined_name\n")
    out = tmp_path / "run"
    with pytest.raises(DpscopeError) as caught:
        plan_run(load_config(None, {"device": "cpu", "model": "half_done:make"}), out)
    line = f"in {tmp_path / 'half_done.py'}, line 2; correct it there"
    assert str(caught.value) == (
        f"--model half_done:make: make() failed: NameError: name 'undefined_name' is not defined {line}"
    )
    assert not out.exists()


def test_a_function_may_read_its_place_in_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv("RANK", raising=False)
    (tmp_path / "by_place.py").write_text(
        "import os\nfrom torch import nn\n\n\ndef make():\n"
        "    layers = nn.Sequential(nn.Flatten(), nn.Linear(3072, int(os.environ['WORLD_SIZE']) + int(os.environ['RANK'])))\n"
        "    return layers, (3, 32, 32), 1\n"
    )
    assert checked_model_size(Workload(model="by_place:make")) == ModelSize(parameters=3073, multiplications=3072)
    assert (os.environ.get("WORLD_SIZE"), os.environ.get("RANK")) == ("4", None)


def test_a_model_with_too_few_classes_for_the_data_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(USER_MODELS)
    with pytest.raises(DpscopeError, match="tells 4 classes apart and digits has 10"):
        checked_model_size(Workload(model="tiny_models:tiny", data="digits"))


def test_the_datas_own_image_size_counts() -> None:
    """resnet18 asks for 224 x 224; CIFAR-10's 32 x 32 are 1/49 of the pixels, and its convolutions take about as much less."""
    asked, own = (
        checked_model_size(Workload(model="resnet18", data=data)).multiplications for data in ("fake", "cifar10")
    )
    assert asked is not None
    assert own is not None
    assert 40 < asked / own < 52
