"""Models with custom batches, losses and optimizers, in one process: each strategy's samples and
weights.
"""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpscope.launch.learning.loop import check_learnable
from dpscope.launch.workload.host_data_parallel import HostDataParallel
from dpscope.launch.workload.image_sets import EpochSamples, MadeSamples, check_classes, image_set
from dpscope.launch.workload.input_pipeline import micro_batching, open_stream
from dpscope.launch.workload.model_size import checked_model_size
from dpscope.launch.workload.models import build_model
from dpscope.launch.workload.nested import batch_size, called, joined_batches, leaves, mapped
from dpscope.launch.workload.tasks import BuiltModel
from dpscope.launch.workload.train_step import TrainStep
from dpscope.profiling.records.config import Optimizer, Workload
from dpscope.profiling.records.run import Cell, CellOptions
from dpscope.profiling.records.strategies import CellStrategy
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import USER_MODELS

HOST = torch.device("cpu")
MODELS = ("own_batches:regression", "own_batches:tokens", "own_batches:regression_by_adam")


@pytest.fixture(autouse=True)
def in_user_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(USER_MODELS)
    monkeypatch.syspath_prepend(str(USER_MODELS))


def trained(
    name: str, strategy: CellStrategy, devices: int, accumulate: int = 1, data: str = "fake"
) -> list[Tensor]:
    """The weights after three steps on a global batch of four samples."""
    torch.manual_seed(0)
    built = build_model(name)
    options = CellOptions(accumulate=accumulate)
    cell = Cell(strategy=strategy, devices=devices, batch_size=4 // devices, options=options)
    workload = Workload(model=name, data=data, workers=0, samples=12)  # type: ignore[arg-type]
    fed = cell if devices > 1 else Cell(strategy="dp", devices=2, batch_size=2, options=options)
    batches = open_stream(workload, fed, built, 0, HOST)
    model = HostDataParallel(built.model, devices) if strategy == "dp-host" else built.model
    step = TrainStep(
        model, batches, Optimizer(learning_rate=0.01), "off", HOST, micro_batching(fed), built=built
    )
    for _ in range(3):
        assert step() == 4
    return [parameter.detach().clone() for parameter in built.model.parameters()]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("data", ["fake", "synthetic"])
def test_replicas_and_micro_batches_train_as_one_device_does(name: str, data: str) -> None:
    alone = trained(name, "single", 1, data=data)
    for other in (
        trained(name, "dp-host", 2, data=data),
        trained(name, "single", 1, accumulate=2, data=data),
    ):
        assert all(
            torch.allclose(one, two, atol=1e-6) for one, two in zip(alone, other, strict=True)
        )
    torch.manual_seed(0)
    untrained = list(build_model(name).model.parameters())
    assert not any(
        torch.allclose(one, two, atol=1e-6) for one, two in zip(alone, untrained, strict=True)
    )


def test_a_models_optimizer_is_used_with_the_learning_rate() -> None:
    built = build_model("own_batches:regression_by_adam")
    batches = open_stream(Workload(data="synthetic"), Cell("single", 1, 2), built, 0, HOST)
    optimizer = TrainStep(
        built.model, batches, Optimizer(learning_rate=0.03), "off", HOST, built=built
    ).optimizer
    assert isinstance(optimizer, torch.optim.Adam)
    assert optimizer.param_groups[0]["lr"] == 0.03


def test_a_sample_is_the_same_in_every_batch() -> None:
    built = build_model("own_batches:regression")
    samples = image_set(Workload(data="fake", samples=12), built)
    assert isinstance(samples, MadeSamples)
    whole = samples.__getitems__(EpochSamples(0, [3, 5, 7]))
    alone = samples.__getitems__(EpochSamples(1, [5]))
    assert torch.equal(whole[0]["left"][1], alone[0]["left"][0])
    assert torch.equal(whole[0]["right"][1][1], alone[0]["right"][1][0])
    assert whole[0]["scale"] == 0.5


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("no_module", "without a torch.nn.Module as its 'module'"),
        ("misspelt", "a dictionary with 'losss'"),
        ("unseeded", "different batches in two calls; derive them from the seed alone"),
        (
            "without_rows",
            "a tensor of shape (2, 3); the first dimension of every tensor must be the number of samples",
        ),
        ("failing_batch", "make_batch(0, 3) failed: TypeError"),
    ],
)
def test_mistakes_are_named(function: str, expected: str) -> None:
    refused(f"own_batches:{function}", expected)


