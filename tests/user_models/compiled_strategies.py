"""Run under torchrun on two processes: steps of each strategy compiled and not, weights compared, the compiled ones traced.

Each rank saves a trace for each case in <folder>/<case>, rank 0 what was found as <folder>/found.json.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from dpscope.launch.jobs.process_group import synchronise
from dpscope.launch.training.whole_state import whole
from dpscope.launch.workload.compiling import compiled_so_far
from dpscope.launch.workload.strategies import wrap_for
from dpscope.profiling.instruments.named_ranges import named_range
from dpscope.profiling.instruments.step_timer import BatchArrived, StepCounts, nothing
from dpscope.profiling.instruments.trace_recorder import record_trace
from dpscope.profiling.records.matrix import CellStrategy, CompileMode
from dpscope.profiling.records.range_names import BACKWARD, FORWARD, OPTIMIZER
from dpscope.profiling.records.run import Cell, CellOptions
from dpscope.profiling.records.wrapped import Compilation

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


class Steps:
    def __init__(self, strategy: CellStrategy, options: CellOptions, mode: CompileMode, rank: int) -> None:
        chosen = CellOptions(comm_hook=options.comm_hook, bucket_mb=options.bucket_mb, compile=mode)
        devices = 1 if strategy == "single" else distributed.get_world_size()
        cell = Cell(strategy=strategy, devices=devices, batch_size=2, options=chosen)
        self.wrapped = wrap_for(model(), cell, torch.device("cpu"))
        generator = torch.Generator().manual_seed(rank)
        self.inputs = torch.randn(2, FEATURES, dtype=torch.float64, generator=generator)
        self.optimizer = torch.optim.SGD(self.wrapped.parameters(), lr=0.1, momentum=0.9)

    def __call__(self, batch_arrived: BatchArrived = nothing) -> StepCounts:
        batch_arrived()
        with named_range(FORWARD):
            loss = self.wrapped(self.inputs).square().mean()
        with named_range(BACKWARD):
            loss.backward()
        with named_range(OPTIMIZER):
            self.optimizer.step()
            self.optimizer.zero_grad()
        return StepCounts(len(self.inputs))

    def weights(self) -> list[Tensor]:
        return list(whole(self.wrapped.state_dict()).values())


def added(before: Compilation, after: Compilation) -> dict[str, Any]:
    names = ("graphs", "parts", "breaks", "seconds")
    return {name: getattr(after, name) - getattr(before, name) for name in names}


def main() -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, folder, host = int(os.environ["RANK"]), Path(sys.argv[1]), torch.device("cpu")
    found: dict[str, Any] = {}
    for name, (strategy, options) in CASES.items():
        plain, before = Steps(strategy, options, "off", rank), compiled_so_far()
        compiled = Steps(strategy, options, "aot_eager", rank)
        for _ in range(3):
            plain()
            compiled()
        apart = [
            float((one - other).abs().max()) for one, other in zip(plain.weights(), compiled.weights(), strict=True)
        ]
        warm = compiled_so_far()
        trace = folder / name / f"0_{rank}.pt.trace.json.gz"
        trace.parent.mkdir(exist_ok=True)
        record_trace(compiled, 2, trace, host, all_threads=False, synchronise=lambda: synchronise((host,)))
        found[name] = {**added(before, warm), "late": compiled_so_far().graphs - warm.graphs, "apart": max(apart)}
        found[name]["names"] = list(compiled.wrapped.state_dict())
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
