"""The strategy detected from torch's wrappers, in a fake process group of four ranks."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import distributed, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from dpscope.profiling.attached.wrapped_models import WrapperLog, detect_strategy

RANKS = 4


@pytest.fixture(scope="module", autouse=True)
def _four_ranks() -> Iterator[None]:
    distributed.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    yield
    distributed.destroy_process_group()


def strategy_of(model: nn.Module) -> str:
    log = WrapperLog()
    log.stop()
    return detect_strategy([model], list(model.parameters()), log, RANKS).strategy


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))


def mesh(*sizes: int) -> DeviceMesh:
    return init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard")[-len(sizes) :])


@pytest.mark.parametrize(
    ("wrap", "over", "strategy"),
    [
        (fully_shard, (4,), "fsdp"),
        (fully_shard, (2, 2), "hsdp"),
        (fully_shard, (1, 4), "fsdp"),  # one group: nothing is replicated
        (replicate, (4,), "replicate"),
    ],
)
def test_fully_shard_is_detected_by_class_and_mesh(
    wrap: Callable[..., object], over: tuple[int, ...], strategy: str
) -> None:
    model = net()
    wrap(model[0], mesh=mesh(*over))
    wrap(model, mesh=mesh(*over))
    assert strategy_of(model) == strategy
    assert strategy_of(nn.Sequential(model)) == strategy  # inside the module that the script calls


@pytest.mark.parametrize(
    ("sharding", "strategy"),
    [
        (ShardingStrategy.FULL_SHARD, "fsdp"),
        (ShardingStrategy.SHARD_GRAD_OP, "fsdp-no-reshard"),
        (ShardingStrategy.HYBRID_SHARD, "hsdp"),
        (ShardingStrategy._HYBRID_SHARD_ZERO2, "hsdp"),
    ],
)
def test_fully_sharded_data_parallel_is_detected_by_its_sharding(
    sharding: ShardingStrategy, strategy: str
) -> None:
    over = mesh(2, 2) if "HYBRID" in sharding.name else mesh(4)
    cpu = torch.device("cpu")
    model = FullyShardedDataParallel(
        net(), sharding_strategy=sharding, device_id=cpu, device_mesh=over
    )
    assert strategy_of(model) == strategy


def test_tensor_parallel_layers_are_not_hsdp() -> None:
    """Tensor parallelism shards some tensors along the dimension along which it replicates
    others.
    """
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model, over = net(), mesh(2, 2)
    parallelize_module(model, over["shard"], {"0": ColwiseParallel()})
    fully_shard(model, mesh=over["replicate"])
    assert strategy_of(model) == "fsdp"


def test_a_wrapper_may_be_constructed_with_keyword_arguments() -> None:
    """Lightning passes `module` by name."""
    log = WrapperLog()
    try:
        wrapped = nn.DataParallel(module=net(), device_ids=None)
    finally:
        log.stop()
    assert set(log.modules) == {wrapped}
    nn.DataParallel(module=net())
    assert set(log.modules) == {wrapped}
