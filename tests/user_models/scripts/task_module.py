"""A task that holds the model and its loss, as timm's training script has one: validations call the model, not the task."""

import os

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, VALIDATE_EACH = 40, 8, 5


class ClassificationTask(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.loss = nn.CrossEntropyLoss()

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.loss(self.model(images), labels)


def main() -> None:
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several:
        distributed.init_process_group("gloo")
    rank = int(os.environ.get("RANK", "0"))
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    task = ClassificationTask(DistributedDataParallel(model) if several else model)
    optimizer = torch.optim.SGD(task.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        images, labels = (
            torch.rand(BATCH, 32, generator=data),
            torch.randint(10, (BATCH,), generator=data),
        )
        optimizer.zero_grad()
        loss = task(images, labels)
        loss.backward()
        optimizer.step()
        if step % VALIDATE_EACH == 0:
            task.eval()
            with torch.no_grad():
                shown = task.model(torch.rand(64, 32, generator=data)).argmax(1).float().mean()
            task.train()
            if rank == 0:
                print(
                    f"step {step}: loss {loss.item():.3f}, mean class {shown.item():.2f}",
                    flush=True,
                )
    if several:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
