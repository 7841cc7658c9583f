"""Testing in shards gives what testing all at once gives, and sums are exact."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dpscope.launch.training.evaluation import LearningSums, shard
from tests.helpers.paths import USER_MODELS


@pytest.mark.parametrize(("samples", "processes"), [(357, 2), (10, 3), (2, 4), (8, 8)])
def test_every_sample_is_in_one_shard(samples: int, processes: int) -> None:
    shards = [shard(samples, rank, processes) for rank in range(processes)]
    assert [sample for one in shards for sample in one] == list(range(samples))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_sums_are_weighted_by_samples() -> None:
    sums = LearningSums(torch.device("cpu"))
    logits = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]])
    sums.add(logits, torch.tensor([0, 1, 1]), torch.tensor(0.5))  # two of three right
    sums.add(logits[:1], torch.tensor([1]), torch.tensor(2.5))
    found = sums.over_all_processes()
    assert found.samples == 4
    assert found.loss == pytest.approx((3 * 0.5 + 2.5) / 4)
    assert found.accuracy == pytest.approx(100 * 2 / 4)
    sums.add(logits[:1], torch.tensor([1]), torch.tensor(float("nan")))
    assert sums.over_all_processes().loss is None
    sums.clear()
    assert sums.values.tolist() == [0, 0, 0]


def test_uneven_shards_add_up_to_the_whole(tmp_path: Path) -> None:
    saved = tmp_path / "found.pt"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run(
        [*torchrun, str(USER_MODELS / "sharded_test.py"), str(saved)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
        check=True,
        capture_output=True,
    )
    loss, accuracy, samples, whole_loss, right, buffers_kept = torch.load(saved)
    assert samples == 11
    assert loss == pytest.approx(whole_loss, rel=1e-6)
    assert accuracy == pytest.approx(100 * right / 11)
    assert buffers_kept
