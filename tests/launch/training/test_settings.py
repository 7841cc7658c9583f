"""Training's settings: defaults, files, flags, and one-line errors."""

from pathlib import Path

import pytest

from dpscope.launch.training.settings import load_train_config
from dpscope.profiling.records.config import Workload
from dpscope.profiling.store.errors import DpscopeError


def test_defaults_learn_digits_under_strong_scaling() -> None:
    config = load_train_config(None, {})
    assert (config.workload.data, config.workload.model, config.matrix.scaling) == ("digits", "resnet8_cifar", "strong")
    assert (config.workload.workers, config.seeds, config.optimizer.learning_rate) == (0, (0,), 0.05)
    assert (config.epochs, config.warmup_epochs, config.milestones) == (12, 1, (7, 10))
    for field, value in (("epochs", 5), ("warmup_epochs", 0), ("milestones", "")):  # no part of another's schedule
        other = load_train_config(None, {field: value})
        assert (other.warmup_epochs, other.milestones) == (0, ())
    assert config.label_smoothing == 0
    assert config.learning_rate_scaling == "none"
    assert load_train_config(None, {"data": "cifar10"}).workload.workers == Workload().workers


def test_a_file_overlaid_by_flags(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text('epochs = 8\nmilestones = [6, 4]\nlearning-rate-scaling = "sqrt"\nlr = 0.2\nseeds = "2,0,2"\n')
    config = load_train_config(path, {"epochs": 9, "momentum": 0.5, "gamma": None})
    assert (config.epochs, config.milestones, config.seeds) == (9, (4, 6), (2, 0))
    assert (config.optimizer.learning_rate, config.optimizer.momentum, config.gamma) == (0.2, 0.5, 0.1)
    assert config.learning_rate_scaling == "sqrt"
    assert load_train_config(path, {"milestones": ""}).milestones == ()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"epochs": 0}, "--epochs 0: must be 1 or more"),
        ({"epochs": "many"}, "--epochs many: must be a whole number"),
        ({"seeds": "0,x"}, "--seeds 0,x: x is not a whole number; write it as 0,1,2"),
        ({"seeds": "-1"}, "--seeds -1: every seed must be 0 or more"),
        ({"milestones": "0,3"}, "--milestones 0,3: every milestone must be 1 epoch or more"),
        ({"milestones": "3;4"}, "--milestones 3;4: 3;4 is not a whole number; write it as 6,8"),
        ({"gamma": 0}, r"--gamma 0\.0: must be a number above 0"),
        ({"warmup_epochs": -1}, "--warmup-epochs -1: must be 0 or more"),
        ({"label_smoothing": 1}, r"--label-smoothing 1\.0: must be 0 or more and below 1"),
        ({"eval_batch_size": 0}, "--eval-batch-size 0: must be 1 or more"),
        ({"learning_rate_scaling": "cubic"}, "cubic: unknown; choose from none, sqrt, linear"),
        ({"lr": 0}, "--lr 0.0: must be a number above 0"),
        ({"data": "synthetic"}, "--data synthetic: one random batch teaches nothing; train on digits, cifar10 or fake"),
        ({"scaling": "both"}, "--scaling both: a training reads its batch sizes in one way"),
        ({"batch_size": "32x4"}, "--batch-size 32x4: name each batch size"),
        ({"steps": 5}, "--steps: no such setting"),
        ({"overlap": "off", "bucket_mb": "5"}, "--bucket-mb 5.0 with --overlap off"),
    ],
)
def test_mistakes_are_named(flags: dict[str, object], message: str) -> None:
    with pytest.raises(DpscopeError, match=message) as error:
        load_train_config(None, flags)
    assert "\n" not in str(error.value)
