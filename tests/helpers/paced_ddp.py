"""One rank of a small DDP job whose gradients come at known times; `python paced_ddp.py RANK MASTER FOLDER`.

Four layers of 2.5 MB, each in a separate bucket; backward sleeps PACE_S before each gradient. Leaves a trace of four steps and,
of every step, the times at which the gradients were there.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

LAYERS, LAYER_BYTES, PACE_S = 4, 2_500_000, 0.03
ready_ns: list[int] = []


class _Paced(torch.autograd.Function):
    """Passes its input on; backward takes PACE_S and gives a gradient of zeros."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.shape = weight.shape
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(PACE_S)
        ready_ns.append(time.time_ns())
        return gradients[0], torch.zeros(ctx.shape)


class _Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(LAYER_BYTES // 4) for _ in range(LAYERS))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            value = _Paced.apply(value, weight)
        return value


def main() -> None:
    rank, master, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"tcp://{master}:29517", rank=rank, world_size=2)
    model = DistributedDataParallel(_Layers(), bucket_cap_mb=1)
    steps: list[list[int]] = []
    with profile(
        activities=[ProfilerActivity.CPU], schedule=schedule(wait=3, warmup=1, active=4), record_shapes=True
    ) as tracer:
        for _ in range(8):
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
