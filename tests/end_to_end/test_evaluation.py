"""Testing in shards, on two processes, gives what testing all at once gives."""

import sys
from pathlib import Path

import pytest
import torch

from tests.helpers.paths import USER_MODELS
from tests.helpers.ranks import run_ranks


def test_uneven_shards_add_up_to_the_whole(tmp_path: Path) -> None:
    saved = tmp_path / "found.pt"
    run_ranks([sys.executable, str(USER_MODELS / "sharded_test.py"), str(saved)], 2)
    loss, accuracy, samples, whole_loss, right, buffers_kept = torch.load(saved)
    assert samples == 11
    assert loss == pytest.approx(whole_loss, rel=1e-6)
    assert accuracy == pytest.approx(100 * right / 11)
    assert buffers_kept
