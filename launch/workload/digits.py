"""scikit-learn's 1,797 hand-written digits (8 x 8 pixels), upsampled to 3 x 32 x 32: real images, no download.

144 of each digit are trained on, 1,440 in all: a number that 2, 3, 4, 5, 6 and 8 devices share evenly. The other 357 are the
test set. The split is the same everywhere and for ever: it orders each digit's images by random words of their numbers.

Source: E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998 (its test
part), as scikit-learn packs it.
"""

import gzip
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpscope.launch.workload.augmentation import random_words
from dpscope.launch.workload.data_files import digits_file

DIGITS_MEAN = 0.3054  # of the training images' pixels, black 0 to white 1
DIGITS_DEVIATION = 0.3240

_TRAINED_OF_EACH = 144
_WHITE = 16  # the largest value of a pixel


@dataclass(frozen=True)
class Digits:
    """All images (1797 x 3 x 32 x 32, uint8) and labels (int64), and which are trained on and which are tested on."""

    images: Tensor
    labels: Tensor
    training: Tensor
    test: Tensor


def load_digits() -> Digits:
    """Read the file in scikit-learn's package; raises DpscopeError without it.

    Not by `sklearn.datasets.load_digits`, whose imports take longer than an epoch on these images.
    """
    with gzip.open(digits_file(), "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    pixels = torch.from_numpy(rows[:, :-1].reshape(-1, 1, 8, 8)).float()
    large = nn.functional.interpolate(pixels, scale_factor=4, mode="bilinear", align_corners=False)
    labels = rows[:, -1].astype(np.int64)
    training, test = _split(labels)
    return Digits(
        images=(large * (255 / _WHITE)).round().to(torch.uint8).expand(-1, 3, -1, -1).contiguous(),
        labels=torch.from_numpy(labels),
        training=torch.from_numpy(training),
        test=torch.from_numpy(test),
    )


def _split(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers of the images to train on and to test on, each ascending."""
    words = random_words(0, 0, range(len(labels)))
    training = []
    for digit in range(10):
        own = np.flatnonzero(labels == digit)
        training.append(own[np.argsort(words[own])][:_TRAINED_OF_EACH])
    chosen = np.sort(np.concatenate(training))
    return chosen, np.setdiff1d(np.arange(len(labels)), chosen)
