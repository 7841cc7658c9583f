"""Images: scikit-learn's digits; augmentation, checked with plain integers and pixel by pixel,
equal under every strategy.
"""

import importlib.metadata
from collections import Counter
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits as load_original_digits
from torch import Tensor, nn

from dpscope.launch.planning.run_config import load_config
from dpscope.launch.workload.data_files import TRAINING_SAMPLES, check_data
from dpscope.launch.workload.image_sets import (
    DIGITS_DEVIATION,
    DIGITS_MEAN,
    Augmentation,
    EpochSamples,
    LabelledImages,
    TransformedImages,
    image_set,
    load_digits,
    random_words,
)
from dpscope.launch.workload.input_pipeline import open_stream
from dpscope.launch.workload.tasks import BuiltModel
from dpscope.profiling.records.config import Workload
from dpscope.profiling.records.run import Cell
from dpscope.profiling.store.errors import DpscopeError

HOST = torch.device("cpu")
BUILT = BuiltModel(model=nn.Identity(), input_shape=(3, 32, 32), classes=10)
WORD = (1 << 64) - 1


def split_mix(word: int) -> int:
    word = (word + 0x9E3779B97F4A7C15) & WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD
    return word ^ (word >> 31)


def word_of(seed: int, epoch: int, sample: int) -> int:
    return split_mix((split_mix((split_mix(seed) + epoch) & WORD) + sample) & WORD)


def test_words_are_split_mixes() -> None:
    assert split_mix(0) == 0xE220A8397B1DCDAF  # published first output for seed 0
    found = random_words(7, 3, [0, 5, 49_999])
    assert found.dtype == np.uint64
    assert [int(word) for word in found] == [word_of(7, 3, sample) for sample in (0, 5, 49_999)]
    assert int(random_words(2**63 - 1, 0, [0])[0]) == word_of(2**63 - 1, 0, 0)


def by_hand(image: Tensor, word: int, shift: int, flip: bool) -> Tensor:
    """Move and mirror the image, pixel by pixel."""
    down, right = (((word >> bits) & 0xFFFFFF) % (2 * shift + 1) - shift for bits in (0, 24))
    mirrored = flip and (word >> 48) & 1
    _, height, width = image.shape
    moved = torch.zeros_like(image)
    for row in range(height):
        for column in range(width):
            source = (width - 1 - column if mirrored else column) + right
            if 0 <= row + down < height and 0 <= source < width:
                moved[:, row, column] = image[:, row + down, source]
    return moved


@pytest.mark.parametrize("flip", [False, True])
def test_images_are_moved_and_mirrored(flip: bool) -> None:
    samples = [3, 1, 4, 15, 9, 2, 6]
    images = torch.randint(1, 256, (len(samples), 3, 6, 5), dtype=torch.uint8)
    found = Augmentation(seed=5, shift=2, flip=flip).apply(images, 8, samples)
    for index, sample in enumerate(samples):
        assert torch.equal(found[index], by_hand(images[index], word_of(5, 8, sample), 2, flip))
    words = [word_of(5, 8, sample) for sample in samples]
    assert {(word >> 48) & 1 for word in words} == {0, 1}  # both are among them


def test_shifts_and_flips_are_equally_likely() -> None:
    count = 9_000
    corner = torch.zeros(count, 1, 3, 3, dtype=torch.uint8)
    corner[:, :, 1, 1] = 255
    found = Augmentation(seed=0, shift=1, flip=True).apply(corner, 0, range(count))
    places = found.flatten(1).argmax(1).bincount(minlength=9)
    assert places.sum() == count
    # five standard deviations
    assert (places - count / 9).abs().max() < 5 * (count * 8 / 81) ** 0.5


def workload(**flags: object) -> Workload:
    return load_config(None, {"data": "digits", "workers": 0, **flags}).workload


def augmented(cell: Cell, ranks: range, epoch: int, **flags: object) -> Counter[bytes]:
    """Every image of the first six steps of an epoch, over the ranks, with its count."""
    found: Counter[bytes] = Counter()
    for rank in ranks:
        stream = open_stream(workload(**flags), cell, BUILT, rank, HOST)
        stream.start_epoch(epoch)
        found.update(image.numpy().tobytes() for _ in range(6) for image in stream.next_batch()[0])
    return found


