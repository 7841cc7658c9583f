"""A training of 30 steps that resumes from its own checkpoint in the working folder, as public scripts do."""

from pathlib import Path

import torch
from torch import nn

STEPS = 30


def main() -> None:
    checkpoint = Path("checkpoint.pt")
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = 0
    if checkpoint.exists():
        stored = torch.load(checkpoint)
        model.load_state_dict(stored["model"])
        first = stored["step"]
    for _ in range(first, STEPS):
        optimizer.zero_grad()
        model(torch.rand(4, 8)).sum().backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "step": STEPS - 15}, checkpoint)
    print(f"trained {STEPS - first} steps", flush=True)


if __name__ == "__main__":
    main()
