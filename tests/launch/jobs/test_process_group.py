"""The limits of collectives: of every group of a process, not of the default one alone."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
from torch import distributed, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from dpscope.launch.jobs import process_group
from dpscope.launch.jobs.process_group import join_process_group, limit_collectives
from dpscope.launch.workload.strategies import shard_model
from dpscope.profiling.records.run import Cell

GPU = torch.device("cuda", 0)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[tuple[int, ...], float]]:
    """The limit in seconds of each group, by its ranks; this process is rank 0 of four."""
    seen: dict[tuple[int, ...], float] = {}

    def set_timeout(limit: timedelta, group: distributed.ProcessGroup) -> None:
        seen[tuple(distributed.get_process_group_ranks(group))] = limit.total_seconds()

    def init(*_: object, **__: object) -> None:
        fake("fake", rank=0, world_size=4, store=FakeStore())

    fake = distributed.init_process_group
    monkeypatch.setattr(distributed, "init_process_group", init)
    monkeypatch.setattr(distributed, "set_timeout", set_timeout, raising=False)
    monkeypatch.setattr(process_group._Limit, "of_collectives", None)
    yield seen
    distributed.destroy_process_group()


def test_the_groups_of_a_mesh_have_the_jobs_limits(limits: dict[tuple[int, ...], float]) -> None:
    """HSDP on four devices of two nodes: shards in (0, 1), replicas in (0, 2)."""
    join_process_group(torch.device("cpu"), 900.0)
    assert limits == {}  # the default group has it from the start
    shard_model(nn.Linear(4, 4), Cell("hsdp", 4, 8, nodes=2), torch.device("cpu"))
    groups = {(0, 1, 2, 3), (0, 1), (0, 2)}
    assert limits == dict.fromkeys(groups, 900.0)
    limit_collectives(torch.device("cpu"), 900.0)  # gloo's ranks wait as long as the job may take
    assert limits == dict.fromkeys(groups, 900.0)
    limit_collectives(GPU, 900.0)
    assert limits == dict.fromkeys(groups, 120.0)


def test_no_limit_is_given_without_a_group(limits: dict[tuple[int, ...], float]) -> None:
    limit_collectives(GPU, 900.0)
    assert limits == {}
    join_process_group(torch.device("cpu"), 50.0)
    limit_collectives(GPU, 50.0)  # 80% of a job that may take less
    assert limits == {(0, 1, 2, 3): 40.0}
