"""Training and test samples: CIFAR-10, digits, random images, a model's own. Whole batches are made
and augmented at once.
"""

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from dpscope.launch.workload.data_files import CIFAR_DEVIATION, CIFAR_MEAN, digits_file
from dpscope.launch.workload.nested import joined_batches
from dpscope.launch.workload.tasks import BuiltModel, MakeBatch
from dpscope.profiling.records.config import Workload
from dpscope.profiling.store.errors import DpscopeError

DIGITS_MEAN = 0.3054  # of the training images' pixels, black 0 to white 1
DIGITS_DEVIATION = 0.3240

_TRAINED_OF_EACH = 144
_WHITE = 16  # the largest value of a pixel
_CLASSES = 10  # of digits and of CIFAR-10

Batch = tuple[Any, Any]
"""Inputs and targets: images (N x C x H x W, float32) and labels (N, int64), or the nested tensors
of a user's model.
"""


class Digits(NamedTuple):
    """All images (1797 x 3 x 32 x 32, uint8), labels (int64), and the indices of the training and
    the test images.
    """

    images: Tensor
    labels: Tensor
    training: Tensor
    test: Tensor


def load_digits() -> Digits:
    """scikit-learn's 1,797 hand-written digits (8 x 8 pixels), upsampled to 3 x 32 x 32; raises
    DpscopeError if missing.

    Of each digit, 144 images are for training, 1,440 in all, which 2, 3, 4, 5, 6 and 8 devices
    share evenly; the other 357 are the test set. The split is fixed: each digit's images are
    ordered by random words of their numbers.

    Source: E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits, UCI Machine Learning
    Repository, 1998 (its test part), as packed by scikit-learn. `sklearn.datasets.load_digits` is
    not used: its imports take longer than an epoch.
    """
    with gzip.open(digits_file(), "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    pixels = torch.from_numpy(rows[:, :-1].reshape(-1, 1, 8, 8)).float()
    large = nn.functional.interpolate(pixels, scale_factor=4, mode="bilinear", align_corners=False)
    images = (large * (255 / _WHITE)).round().to(torch.uint8).expand(-1, 3, -1, -1).contiguous()
    labels = rows[:, -1].astype(np.int64)
    words = random_words(0, 0, range(len(rows)))
    of_digits = (np.flatnonzero(labels == digit) for digit in range(10))
    training = np.sort(
        np.concatenate(
            [indices[np.argsort(words[indices])][:_TRAINED_OF_EACH] for indices in of_digits]
        )
    )
    test = np.setdiff1d(np.arange(len(labels)), training)
    return Digits(images, *(torch.from_numpy(array) for array in (labels, training, test)))


@dataclass(frozen=True)
class Augmentation:
    """Random shifts of up to `shift` pixels, padded with black, and with `flip` mirroring of half
    of the images.

    They follow from (seed, epoch, sample) alone: in one epoch a sample looks the same under every
    strategy, whatever its batch, the number of loader workers and their order.
    """

    seed: int
    shift: int
    flip: bool

    def apply(self, images: Tensor, epoch: int, samples: Sequence[int]) -> Tensor:
        """Augmented copies of `images` (N x C x H x W), the data set's `samples` in this order."""
        words = random_words(self.seed, epoch, samples)
        down, right = (_drawn(words, bits, 2 * self.shift + 1) for bits in (0, 24))
        count, _, height, width = images.shape
        padded = nn.functional.pad(images, (self.shift,) * 4)
        # a view: N x C x shift x shift x H x W
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)
        moved = windows[torch.arange(count), :, down, right]
        if not self.flip:
            return moved
        mirrored = _drawn(words, 48, 2).bool()
        return torch.where(mirrored[:, None, None, None], moved.flip(3), moved)


def random_words(seed: int, epoch: int, samples: Sequence[int]) -> NDArray[np.uint64]:
    """64 random bits for each sample, a function of seed, epoch and sample.

    SplitMix64's output function, applied to each of the three in turn (Steele, Lea, Flood: Fast
    Splittable Pseudorandom Number Generators, OOPSLA 2014).
    """
    word = _mixed(np.array([seed], dtype=np.uint64))
    word = _mixed(word + np.uint64(epoch))
    return _mixed(word + np.asarray(samples, dtype=np.uint64))


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _drawn(words: NDArray[np.uint64], first_bit: int, choices: int) -> Tensor:
    """Uniform in 0..choices-1, from up to 24 bits of each word, starting at `first_bit`."""
    bits = (words >> np.uint64(first_bit)) & np.uint64((1 << min(24, 64 - first_bit)) - 1)
    return torch.from_numpy((bits % np.uint64(choices)).astype(np.int64))


class EpochSamples(NamedTuple):
    """The samples of a batch, and the epoch, on which augmentation depends."""

    epoch: int
    samples: Sequence[int]


class LabelledImages(NamedTuple):
    """Images (N x C x H x W, uint8) and labels (N, int64) in memory, with the mean and deviation of
    each channel, 0 to 1.
    """

    images: Tensor
    labels: Tensor
    mean: Sequence[float]
    deviation: Sequence[float]


class StoredImages(Dataset[Any]):
    """Images in memory as bytes, augmented and normalised batch by batch."""

    def __init__(self, stored: LabelledImages, augmentation: Augmentation | None) -> None:
        self._images, self._labels, mean, deviation = stored
        self._offset = 255 * torch.tensor(mean)[:, None, None]
        self._scale = 1 / (255 * torch.tensor(deviation)[:, None, None])
        self._augmentation = augmentation

    def __len__(self) -> int:
        return len(self._labels)

    def __getitems__(self, batch: EpochSamples) -> tuple[Tensor, Tensor]:
        chosen = torch.as_tensor(batch.samples)
        images = self._images[chosen]
        if self._augmentation is not None:
            images = self._augmentation.apply(images, batch.epoch, batch.samples)
        return (images - self._offset) * self._scale, self._labels[chosen]


