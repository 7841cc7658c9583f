"""A training script as people write them, under DDP: accumulation with no_sync, validations, loader
workers, uneven inputs.
"""

import sys

import torch
from torch import distributed, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

STEPS, MICRO_BATCHES, BATCH = 30, 2, 4


def validate(model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        model(torch.ones(64, 16))
    model.train()


def main() -> None:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)), bucket_cap_mb=1
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = (STEPS + 2 * rank) * MICRO_BATCHES * BATCH  # rank 1 has two steps more
    loader = DataLoader(
        TensorDataset(torch.ones(samples, 16)), batch_size=BATCH, num_workers=int(sys.argv[1])
    )
    with Join([model]):
        for index, (inputs,) in enumerate(loader):
            last = index % MICRO_BATCHES == MICRO_BATCHES - 1
            if last:
                model(inputs).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            else:
                with model.no_sync():
                    model(inputs).sum().backward()
            if last and index // MICRO_BATCHES == 12:
                validate(model.module)
    sys.stdout.write(f"rank {rank} trained\n")
    distributed.barrier()
    if sys.argv[2] == "exit":
        import os

        sys.stdout.flush()
        distributed.destroy_process_group()
        os._exit(3)
    raise ValueError("theirs")


if __name__ == "__main__":
    main()
