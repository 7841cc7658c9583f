"""Run under torchrun on two processes: steps of each strategy compiled and not, weights compared,
the compiled ones traced.

Each rank saves a trace for each case in <folder>/<case>, rank 0 what was found as
<folder>/found.json.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch._functorch.aot_autograd
import torch._inductor.pattern_matcher  # by the compiler, once for all ranks
from torch import distributed, nn

from dpscope.launch.workload.strategies import compiled_so_far, wrap_for
from dpscope.profiling.records.matrix import CompileMode
from dpscope.profiling.records.run import Cell, CellOptions, Compilation
from dpscope.profiling.records.strategies import CellStrategy
from tests.helpers.strategy_steps import HOST, Steps, apart, trace_steps, weights

FEATURES, WIDE = 6, 420
CASES: dict[str, tuple[CellStrategy, CellOptions]] = {
    "single": ("single", CellOptions()),
    "ddp": ("ddp", CellOptions(bucket_mb=1)),
    "replicate": ("replicate", CellOptions()),
    "fsdp": ("fsdp", CellOptions(comm_hook="bf16")),
}


def model() -> nn.Module:
    """Of a library's modules alone, of which two hold more than DDP's first bucket, 1 MiB."""
    torch.manual_seed(0)
    wide = [nn.Sequential(nn.Linear(WIDE, WIDE), nn.Tanh()) for _ in range(2)]
    return nn.Sequential(nn.Linear(FEATURES, WIDE), *wide, nn.Linear(WIDE, 3)).double()


def steps_of(strategy: CellStrategy, options: CellOptions, mode: CompileMode, rank: int) -> Steps:
    """Of the model under a strategy, compiled or not, on the rank's own inputs."""
    chosen = CellOptions(comm_hook=options.comm_hook, bucket_mb=options.bucket_mb, compile=mode)
    devices = 1 if strategy == "single" else distributed.get_world_size()
    cell = Cell(strategy=strategy, devices=devices, batch_size=2, options=chosen)
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(2, FEATURES, dtype=torch.float64, generator=generator)
    return Steps(wrap_for(model(), cell, HOST), inputs)


def added(before: Compilation, after: Compilation) -> dict[str, Any]:
    names = ("graphs", "parts", "breaks", "seconds")
    return {name: getattr(after, name) - getattr(before, name) for name in names}


def main() -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])
    found: dict[str, Any] = {}
    for name, (strategy, options) in CASES.items():
        plain, before = steps_of(strategy, options, "off", rank), compiled_so_far()
        compiled = steps_of(strategy, options, "aot_eager", rank)
        for _ in range(3):
            plain()
            compiled()
        difference = apart(weights(plain.wrapped), weights(compiled.wrapped))
        warm = compiled_so_far()
        trace_steps(compiled, 2, folder / name, rank)
        found[name] = {
            **added(before, warm),
            "late": compiled_so_far().graphs - warm.graphs,
            "apart": difference,
        }
        found[name]["names"] = list(compiled.wrapped.state_dict())
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
