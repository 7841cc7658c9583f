"""A model that notes the time limit of each process group: `dpscope run --model
tests.virtual_gpu.programs.noted_limits:layered`.

Each rank writes its groups' limits of the last forward into a file of the folder in NOTED_LIMITS.
"""

import json
import os
from pathlib import Path

import torch
from torch import Tensor, distributed, nn

from tests.user_models import tiny_models

FOLDER = "NOTED_LIMITS"


def layered() -> tiny_models.Workload:
    model, shape, classes = tiny_models.layered()
    model.register_forward_pre_hook(note)
    return model, shape, classes


def note(model: nn.Module, inputs: tuple[Tensor]) -> None:
    if not distributed.is_initialized():
        return
    limits = {}
    for group in distributed.distributed_c10d._world.pg_map:
        backend = group._get_backend(torch.device("cuda"))
        ranks = ",".join(map(str, distributed.get_process_group_ranks(group)))
        limits[ranks] = backend.options._timeout.total_seconds()
    name = f"groups{len(limits)}-rank{distributed.get_rank()}.json"
    (Path(os.environ[FOLDER]) / name).write_text(json.dumps(limits))
