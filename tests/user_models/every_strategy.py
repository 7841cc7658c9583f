"""Run under torchrun on four processes: steps under every strategy, traced; gradients, weights and
a checkpoint compared.

Each rank saves a trace for each strategy in <folder>/<strategy>, and those of `parallel_training`
in <folder>/ways; rank 0 saves what was found as <folder>/found.json.
"""

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, distributed, nn

from dpscope.launch.learning.checkpoints import load_state, whole_state
from dpscope.launch.workload.strategies import held_bytes, is_composed, sharded_units, wrap_for
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.strategies import Strategy, traits_of
from tests.helpers.strategy_steps import HOST, Steps, apart, trace_steps, weights
from tests.user_models.parallel_training import trace_ways

BATCH, FEATURES = 2, 6
STRATEGIES = [one for one in get_args(Strategy) if not traits_of(one).one_process]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, 10), nn.Tanh(), nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 3)
    ).double()


def batch(shares: range) -> Tensor:
    generators = [torch.Generator().manual_seed(share) for share in shares]
    return torch.cat(
        [torch.randn(BATCH, FEATURES, dtype=torch.float64, generator=one) for one in generators]
    )


def main() -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, size, folder = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Path(sys.argv[1])
    alone = Steps(model(), batch(range(size)))
    for _ in range(4):
        alone()
    expected = weights(alone.wrapped)
    found: dict[str, Any] = {}
    for strategy in STRATEGIES:
        built = model()
        units = sharded_units(built, strategy)
        cell = Cell(strategy=strategy, devices=size, batch_size=BATCH)
        steps = Steps(wrap_for(built, cell, HOST), batch(range(rank, rank + 1)))
        for _ in range(4):
            steps()
        after = weights(built)
        sharded = traits_of(strategy).sharded
        kept: list[Any] = [copy.deepcopy(whole_state(built, steps.optimizer))]
        if sharded and rank > 0:  # rank 0 alone holds the whole state
            assert kept[0] == ({}, {})
        distributed.broadcast_object_list(kept)
        steps()
        once_more = weights(built)
        load_state(built, steps.optimizer, *kept[0])
        steps()
        found[strategy] = {
            "apart": apart(after, expected),
            "resumed_apart": apart(weights(built), once_more),
            "held_bytes": held_bytes(steps.wrapped, steps.optimizer),
            "composed": is_composed(steps.wrapped),
            "units": [unit.name for unit in units],
        }
        trace_steps(steps, 2, folder / strategy, rank)
    trace_ways(folder / "ways")
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