def refused(name: str, expected: str) -> None:
    with pytest.raises(DpscopeError) as caught:
        build_model(name)
    assert expected in str(caught.value)
    assert str(caught.value).startswith(f"--model {name}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (
            {"input_shape": 5},
            "input_shape is 5; give the shape of a sample without the batch, such as (3, 32, 32)",
        ),
        ({"input_shape": (3, "32")}, "input_shape is (3, '32'); give the shape"),
        ({"input_shape": (3, 0)}, "input_shape is (3, 0); give the shape"),
        ({"classes": "ten"}, "classes is 'ten'; give a whole number, 1 or more"),
        ({"classes": 0}, "classes is 0; give a whole number"),
        ({"classes": True}, "classes is True; give a whole number"),
        ({"tokens": torch.ones(40, 2)}, "tokens is tensor([[1., 1.], [1., 1.],"),
        ((nn.Identity(), (3, 8), 2.5), "the number of classes is 2.5; give a whole number"),
    ],
    ids=str,
)
def test_an_invalid_shape_or_number_is_named_in_one_line(
    returned: dict[str, object] | tuple[object, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {"module": nn.Identity(), **returned} if isinstance(returned, dict) else returned
    monkeypatch.setattr("os.getcwd", lambda: made)
    refused("os:getcwd", expected)


def test_shapes_and_numbers_of_other_types_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getcwd", lambda: (nn.Identity(), torch.Size((3, 8)), np.int64(7)))
    built = build_model("os:getcwd")
    assert (built.input_shape, built.classes) == ((3, 8), 7)
    monkeypatch.setattr(
        "os.getcwd", lambda: {"module": nn.Identity(), "input_shape": [1, 8], "classes": None}
    )
    built = build_model("os:getcwd")
    assert (built.input_shape, built.classes, built.tokens) == ((1, 8), 10, None)


def test_settings_without_effect_are_refused() -> None:
    own = Workload(model="own_batches:regression_by_adam")
    with pytest.raises(DpscopeError, match=r"--momentum 0\.5 does nothing here"):
        checked_model_size(own, Optimizer(momentum=0.5))
    assert checked_model_size(own, Optimizer(learning_rate=0.5)).parameters == 4 + 5
    with pytest.raises(DpscopeError, match="--data digits"):
        check_classes(
            Workload(model="own_batches:tokens", data="digits"), build_model("own_batches:tokens")
        )
    with pytest.raises(DpscopeError, match="gpt_5m takes tokens"):
        checked_model_size(Workload(model="gpt_5m", data="digits"))


def test_a_training_needs_classes() -> None:
    check_learnable("tokens", build_model("own_batches:tokens"))
    check_learnable("images", BuiltModel(nn.Identity()))
    with pytest.raises(DpscopeError, match="its targets are not classes"):
        check_learnable("own_batches:regression", build_model("own_batches:regression"))


def test_a_gpt_only_uses_earlier_tokens() -> None:
    torch.manual_seed(0)
    built = build_model("gpt_5m")
    assert built.make_batch is not None
    (tokens, targets) = built.make_batch(1, 2)
    assert tokens.shape == targets.shape == (2, 128)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    changed = tokens.clone()
    changed[:, 64:] = 0
    with torch.no_grad():
        before, after = built.model(tokens[:, :96]), built.model(changed[:, :96])
    assert torch.allclose(before[:, :64], after[:, :64], atol=1e-5)
    assert not torch.allclose(before[:, 64:], after[:, 64:], atol=1e-2)


def test_nested_values() -> None:
    value = {"a": torch.tensor([1, 2]), "b": [(torch.tensor([3, 4]), "text")]}
    assert [one.tolist() for one in leaves(value)] == [[1, 2], [3, 4]]
    doubled = mapped(lambda one: one * 2, value)
    assert doubled["b"][0][0].tolist() == [6, 8]
    assert doubled["b"][0][1] == "text"
    both = joined_batches([value, doubled], torch.cat)
    assert both["a"].tolist() == [1, 2, 2, 4]
    assert batch_size(both) == 4
    add = nn.Module()
    add.forward = lambda one, other: one + other
    one = torch.ones(1)
    assert called(add, (one, one)) == called(add, {"one": one, "other": one}) == 2
