"""One rank of a small DDP job whose gradients come at known times: `python -m
tests.helpers.paced_ddp RANK MASTER FOLDER`.

Four layers of 2.5 MB, each in a separate bucket; backward sleeps PACE_S before each gradient.
Leaves a trace of four steps and, of every step, the times at which the gradients were there.
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

from tests.user_models.paced_models import PacedLayer

LAYERS, LAYER_BYTES, PACE_S = 4, 2_500_000, 0.03
SETTLING, TRACED = 3, 4


def main() -> None:
    rank, master, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"tcp://{master}:29517", rank=rank, world_size=2
    )
    ready_ns: list[int] = []
    steps: list[list[int]] = []
    layers = [PacedLayer(LAYER_BYTES // 4, 0.0, PACE_S) for _ in range(LAYERS)]
    for layer in layers:
        layer.weight.register_hook(lambda gradient: ready_ns.append(time.time_ns()))  # type: ignore[no-untyped-call]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=SETTLING - 1, warmup=1, active=TRACED),
        record_shapes=True,
    ) as tracer:
        for _ in range(SETTLING + TRACED):
            ready_ns.clear()
            model(torch.ones(1, requires_grad=True)).sum().backward()
            distributed.barrier()
            steps.append(list(ready_ns))
            tracer.step()
    tracer.export_chrome_trace(str(folder / f"0_{rank}.pt.trace.json"))
    (folder / f"ready_{rank}.txt").write_text(json.dumps(steps))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