class TransformedImages(Dataset[Any]):
    """The input path of most training scripts: torchvision's transforms augment, convert and
    normalise single PIL images.

    Random choices follow from (seed, epoch, sample), as in `Augmentation`: all strategies train on
    the same images.
    """

    def __init__(self, stored: LabelledImages, augmentation: Augmentation | None) -> None:
        from torchvision.transforms import v2

        self._images = stored.images.permute(0, 2, 3, 1).contiguous().numpy()
        self._labels = stored.labels
        self._seed = augmentation.seed if augmentation is not None else 0
        steps: list[Any] = []
        if augmentation is not None:
            steps.append(v2.RandomCrop(self._images.shape[1], padding=augmentation.shift))
            steps += [v2.RandomHorizontalFlip()] if augmentation.flip else []
        normalise = v2.Normalize(list(stored.mean), list(stored.deviation))
        self._transform = v2.Compose(
            [*steps, v2.ToImage(), v2.ToDtype(torch.float32, scale=True), normalise]
        )

    def __len__(self) -> int:
        return len(self._labels)

    def __getitems__(self, batch: EpochSamples) -> tuple[Tensor, Tensor]:
        from PIL import Image

        made = []
        words = random_words(self._seed, batch.epoch, batch.samples).tolist()
        with torch.random.fork_rng(devices=[]):
            for sample, word in zip(batch.samples, words, strict=True):
                torch.default_generator.manual_seed(word >> 1)
                made.append(self._transform(Image.fromarray(self._images[sample])))
        return torch.stack(made), self._labels[torch.as_tensor(batch.samples)]


class FakeImages(Dataset[Any]):
    """torchvision's FakeData: noise with random labels, made on demand; each sample is always the
    same.
    """

    def __init__(self, built: BuiltModel, first: int, count: int) -> None:
        from torchvision import transforms
        from torchvision.datasets import FakeData

        self._images = FakeData(
            count, built.input_shape, built.classes, transforms.ToTensor(), random_offset=first
        )

    def __len__(self) -> int:
        return len(self._images)

    def __getitems__(self, batch: EpochSamples) -> tuple[Tensor, Tensor]:
        images, labels = zip(*(self._images[sample] for sample in batch.samples), strict=True)
        return torch.stack(images), torch.tensor(labels)


@dataclass(frozen=True)
class MadeSamples(Dataset[Any]):
    """Samples made by a user's function, each with its own seed, so that it is the same in every
    batch.
    """

    make_batch: MakeBatch
    first: int
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitems__(self, batch: EpochSamples) -> Batch:
        made = [self.make_batch(self.first + sample, 1) for sample in batch.samples]
        inputs, targets = joined_batches(made, torch.cat)
        return inputs, targets


ImageSet = StoredImages | TransformedImages | FakeImages | MadeSamples


def image_set(
    workload: Workload, built: BuiltModel, train: bool = True, augment: bool = True
) -> ImageSet:
    """The training samples, augmented from `workload.seed`, or the test samples, never augmented.

    There are a fifth as many fake test samples as training samples. Raises DpscopeError if the data
    cannot be read.
    """
    if workload.data in ("cifar10", "digits"):
        if workload.data == "cifar10":
            stored = _cifar10(workload, train)
            drawn = Augmentation(workload.seed, 4, flip=True)
        else:
            stored = _digits(train)
            drawn = Augmentation(workload.seed, 3, flip=False)
        kind = TransformedImages if workload.transforms == "per-image" else StoredImages
        return kind(stored, drawn if train and augment else None)
    first = 0
    count = workload.samples
    if not train:
        first = count
        count = max(1, count // 5)
    if built.make_batch is None:
        return FakeImages(built, first, count)
    return MadeSamples(built.make_batch, first, count)


def check_classes(workload: Workload, built: BuiltModel) -> None:
    """Raise DpscopeError for a model with fewer classes than the data, or one that makes its own
    batches.
    """
    if built.make_batch is not None and workload.data not in ("synthetic", "fake"):
        raise DpscopeError(
            f"--data {workload.data}: {workload.model} makes its own batches; use synthetic (the same batch in every step) or "
            "fake (one sample per seed)"
        )
    if workload.data in ("digits", "cifar10") and built.classes < _CLASSES:
        raise DpscopeError(
            f"--model {workload.model}: it distinguishes {built.classes} classes and {workload.data} has {_CLASSES}; "
            "give it as many outputs and return (module, shape of a sample, classes)"
        )


def _digits(train: bool) -> LabelledImages:
    images, labels, training, test = load_digits()
    chosen = training if train else test
    mean = (DIGITS_MEAN,) * 3
    deviation = (DIGITS_DEVIATION,) * 3
    return LabelledImages(images[chosen], labels[chosen], mean, deviation)


def _cifar10(workload: Workload, train: bool) -> LabelledImages:
    from torchvision.datasets import CIFAR10

    try:
        files = CIFAR10(workload.data_dir, train=train, download=False)
    except (OSError, RuntimeError) as error:
        raise DpscopeError(
            f"--data cifar10: {workload.data_dir} cannot be read ({error}); download it again with --download"
        ) from error
    images = torch.from_numpy(files.data).permute(0, 3, 1, 2).contiguous()
    return LabelledImages(images, torch.tensor(files.targets), CIFAR_MEAN, CIFAR_DEVIATION)
