"""A training with Accelerate, as its guide shows it: gradients accumulated over two batches of
four.
"""

import sys

import torch
from accelerate import Accelerator
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

STEPS, MICRO_BATCHES, BATCH = 40, 2, 4


def main() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICRO_BATCHES)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    samples = STEPS * MICRO_BATCHES * BATCH * accelerator.num_processes
    data = TensorDataset(torch.rand(samples, 16), torch.randint(4, (samples,)))
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(data, batch_size=BATCH)
    )
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    sys.stdout.write(f"rank {accelerator.process_index} trained\n")
    distributed.destroy_process_group()  # without it torch aborts at every tenth exit


if __name__ == "__main__":
    main()
