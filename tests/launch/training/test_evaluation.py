"""Every sample is tested in one shard, and sums are weighted by samples."""

import pytest
import torch

from dpscope.launch.training.evaluation import LearningSums, shard


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
