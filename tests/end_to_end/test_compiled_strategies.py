"""Every strategy compiled, on real gloo processes: the same training, graphs cut as they must be,
traces that are read right.

By torch.compile's backend aot_eager, which captures graphs and cuts them as inductor's does and
generates no code: that takes a compiler a minute.
"""

import inspect
import sys

import pytest
from torch.distributed._composable.replicate import replicate

from tests.end_to_end.strategy_job import Found, run_job

# Double precision: Linear(6, 420), two Linear(420, 420) and Linear(420, 3).
FIRST, WIDE, LAST = 6 * 420 + 420, 420 * 420 + 420, 3 * 420 + 3
GRADIENTS = 8 * (FIRST + 2 * WIDE + LAST)
PADDED_LAST = 4 * 420 + 4  # over two devices three rows are four
GATHERED = 2 * 8 * (FIRST + 2 * WIDE + PADDED_LAST)  # twice, for forward and backward
EXPECTED: dict[str, dict[str, int]] = {
    "ddp": {"all_reduce": GRADIENTS},
    "replicate": {"all_reduce": GRADIENTS},
    # by its hook in bf16
    "fsdp": {"all_gather": GATHERED, "reduce_scatter": 2 * (FIRST + 2 * WIDE + PADDED_LAST)},
}
# torch's older `replicate`, 2.8's among them, does not report its buckets to torch.compile: the
# graph stays whole.
CUTS = "_active_ddp_module" in inspect.getsource(sys.modules[replicate.__module__])
NAMES = [f"{layer}.{name}" for layer in ("0", "1.0", "2.0", "3") for name in ("weight", "bias")]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """One torchrun job of two processes: what it found, and its traces."""
    return run_job("compiled_strategies", 2, tmp_path_factory.mktemp("compiled"), EXPECTED)


def test_graphs_are_captured_once_cut_by_buckets_or_blocks_and_train_the_same(job: Found) -> None:
    found = job[0]
    counts = {name: (one["graphs"], one["parts"], one["late"]) for name, one in found.items()}
    assert counts == {
        "single": (1, 1, 0),
        # buckets close once they hold 1 MiB: the last two layers, the second, the first
        "ddp": (1, 3, 0),
        "replicate": (1, 2 if CUTS else 1, 0),  # DDP's own: 1 MiB, then 25 MiB
        "fsdp": (4, 4, 0),  # a graph for each block
    }
    assert all(one["seconds"] > 0 and one["apart"] < 1e-14 for one in found.values())
    prefixed = [f"module.{name}" for name in NAMES]
    names = {name: one["names"] for name, one in found.items()}
    assert names == {"single": NAMES, "ddp": prefixed, "replicate": NAMES, "fsdp": NAMES}


@pytest.mark.timed
@pytest.mark.parametrize("strategy", EXPECTED)
def test_compiled_steps_move_the_bytes_of_a_pocket_calculation_and_have_phases(
    job: Found, strategy: str
) -> None:
    analysis = job[1][strategy]
    moved = analysis.collectives.groupby(["rank", "step", "kind"])["bytes"].sum()
    assert moved.index.get_level_values("rank").nunique() == 2
    by_kind = {kind: set(sizes) for kind, sizes in moved.groupby("kind")}
    assert by_kind == {kind: {size} for kind, size in EXPECTED[strategy].items()}
    steps = analysis.steps
    assert len(steps) == 2 * 3  # two ranks, two requested steps and one more
    phases = steps[["forward_us", "backward_us", "optimizer_us"]]
    assert (phases > 0).to_numpy().all()
    assert (phases.sum(axis=1) <= steps["compute_us"] * 1.001).all()
    # in some step a process may be held up between its phases
    assert (phases.sum(axis=1) / steps["compute_us"]).median() >= 0.8
