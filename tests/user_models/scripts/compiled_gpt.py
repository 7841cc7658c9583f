"""A small GPT, compiled, as nanoGPT's train.py trains one: torch.compile first, DDP around it, gradients clipped."""

import argparse
import math
import os

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

WORDS, BATCH = 65, 4


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        split = self.attention(self.first(hidden)).view(
            batch, length, 3, self.heads, width // self.heads
        )
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.projection(seen.transpose(1, 2).reshape(batch, length, width))
        return hidden + self.layers(self.second(hidden))


class GPT(nn.Module):
    def __init__(self, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 2) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(
        self, words: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.words(words) + self.places(torch.arange(words.shape[1]))
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(self.norm(hidden))
        return logits, nn.functional.cross_entropy(logits.view(-1, WORDS), targets.view(-1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--backend", default="inductor")
    args = parser.parse_args()
    several, length = (
        int(os.environ.get("RANK", "-1")) != -1 and int(os.environ["WORLD_SIZE"]) > 1,
        16,
    )
    if several:
        distributed.init_process_group("gloo")
    rank = int(os.environ.get("RANK", "0"))
    torch.manual_seed(1337)
    text = torch.randint(WORDS, (4096,))
    torch.manual_seed(1337 + rank)

    def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
        at = torch.randint(len(text) - length - 1, (BATCH,))
        return torch.stack([text[i : i + length] for i in at]), torch.stack(
            [text[i + 1 : i + 1 + length] for i in at]
        )

    model = GPT(args.width, args.layers, length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    model = torch.compile(model, backend=args.backend)
    if several:
        model = DistributedDataParallel(model)
    inputs, targets = get_batch()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * step / args.steps))
        _, loss = model(inputs, targets)
        inputs, targets = get_batch()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if rank == 0 and step % 20 == 0:
            print(f"iter {step}: loss {loss.item():.4f}", flush=True)
    if several:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
