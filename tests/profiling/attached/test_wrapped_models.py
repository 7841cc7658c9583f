"""Which strategy a script's wrapped models are told as: torch's own wrappers, over four ranks that are not there."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import distributed, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from dpscope.profiling.attached.wrapped_models import Constructed, tell_strategy

RANKS = 4


@pytest.fixture(scope="module", autouse=True)
def _four_ranks() -> Iterator[None]:
    distributed.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    yield
    distributed.destroy_process_group()


def told(model: nn.Module) -> str:
    return tell_strategy([model], list(model.parameters()), Constructed(), RANKS).strategy


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))


def mesh(*sizes: int) -> DeviceMesh:
    return init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard")[-len(sizes) :])


@pytest.mark.parametrize(
    ("wrap", "over", "strategy"),
    [
        (fully_shard, (4,), "fsdp"),
        (fully_shard, (2, 2), "hsdp"),
        (fully_shard, (1, 4), "fsdp"),  # one group alone copies nothing
        (replicate, (4,), "replicate"),
    ],
)
def test_what_is_composed_is_told_by_its_class_and_its_mesh(
    wrap: Callable[..., object], over: tuple[int, ...], strategy: str
) -> None:
    model = net()
    wrap(model[0], mesh=mesh(*over))
    wrap(model, mesh=mesh(*over))
    assert told(model) == strategy
    assert told(nn.Sequential(model)) == strategy  # a part of what the script calls


@pytest.mark.parametrize(
    ("sharding", "strategy"),
    [
        (ShardingStrategy.FULL_SHARD, "fsdp"),
        (ShardingStrategy.SHARD_GRAD_OP, "fsdp-no-reshard"),
        (ShardingStrategy.HYBRID_SHARD, "hsdp"),
        (ShardingStrategy._HYBRID_SHARD_ZERO2, "hsdp"),
    ],
)
def test_the_older_fsdp_says_how_it_shards(sharding: ShardingStrategy, strategy: str) -> None:
    over = mesh(2, 2) if "HYBRID" in sharding.name else mesh(4)
    cpu = torch.device("cpu")
    model = FullyShardedDataParallel(net(), sharding_strategy=sharding, device_id=cpu, device_mesh=over)
    assert told(model) == strategy


def test_layers_whose_tensors_are_cut_by_columns_are_not_called_groups() -> None:
    """Tensor parallelism cuts some tensors along the dimension along which it copies others."""
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model, over = net(), mesh(2, 2)
    parallelize_module(model, over["shard"], {"0": ColwiseParallel()})
    fully_shard(model, mesh=over["replicate"])
    assert told(model) == "fsdp"
