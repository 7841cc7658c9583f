"""A Trainer class as projects grow one: callbacks, snapshots, batches as dictionaries, the loss in the model."""

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Houses(Dataset):
    def __init__(self, count: int) -> None:
        self.rooms, self.place = torch.rand(count, 12), torch.randint(20, (count,))

    def __len__(self) -> int:
        return len(self.rooms)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {
            "rooms": self.rooms[index],
            "place": self.place[index],
            "price": self.rooms[index].sum(),
        }


class Prices(nn.Module):
    """Returns its loss where it is given prices, as the models of large libraries do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.place = nn.Embedding(20, 8)
        self.layers = nn.Sequential(
            nn.Linear(20, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)
        )

    def forward(
        self, rooms: torch.Tensor, place: torch.Tensor, price: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        made = self.layers(torch.cat((rooms, self.place(place)), 1)).squeeze(1)
        return (
            {"price": made}
            if price is None
            else {"price": made, "loss": nn.functional.mse_loss(made, price)}
        )


class Clock:
    """A callback: seconds of each epoch."""

    def __init__(self) -> None:
        self.began_s = time.perf_counter()

    def epoch_ended(self, trainer: "Trainer", epoch: int, loss: float) -> None:
        if trainer.rank == 0:
            print(
                f"epoch {epoch}: loss {loss:.3f} after {time.perf_counter() - self.began_s:.1f} s",
                flush=True,
            )


class Trainer:
    def __init__(
        self, model: nn.Module, data: Dataset, args: argparse.Namespace, folder: Path
    ) -> None:
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.args = args
        self.snapshot = folder / "snapshot.pt"
        sampler = DistributedSampler(data) if self.world > 1 else None
        self.loader = DataLoader(data, args.batch_size, sampler=sampler, num_workers=args.workers)
        self.model = DistributedDataParallel(model) if self.world > 1 else model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.callbacks = [Clock()]

    def fit(self) -> None:
        for epoch in range(self.args.epochs):
            loss = 0.0
            for batch in self.loader:
                loss = self.training_step(batch)
            for callback in self.callbacks:
                callback.epoch_ended(self, epoch, loss)
            if self.rank == 0:
                torch.save(
                    {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()},
                    self.snapshot,
                )

    def training_step(self, batch: dict[str, torch.Tensor]) -> float:
        self.optimizer.zero_grad()
        loss = self.model(**batch)["loss"]
        loss.backward()
        self.optimizer.step()
        return float(loss.item())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30, help="of an epoch")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        distributed.init_process_group("gloo")
    torch.manual_seed(0)
    data = Houses(args.steps * args.batch_size * int(os.environ.get("WORLD_SIZE", "1")))
    with tempfile.TemporaryDirectory() as folder:
        Trainer(Prices(args.width), data, args, Path(folder)).fit()
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
