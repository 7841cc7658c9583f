"""The images to learn from and to be tested on: CIFAR-10, digits, random ones. All of a batch are made at once."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from dpscope.launch.workload.augmentation import Augmentation, random_words
from dpscope.launch.workload.data_files import CIFAR_DEVIATION, CIFAR_MEAN
from dpscope.launch.workload.digits import DIGITS_DEVIATION, DIGITS_MEAN, load_digits
from dpscope.launch.workload.nested import joined_batches
from dpscope.launch.workload.tasks import BuiltModel, MakeBatch
from dpscope.profiling.records.config import Workload
from dpscope.profiling.store.errors import DpscopeError

_CLASSES = 10  # of digits and of CIFAR-10

Batch = tuple[Any, Any]
"""Inputs and targets: images (N x C x H x W, float32) and labels (N, int64), or nested tensors of a model's own."""


class EpochSamples(NamedTuple):
    """Which samples a batch is made of, and in which epoch: augmentation depends on it."""

    epoch: int
    samples: Sequence[int]


class StoredImages(Dataset[Any]):
    """Images held in memory as bytes (N x C x H x W, uint8); batches of them are augmented and normalised."""

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        mean: Sequence[float],
        deviation: Sequence[float],
        augmentation: Augmentation | None,
    ) -> None:
        self._images = images
        self._labels = labels
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
    """The input path of most training scripts: each image becomes a PIL image, which torchvision's transforms augment,
    convert and normalise one by one.

    Random choices follow from (seed, epoch, sample) alone, as `Augmentation`'s do, so all strategies train on the same images.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        mean: Sequence[float],
        deviation: Sequence[float],
        augmentation: Augmentation | None,
    ) -> None:
        from torchvision.transforms import v2

        self._images = images.permute(0, 2, 3, 1).contiguous().numpy()
        self._labels = labels
        self._seed = augmentation.seed if augmentation is not None else 0
        random: list[Any] = []
        if augmentation is not None:
            random.append(v2.RandomCrop(self._images.shape[1], padding=augmentation.shift))
            random += [v2.RandomHorizontalFlip()] if augmentation.flip else []
        steps = [
            *random,
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(list(mean), list(deviation)),
        ]
        self._transform = v2.Compose(steps)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitems__(self, batch: EpochSamples) -> tuple[Tensor, Tensor]:
        from PIL import Image

        made = []
        with torch.random.fork_rng(devices=[]):
            for sample, word in zip(
                batch.samples, random_words(self._seed, batch.epoch, batch.samples).tolist(), strict=True
            ):
                torch.default_generator.manual_seed(word >> 1)
                made.append(self._transform(Image.fromarray(self._images[sample])))
        return torch.stack(made), self._labels[torch.as_tensor(batch.samples)]


class FakeImages(Dataset[Any]):
    """torchvision's FakeData: noise with random labels, made when asked for, the same for the same sample."""

    def __init__(self, built: BuiltModel, first: int, count: int) -> None:
        from torchvision import transforms
        from torchvision.datasets import FakeData

        self._images = FakeData(
            size=count,
            image_size=built.input_shape,
            num_classes=built.classes,
            transform=transforms.ToTensor(),
            random_offset=first,
        )

    def __len__(self) -> int:
        return len(self._images)

    def __getitems__(self, batch: EpochSamples) -> tuple[Tensor, Tensor]:
        images, labels = zip(*(self._images[sample] for sample in batch.samples), strict=True)
        return torch.stack(images), torch.tensor(labels)


class MadeSamples(Dataset[Any]):
    """What a model's own function makes: sample by sample, each from a seed of its own, so that it is the same in every batch."""

    def __init__(self, make_batch: MakeBatch, first: int, count: int) -> None:
        self._make_batch = make_batch
        self._first = first
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitems__(self, batch: EpochSamples) -> Batch:
        made = [self._make_batch(self._first + sample, 1) for sample in batch.samples]
        inputs, targets = joined_batches(made, torch.cat)
        return inputs, targets


ImageSet = StoredImages | TransformedImages | FakeImages | MadeSamples


def training_images(workload: Workload, built: BuiltModel, augment: bool = True) -> ImageSet:
    """What a run trains on, augmented from `workload.seed`; raises DpscopeError when it cannot be read."""
    if workload.data == "cifar10":
        return _cifar10(workload, train=True, augmentation=Augmentation(workload.seed, 4, True) if augment else None)
    if workload.data == "digits":
        return _digits(workload, train=True, augmentation=Augmentation(workload.seed, 3, False) if augment else None)
    if built.make_batch is not None:
        return MadeSamples(built.make_batch, first=0, count=workload.samples)
    return FakeImages(built, first=0, count=workload.samples)


def test_images(workload: Workload, built: BuiltModel) -> ImageSet:
    """What learning is tested on, never augmented; of fake data, a fifth of the training samples' number."""
    if workload.data == "cifar10":
        return _cifar10(workload, train=False, augmentation=None)
    if workload.data == "digits":
        return _digits(workload, train=False, augmentation=None)
    count = max(1, workload.samples // 5)
    if built.make_batch is not None:
        return MadeSamples(built.make_batch, first=workload.samples, count=count)
    return FakeImages(built, first=workload.samples, count=count)


def check_classes(workload: Workload, built: BuiltModel) -> None:
    """Raise DpscopeError for a model that cannot tell the data's classes apart, or makes batches of its own."""
    if built.make_batch is not None and workload.data not in ("synthetic", "fake"):
        raise DpscopeError(
            f"--data {workload.data}: {workload.model} makes its own batches; use synthetic (the same batch in every step) or "
            "fake (one sample per seed)"
        )
    if workload.data in ("digits", "cifar10") and built.classes < _CLASSES:
        raise DpscopeError(
            f"--model {workload.model}: it tells {built.classes} classes apart and {workload.data} has {_CLASSES}; "
            "give it as many outputs and return (module, shape of a sample, classes)"
        )


def _cifar10(workload: Workload, train: bool, augmentation: Augmentation | None) -> ImageSet:
    from torchvision.datasets import CIFAR10

    try:
        files = CIFAR10(workload.data_dir, train=train, download=False)
    except (OSError, RuntimeError) as error:
        raise DpscopeError(
            f"--data cifar10: {workload.data_dir} cannot be read ({error}); fetch it again with --download"
        ) from error
    images = torch.from_numpy(files.data).permute(0, 3, 1, 2).contiguous()
    return _image_set(workload)(images, torch.tensor(files.targets), CIFAR_MEAN, CIFAR_DEVIATION, augmentation)


def _digits(workload: Workload, train: bool, augmentation: Augmentation | None) -> ImageSet:
    digits = load_digits()
    chosen = digits.training if train else digits.test
    return _image_set(workload)(
        digits.images[chosen], digits.labels[chosen], (DIGITS_MEAN,) * 3, (DIGITS_DEVIATION,) * 3, augmentation
    )


def _image_set(workload: Workload) -> type[StoredImages] | type[TransformedImages]:
    return TransformedImages if workload.transforms == "per-image" else StoredImages
