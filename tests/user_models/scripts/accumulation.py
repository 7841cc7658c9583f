"""Gradients accumulated over micro-batches, with or without no_sync, in bfloat16, clipped, under a learning rate schedule."""

import argparse
import contextlib
import os
from collections.abc import Iterator

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

BATCH, ACCUMULATE = 4, 4  # samples of a micro-batch, micro-batches of a step
LENGTH = 4  # words of a sample


class Tagger(nn.Module):
    """Words in, a tag for each out."""

    def __init__(self, width: int, words: int = 64, tags: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.encoder = nn.RNN(
            width, width, batch_first=True
        )  # oneDNN trains an LSTM in bfloat16 only with AVX-512
        self.head = nn.Linear(width, tags)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.encoder(self.embedding(words))
        return self.head(hidden)


def batches(size: int, rank: int) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
    generator = torch.Generator().manual_seed(rank)
    while True:
        words = torch.randint(64, (size, LENGTH), generator=generator)
        yield {"words": words, "lengths": torch.full((size,), LENGTH)}, words % 8


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument(
        "--sync-always", action="store_true", help="without no_sync, as many scripts do it"
    )
    parser.add_argument(
        "--divide", action="store_true", help="micro-batches by the processes: one global batch"
    )
    parser.add_argument("--width", type=int, default=32)
    args = parser.parse_args()
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several:
        distributed.init_process_group("gloo")
    rank = distributed.get_rank() if several else 0
    micro_batches = ACCUMULATE // (distributed.get_world_size() if several and args.divide else 1)
    torch.manual_seed(0)
    model = Tagger(args.width)
    if several:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    data = batches(BATCH, rank)
    for step in range(args.steps):
        for micro in range(micro_batches):
            inputs, tags = next(data)
            last = micro == micro_batches - 1
            with (
                model.no_sync()
                if several and not last and not args.sync_always
                else contextlib.nullcontext()
            ):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = nn.functional.cross_entropy(
                        model(**inputs).flatten(0, 1), tags.flatten()
                    )
                (loss / micro_batches).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        if rank == 0 and step % 20 == 0:
            print(
                f"step {step}: loss {loss.item():.3f}, lr {schedule.get_last_lr()[0]:.2e}",
                flush=True,
            )
    if several:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
