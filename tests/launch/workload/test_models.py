"""The models and their names."""

import sys
from pathlib import Path

import pytest
import torch

from dpscope.launch.workload.models import build_model, check_model
from dpscope.profiling.instruments.parameter_sizes import parameter_sizes
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import USER_MODELS


def test_resnet18_for_cifar() -> None:
    built = build_model("resnet18_cifar")
    sizes = parameter_sizes(built.model)
    assert sizes.parameter_count == 11_173_962
    assert sizes.parameter_bytes == sizes.gradient_bytes == 44_695_848
    assert sizes.buffer_bytes == 38_400 + 160
    assert sum(tensor.bytes for tensor in sizes.parameter_tensors) == 44_695_848
    features = torch.nn.Sequential(*list(built.model.children())[:4])
    assert features(torch.ones(1, *built.input_shape)).shape == (1, 64, 32, 32)  # no stride, no pooling


def test_torchvision_models_and_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(USER_MODELS))
    assert build_model("mobilenet_v3_small").input_shape == (3, 224, 224)
    assert build_model("tiny_models:tiny").input_shape == (3, 8, 8)
    assert build_model("tiny_models:tiny_module").classes == 10


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("resnet81", "did you mean resnet18"),
        ("qqqq", "resnet18_cifar is the default"),
        ("no_such_module:make", "cannot import no_such_module"),
        ("json:absent", "has no function absent"),
        (":", "write it as package.module:function"),
        ("..x:f", "write it as package.module:function"),
    ],
)
def test_an_unknown_model_is_named_with_what_to_do(name: str, said: str) -> None:
    with pytest.raises(DpscopeError, match=said):
        check_model(name)
    with pytest.raises(DpscopeError, match=f"--model {name}"):
        build_model(name)


def test_a_function_that_returns_no_model() -> None:
    with pytest.raises(DpscopeError, match=r"returned str; return a torch\.nn\.Module"):
        build_model("os:getcwd")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("def make(:\n", "SyntaxError: "),
        ("\nvalue = 1 / 0\n", "importing broken failed: ZeroDivisionError: division by zero in "),
        ("import absent_package\n", "cannot import broken (ModuleNotFoundError: No module named 'absent_package' in "),
        ("def make():\n    raise KeyError('depth')\n", "make() failed: KeyError: 'depth' in "),
    ],
)
def test_a_users_module_that_fails_is_named_with_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, said: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    (tmp_path / "broken.py").write_text(content)
    with pytest.raises(DpscopeError) as caught:
        build_model("broken:make")
    message = str(caught.value)
    assert "\n" not in message
    assert said in message
    line = 1 + content.rstrip().count("\n")
    assert f"{tmp_path / 'broken.py'}, line {line}" in message
