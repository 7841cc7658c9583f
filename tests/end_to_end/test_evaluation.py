"""Testing in shards, on two processes, gives what testing all at once gives."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.helpers.paths import USER_MODELS


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
