"""Unchanged trainings by Accelerate, Lightning and Hugging Face's Trainer, which `make frameworks`
installs.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from dpscope.analysis.runs.run_data import load_run
from tests.helpers.paths import USER_MODELS
from tests.helpers.ranks import ended_ranks

# Two linear layers, of 16 x 64 and 64 x 4. GPT-2 of 2 layers and width 32 with 64 tokens and 16
# positions, its head tied: 80 rows of embeddings; a layer 12 x 32^2 + 13 x 32; a last norm of 2 x
# 32.
LINEAR_BYTES = 4 * (16 * 64 + 64 + 64 * 4 + 4)
GPT_BYTES = 4 * (80 * 32 + 2 * (12 * 32**2 + 13 * 32) + 2 * 32)


def attach_to(package: str, out: Path) -> list[str]:
    if find_spec(package) is None or find_spec("accelerate") is None:
        pytest.skip(f"{package} is not installed; make frameworks installs it")
    script = USER_MODELS / "frameworks" / f"with_{package}.py"
    windows = ("--warmup", "5", "--steps", "8", "--traced-steps", "1")
    return [sys.executable, "-m", "dpscope.launch.attach", "--out", str(out), *windows, str(script)]


@pytest.mark.process
@pytest.mark.parametrize(
    ("package", "cell", "gradient_bytes"),
    [
        ("accelerate", "ddp-d2-b8-accumulate-2", LINEAR_BYTES),  # two batches of four
        ("lightning", "ddp-d2-b8", LINEAR_BYTES),
        ("transformers", "ddp-d2-b4-find_unused_parameters-true", GPT_BYTES),
    ],
)
def test_a_framework_s_training_is_measured_unchanged(
    tmp_path: Path, package: str, cell: str, gradient_bytes: int
) -> None:
    for rank, (status, output, errors) in enumerate(
        ended_ranks(attach_to(package, tmp_path / "run"), 2)
    ):
        assert status == 0, errors
        assert f"rank {rank} trained" in output
        assert "dpscope:" not in errors
    (data,) = load_run(tmp_path / "run").measured
    assert data.cell.name == cell
    assert {rank.model.gradient_bytes for _, rank in data.ranks} == {gradient_bytes}
    reduced = data.collectives[data.collectives["kind"] == "all_reduce"]
    # Where DDP looks for unused parameters it also reduces which were used: 4 bytes each, here of 2
    # + 2 x 12 + 2.
    used = 4 * 28 if "unused" in cell else 0
    assert set(reduced.groupby(["rank", "step"])["bytes"].sum()) == {gradient_bytes + used}
    assert [check.buckets_equal for check in data.counter_checks] == [True, True]


@pytest.mark.process
def test_ranks_that_lightning_starts_itself_run_without_dpscope(tmp_path: Path) -> None:
    attach = attach_to("lightning", tmp_path / "run")
    ranks = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    kept = {name: value for name, value in os.environ.items() if name not in ranks}
    ended = subprocess.run(
        [*attach, "2"], env=kept, capture_output=True, text=True, check=False, timeout=200
    )
    assert ended.returncode == 1
    assert "dpscope: nothing is measured: 1 of 2 processes run without dpscope" in ended.stderr
