"""Models that bring their own batches, losses and optimizers: tokens, regression, several inputs,
dictionaries.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

TOKENS, VOCABULARY = 6, 11


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class _Sums(nn.Module):
    """Takes {"left": ..., "right": (..., ...)}; returns a number a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 1), nn.Linear(4, 1)

    def forward(self, left: Tensor, right: tuple[Tensor, Tensor], scale: float) -> Tensor:
        total: Tensor = self.left(left) + scale * self.right(torch.cat(right, dim=1))
        return total


def _regression_batch(seed: int, samples: int) -> tuple[dict[str, Any], Tensor]:
    generator = drawn(seed)
    left = torch.randn(samples, 3, generator=generator)
    right = (
        torch.randn(samples, 2, generator=generator),
        torch.randn(samples, 2, generator=generator),
    )
    return {"left": left, "right": right, "scale": 0.5}, left.sum(dim=1, keepdim=True)


def _adam(parameters: Iterable[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=learning_rate)


def regression() -> dict[str, object]:
    return {"module": _Sums(), "make_batch": _regression_batch, "loss": functional.mse_loss}


def regression_by_adam() -> dict[str, object]:
    return {**regression(), "optimizer": _adam}


class _NextToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 8)
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(self.tokens(tokens)))
        return logits


def _token_batch(seed: int, samples: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(VOCABULARY, (samples, TOKENS + 1), generator=drawn(seed))
    return tokens[:, :-1], (tokens[:, :-1] * 3) % VOCABULARY


def _token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def tokens() -> dict[str, object]:
    return {
        "module": _NextToken(),
        "make_batch": _token_batch,
        "loss": _token_loss,
        "tokens": TOKENS,
    }


def no_module() -> dict[str, object]:
    return {"make_batch": _token_batch}


def misspelt() -> dict[str, object]:
    return {**tokens(), "losss": _token_loss}


def unseeded() -> dict[str, object]:
    return {
        **tokens(),
        "make_batch": lambda seed, samples: (torch.randn(samples, 2), torch.zeros(samples)),
    }


def without_rows() -> dict[str, object]:
    return {
        **tokens(),
        "make_batch": lambda seed, samples: (torch.zeros(2, samples), torch.zeros(samples)),
    }


def failing_batch() -> dict[str, object]:
    return {**tokens(), "make_batch": lambda seed: seed}
