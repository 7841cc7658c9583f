"""Random crops and flips drawn from (seed, epoch, sample) alone.

A sample looks the same in an epoch whatever the strategy, the batch it is in, the number of loader workers and their
order; in another epoch it is drawn anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


@dataclass(frozen=True)
class Augmentation:
    """Shifts of up to `shift` pixels each way, what comes in being black, and mirroring of half of the images."""

    seed: int
    shift: int
    flip: bool

    def apply(self, images: Tensor, epoch: int, samples: Sequence[int]) -> Tensor:
        """Augmented copies of `images` (N x C x H x W), which are the data set's `samples` in this order."""
        words = random_words(self.seed, epoch, samples)
        down, right = (_drawn(words, bits, 2 * self.shift + 1) for bits in (0, 24))
        count, _, height, width = images.shape
        padded = nn.functional.pad(images, (self.shift,) * 4)
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: N x C x shift x shift x H x W
        moved = windows[torch.arange(count), :, down, right]
        if not self.flip:
            return moved
        mirrored = _drawn(words, 48, 2).bool()
        return torch.where(mirrored[:, None, None, None], moved.flip(3), moved)


def random_words(seed: int, epoch: int, samples: Sequence[int]) -> NDArray[np.uint64]:
    """64 random bits for each sample, which follow from seed, epoch and sample alone.

    SplitMix64's output function, applied to each of the three in turn (Steele, Lea, Flood: Fast Splittable Pseudorandom
    Number Generators, OOPSLA 2014).
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
    """Uniform in 0..choices-1 from up to 24 bits of each word, from `first_bit` on."""
    bits = (words >> np.uint64(first_bit)) & np.uint64((1 << min(24, 64 - first_bit)) - 1)
    return torch.from_numpy((bits % np.uint64(choices)).astype(np.int64))
