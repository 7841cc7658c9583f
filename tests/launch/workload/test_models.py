"""Models: names, sizes, and errors in a user's module."""

import os
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dpscope.launch.measuring.run import plan_run
from dpscope.launch.planning.manifest import estimate_basis
from dpscope.launch.planning.run_config import load_config
from dpscope.launch.workload.model_size import SIZES, ModelSize, checked_model_size, size_of
from dpscope.launch.workload.models import build_model, check_model
from dpscope.launch.workload.tasks import BuiltModel
from dpscope.profiling.instruments.ddp_counters import parameter_sizes
from dpscope.profiling.records.config import Workload
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import USER_MODELS


def test_resnet18_for_cifar() -> None:
    built = build_model("resnet18_cifar")
    sizes = parameter_sizes(built.model)
    assert sizes.parameter_count == 11_173_962
    assert sizes.parameter_bytes == sizes.gradient_bytes == 44_695_848
    assert sizes.buffer_bytes == 38_400 + 160
    features = torch.nn.Sequential(*list(built.model.children())[:4])
    # no stride, no pooling
    assert features(torch.ones(1, *built.input_shape)).shape == (1, 64, 32, 32)


def test_torchvision_models_and_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(USER_MODELS))
    assert build_model("mobilenet_v3_small").input_shape == (3, 224, 224)
    assert build_model("tiny_models:tiny").input_shape == (3, 8, 8)
    assert build_model("tiny_models:tiny_module").classes == 10


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet81", "did you mean resnet18"),
        ("qqqq", "resnet18_cifar is the default"),
        ("no_such_module:make", "cannot import no_such_module"),
        ("json:absent", "has no function absent"),
        (":", "write it as package.module:function"),
        ("..x:f", "write it as package.module:function"),
    ],
)
def test_an_unknown_model_is_named_with_a_suggestion(name: str, expected: str) -> None:
    with pytest.raises(DpscopeError, match=expected):
        check_model(name)
    with pytest.raises(DpscopeError, match=f"--model {name}"):
        build_model(name)
    with pytest.raises(DpscopeError, match=r"returned str; return a torch\.nn\.Module"):
        build_model("os:getcwd")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("def make(:\n", "SyntaxError: "),
        ("\nvalue = 1 / 0\n", "importing broken failed: ZeroDivisionError: division by zero in "),
        (
            "import absent_package\n",
            "cannot import broken (ModuleNotFoundError: No module named 'absent_package' in ",
        ),
        ("def make():\n    raise KeyError('depth')\n", "make() failed: KeyError: 'depth' in "),
    ],
)
def test_a_users_module_that_fails_is_named_with_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, expected: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    (tmp_path / "broken.py").write_text(content)
    with pytest.raises(DpscopeError) as caught:
        build_model("broken:make")
    message = str(caught.value)
    assert "\n" not in message
    assert expected in message
    line = 1 + content.rstrip().count("\n")
    assert f"{tmp_path / 'broken.py'}, line {line}" in message


@pytest.mark.long
@pytest.mark.parametrize("name", list(SIZES))
def test_listed_sizes_are_those_of_the_models(name: str) -> None:
    with torch.device("meta"):
        built = build_model(name)
    assert size_of(built) == SIZES[name]
    assert built.tokens == (built.input_shape[0] if name.startswith("gpt") else None)


class _NeedsValues(nn.Linear):
    def forward(self, samples: Tensor) -> Tensor:
        assert float(samples.sum()) >= 0
        return super().forward(samples)


def test_multiplications_of_one_sample_are_counted_if_no_values_are_needed() -> None:
    """3 x 3 x 3 x 8 for each of 8 x 8 pixels, and 8 x 4; 216 weights, 4 x 8 + 4 in the linear
    layer.
    """
    layers = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    assert size_of(BuiltModel(layers, (3, 8, 8), 4)) == ModelSize(
        parameters=252, multiplications=216 * 64 + 32
    )
    uncounted = size_of(BuiltModel(_NeedsValues(3, 2), (3,), 2))
    assert (uncounted.parameters, uncounted.multiplications) == (8, None)
    wrong_shape = size_of(BuiltModel(nn.Linear(12, 2), (3, 8, 8), 2))
    assert "(RuntimeError: " in estimate_basis("cpu", wrong_shape)
    assert "[48, 8] X [12, 2]) and are taken" in estimate_basis("cpu", wrong_shape)


def test_a_users_model_that_cannot_be_built_is_reported_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, out = tmp_path / "half_done.py", tmp_path / "run"
    path.write_text("def make():\n    return undefined_name\n")
    with pytest.raises(DpscopeError) as caught:
        plan_run(load_config(None, {"device": "cpu", "model": "half_done:make"}), out)
    error = f"NameError: name 'undefined_name' is not defined in {path}, line 2; correct it there"
    assert str(caught.value) == f"--model half_done:make: make() failed: {error}"
    assert not out.exists()


def test_a_function_may_read_torchruns_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv("RANK", raising=False)
    (tmp_path / "by_place.py").write_text(
        "import os\nfrom torch import nn\n\n\ndef make():\n"
        "    layers = nn.Sequential(nn.Flatten(), nn.Linear(3072, int(os.environ['WORLD_SIZE']) + int(os.environ['RANK'])))\n"
        "    return layers, (3, 32, 32), 1\n"
    )
    assert checked_model_size(Workload(model="by_place:make")) == ModelSize(
        parameters=3073, multiplications=3072
    )
    assert (os.environ.get("WORLD_SIZE"), os.environ.get("RANK")) == ("4", None)


def test_a_model_with_too_few_classes_for_the_data_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(USER_MODELS)
    with pytest.raises(DpscopeError, match="distinguishes 4 classes and digits has 10"):
        checked_model_size(Workload(model="tiny_models:tiny", data="digits"))


def test_multiplications_depend_on_the_datas_image_size() -> None:
    """resnet18's default is 224 x 224 pixels; CIFAR-10's 32 x 32 are 1/49 of them."""
    sizes = [
        checked_model_size(Workload(model="resnet18", data=data)) for data in ("fake", "cifar10")
    ]
    assert 40 < (sizes[0].multiplications or 0) / (sizes[1].multiplications or 1) < 52
