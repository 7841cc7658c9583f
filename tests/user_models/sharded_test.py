"""Run under torchrun: processes whose models have buffers of their own test uneven shards; rank 0 saves what came out.

    torchrun ... sharded_test.py SAVED

Saves what `evaluate` returned, the loss and the number of right answers rank 0's model gives over all samples at once, and
whether every process has its own buffers and its training mode back.
"""

import os
import sys

import torch
from torch import distributed, nn

from dpscope.launch.training.evaluation import evaluate, shard
from dpscope.launch.workload.image_sets import EpochSamples, FakeImages
from dpscope.launch.workload.models import build_model

SAMPLES = 11  # of which two processes have 5 and 6, in batches of 4


def main() -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    built = build_model("tiny_models:tiny")
    model = built.model
    images = FakeImages(built, first=0, count=SAMPLES)
    with torch.no_grad():
        for buffer in model.buffers():
            buffer += rank  # running mean, variance and count
    own = [buffer.clone() for buffer in model.buffers()]
    found = evaluate(model, images, shard(SAMPLES, rank, world_size), 4, torch.device("cpu"))
    kept = model.training and all(map(torch.equal, own, model.buffers()))
    everywhere = torch.tensor(int(kept))
    distributed.all_reduce(everywhere, distributed.ReduceOp.MIN)
    if rank == 0:
        batch, labels = images.__getitems__(EpochSamples(0, range(SAMPLES)))
        with torch.no_grad():
            logits = model.eval()(batch)
        loss = nn.functional.cross_entropy(logits.double(), labels).item()
        right = int((logits.argmax(1) == labels).sum())
        torch.save((found.loss, found.accuracy, found.samples, loss, right, bool(everywhere)), sys.argv[1])
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