@pytest.mark.process
@pytest.mark.parametrize("transforms", ["per-batch", "per-image"])
def test_a_sample_looks_the_same_under_every_strategy_and_number_of_workers(
    transforms: str,
) -> None:
    single = augmented(
        Cell(strategy="single", devices=1, batch_size=12), range(1), 3, transforms=transforms
    )
    assert sum(single.values()) == 6 * 12
    several = Cell(strategy="dp-host", devices=2, batch_size=6)
    assert single == augmented(several, range(1), 3, transforms=transforms)
    parallel = Cell(strategy="ddp", devices=2, batch_size=6)
    assert single == augmented(parallel, range(2), 3, transforms=transforms, workers=2)


def test_single_images_equal_those_of_a_batch_without_augmentation() -> None:
    samples = EpochSamples(0, [3, 1, 4])
    (one, labels), (batch, same) = (
        image_set(workload(transforms=way), BUILT, augment=False).__getitems__(samples)
        for way in ("per-image", "per-batch")
    )
    assert torch.equal(labels, same)
    torch.testing.assert_close(one, batch, rtol=0, atol=1e-5)


def test_single_images_are_cropped_and_mirrored_at_random_in_every_epoch() -> None:
    """Every result is a window of the padded image, mirrored or not; torch's own generator does not
    change.
    """
    image = torch.randint(1, 256, (1, 3, 6, 6), dtype=torch.uint8)
    stored = LabelledImages(image, torch.tensor([7]), (0.0,) * 3, (1.0,) * 3)
    images = TransformedImages(stored, Augmentation(5, 2, True))
    padded = nn.functional.pad(image[0], (2,) * 4)
    windows = [
        padded[:, down : down + 6, right : right + 6] for down in range(5) for right in range(5)
    ]
    possible = {
        tuple(one.flatten().tolist()) for window in windows for one in (window, window.flip(2))
    }
    torch.manual_seed(3)
    before = torch.get_rng_state()
    found = [
        (images.__getitems__(EpochSamples(epoch, [0]))[0][0] * 255).round().byte()
        for epoch in range(40)
    ]
    assert torch.equal(before, torch.get_rng_state())
    drawn = {tuple(one.flatten().tolist()) for one in found}
    assert drawn <= possible
    assert len(drawn) > 10


def test_another_epoch_or_seed_is_another_draw() -> None:
    first, again, later, other = (
        image_set(workload(seed=seed), BUILT).__getitems__(EpochSamples(epoch, range(40)))[0]
        for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))
    )
    assert torch.equal(first, again)
    for images in (later, other):
        assert (images == first).flatten(1).all(1).sum() <= 8  # 1 of 49 shifts is the same one


def test_digits_are_scikit_learns_four_times_as_large_and_144_of_each_are_for_training() -> None:
    digits = load_digits()
    training, test = set(digits.training.tolist()), set(digits.test.tolist())
    assert len(training) == TRAINING_SAMPLES["digits"] == 1440
    assert len(test) == 357
    assert training | test == set(range(1797))
    assert torch.bincount(digits.labels[digits.training]).tolist() == [144] * 10
    assert digits.training[:8].tolist() == [0, 1, 2, 3, 4, 6, 7, 8]  # the split never changes
    brightness = digits.images[digits.training].double() / 255
    assert brightness.mean().item() == pytest.approx(DIGITS_MEAN, abs=5e-5)
    assert brightness.std().item() == pytest.approx(DIGITS_DEVIATION, abs=5e-5)
    originals = load_original_digits()
    assert digits.images.shape == (1797, 3, 32, 32)
    assert digits.labels.tolist() == originals.target.tolist()
    pixels = originals.images
    # Output pixel 14 lies at (14 + 0.5) / 4 - 0.5 = 3.125 of the small image: 7/8 of pixel 3 and
    # 1/8 of pixel 4.
    rows = 0.875 * pixels[:, 3, :] + 0.125 * pixels[:, 4, :]
    expected = torch.from_numpy((0.875 * rows[:, 3] + 0.125 * rows[:, 4]) * 255 / 16)
    for channel in range(3):
        found = digits.images[:, channel, 14, 14].double()
        assert (found - expected).abs().max() <= 0.5 + 1e-4  # rounded to whole values
    # constant outside the outermost pixels' centres
    corner = torch.from_numpy(pixels[:, 0, 0])[:, None].expand(-1, 3)
    assert torch.equal(digits.images[:, :, 0, 0].double(), (corner * 255 / 16).round())


def test_a_missing_package_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Mock(side_effect=importlib.metadata.PackageNotFoundError("scikit-learn"))
    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(
        DpscopeError, match=r"scikit-learn is not installed; pip install 'dpscope\[digits\]'"
    ):
        check_data(load_config(None, {"data": "digits"}).workload)
