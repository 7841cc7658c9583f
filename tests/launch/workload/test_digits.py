"""Digits: the split, and images against scikit-learn's own."""

import importlib.metadata
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits as sklearns

from dpscope.launch.planning.run_config import load_config
from dpscope.launch.workload.data_files import TRAINING_SAMPLES, check_data
from dpscope.launch.workload.digits import DIGITS_DEVIATION, DIGITS_MEAN, load_digits
from dpscope.profiling.store.errors import DpscopeError


def test_144_of_each_digit_are_trained_on_and_the_rest_tested() -> None:
    digits = load_digits()
    training, test = set(digits.training.tolist()), set(digits.test.tolist())
    assert len(training) == TRAINING_SAMPLES["digits"] == 1440
    assert len(test) == 357
    assert training | test == set(range(1797))
    assert torch.bincount(digits.labels[digits.training]).tolist() == [144] * 10
    assert digits.training[:8].tolist() == FIRST_TRAINED  # the same split for ever


FIRST_TRAINED = [0, 1, 2, 3, 4, 6, 7, 8]


def test_images_are_scikit_learns_four_times_as_large() -> None:
    digits, own = load_digits(), sklearns()
    assert digits.images.shape == (1797, 3, 32, 32)
    assert digits.labels.tolist() == own.target.tolist()
    pixels = own.images
    # Output pixel 14 lies at (14 + 0.5) / 4 - 0.5 = 3.125 of the small image: 7/8 of pixel 3 and 1/8 of pixel 4.
    rows = 0.875 * pixels[:, 3, :] + 0.125 * pixels[:, 4, :]
    expected = torch.from_numpy((0.875 * rows[:, 3] + 0.125 * rows[:, 4]) * 255 / 16)
    for channel in range(3):
        found = digits.images[:, channel, 14, 14].double()
        assert (found - expected).abs().max() <= 0.5 + 1e-4  # rounded to whole values
    assert torch.equal(digits.images[:, :, 0, 0].double(), (_corner(pixels) * 255 / 16).round())


def _corner(pixels: object) -> torch.Tensor:
    """Outside the centres of the outermost pixels their values go on."""
    return torch.from_numpy(pixels[:, 0, 0])[:, None].expand(-1, 3)  # type: ignore[index]


def test_mean_and_deviation_are_those_of_the_training_images() -> None:
    digits = load_digits()
    shown = digits.images[digits.training].double() / 255
    assert shown.mean().item() == pytest.approx(DIGITS_MEAN, abs=5e-5)
    assert shown.std().item() == pytest.approx(DIGITS_DEVIATION, abs=5e-5)


def test_an_absent_package_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def absent(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(DpscopeError, match=r"scikit-learn is absent; pip install 'dpscope\[digits\]'"):
        check_data(load_config(None, {"data": "digits"}).workload)
