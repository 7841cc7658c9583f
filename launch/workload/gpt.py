"""A small GPT on synthetic tokens: decoder blocks as in GPT-2 (Radford et al. 2019), pre-norm, head tied to the embedding."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpscope.launch.workload.tasks import BuiltModel


@dataclass(frozen=True)
class GptSize:
    """What makes a GPT large."""

    layers: int
    heads: int
    width: int
    vocabulary: int
    context: int


GPT_SIZES = {
    "gpt_5m": GptSize(layers=4, heads=4, width=256, vocabulary=8192, context=128),
    "gpt_30m": GptSize(layers=8, heads=8, width=512, vocabulary=8192, context=256),
    "gpt_124m": GptSize(layers=12, heads=12, width=768, vocabulary=50257, context=1024),  # GPT-2's smallest
}


class Block(nn.Module):
    """Attention to earlier tokens, then two linear layers, each added to what came in."""

    def __init__(self, size: GptSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.attention_norm = nn.LayerNorm(size.width)
        self.attention = nn.Linear(size.width, 3 * size.width)
        self.projection = nn.Linear(size.width, size.width)
        self.feed_norm = nn.LayerNorm(size.width)
        self.feed = nn.Sequential(
            nn.Linear(size.width, 4 * size.width), nn.GELU(), nn.Linear(4 * size.width, size.width)
        )

    def forward(self, values: Tensor) -> Tensor:
        """From values (N x T x width) to values of the same shape."""
        samples, tokens, width = values.shape
        parts = self.attention(self.attention_norm(values)).view(samples, tokens, 3, self.heads, width // self.heads)
        queries, keys, contents = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(queries, keys, contents, is_causal=True)
        values = values + self.projection(seen.transpose(1, 2).reshape(samples, tokens, width))
        changed: Tensor = values + self.feed(self.feed_norm(values))
        return changed


class Gpt(nn.Module):
    """From tokens (N x T, int64) to logits of the next ones (N x T x vocabulary)."""

    def __init__(self, size: GptSize) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.places = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of each token's successor."""
        values = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            values = block(values)
        logits: Tensor = self.head(self.norm(values))
        return logits


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy over all tokens of all samples."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build_gpt(name: str) -> BuiltModel:
    """The GPT of that name, fed with random tokens; its optimizer is AdamW."""
    size = GPT_SIZES[name]

    def make_batch(seed: int, samples: int) -> tuple[Tensor, Tensor]:
        drawn = torch.randint(
            size.vocabulary, (samples, size.context + 1), generator=torch.Generator().manual_seed(seed)
        )
        return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()

    return BuiltModel(
        model=Gpt(size),
        input_shape=(size.context,),
        classes=size.vocabulary,
        make_batch=make_batch,
        loss=next_token_loss,
        tokens=size.context,
    )
