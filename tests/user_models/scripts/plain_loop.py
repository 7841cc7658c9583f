"""A classifier of images as tutorials train one: DDP under torchrun, a loader with a sampler, a validation after each epoch."""

import argparse
import os
import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CLASSES = 10


class Images(Dataset):
    def __init__(self, count: int, slow_s: float) -> None:
        self.images = torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        self.labels = torch.randint(CLASSES, (count,), generator=torch.Generator().manual_seed(1))
        self.slow_s = slow_s

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self.slow_s)  # a slow disk
        return self.images[index], self.labels[index]


def make_model(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(),
        nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES),
    )  # fmt: skip


def validate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = 0
    with torch.no_grad():
        for images, labels in loader:
            right += (model(images).argmax(1) == labels).sum().item()
    model.train()
    return right / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40, help="of an epoch")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--bucket-cap-mb", type=int, default=25)
    parser.add_argument("--unused", action="store_true")
    parser.add_argument("--slow-rank", type=int, help="whose data lies on a slow disk")
    parser.add_argument(
        "--one-batch", action="store_true", help="again and again: can the model learn it by heart?"
    )
    args = parser.parse_args()
    several = "WORLD_SIZE" in os.environ and int(os.environ["WORLD_SIZE"]) > 1
    if several:
        distributed.init_process_group("gloo")
    rank, world = (distributed.get_rank(), distributed.get_world_size()) if several else (0, 1)
    torch.manual_seed(0)
    data = Images(args.steps * args.batch_size * world, 0.005 if rank == args.slow_rank else 0.0)
    sampler = DistributedSampler(data) if several else None
    loader = DataLoader(data, args.batch_size, shuffle=sampler is None, sampler=sampler)
    model = make_model(args.width)
    if several:
        model = DistributedDataParallel(
            model, bucket_cap_mb=args.bucket_cap_mb, find_unused_parameters=args.unused
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    batches = [next(iter(loader))] * len(loader) if args.one_batch else loader
    for epoch in range(args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for images, labels in batches:
            optimizer.zero_grad()
            loss = loss_of(model(images), labels)
            loss.backward()
            optimizer.step()
        accuracy = validate(model, DataLoader(Images(32, 0.0), 32))
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {accuracy:.2f}", flush=True)
    if several:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
