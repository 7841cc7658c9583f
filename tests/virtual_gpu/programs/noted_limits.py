"""A model that notes the time limit of each process group: `dpscope run --model
tests.virtual_gpu.programs.noted_limits:small`.

Each rank writes its groups' limits of the last forward into the file `rankN.json` of the folder in
NOTED_LIMITS.
"""

import json
import os
from pathlib import Path

import torch
from torch import Tensor, distributed, nn

FOLDER = "NOTED_LIMITS"


def small() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
    model.register_forward_pre_hook(note)
    return model


def note(model: nn.Module, inputs: tuple[Tensor]) -> None:
    if not distributed.is_initialized():
        return
    limits = {}
    for group in distributed.distributed_c10d._world.pg_map:
        backend = group._get_backend(torch.device("cuda"))
        ranks = ",".join(map(str, distributed.get_process_group_ranks(group)))
        limits[ranks] = backend.options._timeout.total_seconds()
    path = Path(os.environ[FOLDER]) / f"rank{distributed.get_rank()}.json"
    path.write_text(json.dumps(limits))
