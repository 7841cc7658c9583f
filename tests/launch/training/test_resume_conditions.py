"""Checkpoints that a training accepts, and the differences that it reports. No process is started."""

from pathlib import Path
from typing import Any

import pytest

from dpscope.launch.training.checkpoints import check_same_learning, what_differs
from dpscope.profiling.records.run import Cell, CellOptions
from dpscope.profiling.records.settings import with_settings
from dpscope.profiling.records.training import CheckpointDescription
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.trainings import checkpoint

PATH = Path("last.pt")
SINGLE = Cell(strategy="single", devices=1, batch_size=8)
DDP = Cell(strategy="ddp", devices=2, batch_size=4)
CONFIG = checkpoint(DDP).config


def differences(had: CheckpointDescription, cell: Cell, threads: int = 1) -> str:
    return " ".join(finding.message for finding in what_differs(had, cell, "cpu", threads))


def test_from_one_device_to_two() -> None:
    assert what_differs(checkpoint(DDP), DDP, "cpu", 1) == ()
    # 65 samples on two devices are 33 each: one is repeated.
    assert differences(checkpoint(SINGLE), DDP) == (
        "ddp-d2-b4 with seed 0 goes on from the end of epoch 2 of single-d1-b8: gradients are summed in another order, "
        "so results differ in their last digits from this step on; the global batches stay the same, divided among "
        "other devices; batch norm, if the model has it, takes its statistics over 4 samples instead of 8; "
        "an epoch repeats 1 sample instead of 0; "
        "rank 1 had no random numbers (of dropout) yet and draw new ones from the seed."
    )


def test_from_many_processes_to_one_with_another_batch() -> None:
    had = checkpoint(Cell(strategy="ddp", devices=4, batch_size=4), device_type="cuda", steps_per_epoch=5)
    message = differences(had, Cell(strategy="dp-host", devices=2, batch_size=4))
    # ceil(65 / 16) = 5 steps, ceil(65 / 8) = 9; 3 samples fill 4 shares of 17, 1 fills 2 of 33
    assert "a step trains on 8 samples instead of 16, an epoch has 9 steps instead of 5, and learning rates" in message
    assert "batch norm" not in message
    assert "an epoch repeats 1 sample instead of 3;" in message
    assert "the random numbers (of dropout) of ranks 1 to 3 come to an end;" in message
    assert message.endswith("it computes on cpu instead of cuda.")


def test_variants_and_threads() -> None:
    hook = Cell(strategy="ddp", devices=2, batch_size=4, options=CellOptions(comm_hook="fp16", accumulate=2))
    message = differences(checkpoint(DDP), hook, threads=3)
    assert "batch norm, if the model has it, takes its statistics over 2 samples instead of 4;" in message
    assert "the variant is hook-fp16-accumulate-2 instead of the default;" in message
    assert message.endswith("a process computes with 3 threads instead of 1, which sum in another order.")
    assert "gradients are summed" not in message


@pytest.mark.parametrize(
    ("change", "settings"),
    [
        ({"data": "fake"}, "--data synthetic, not fake"),
        ({"learning_rate": 0.2}, r"--lr 0\.1, not 0\.2"),
        ({"milestones": (2, 3)}, r"--milestones \(none\), not 2,3"),
        ({"label_smoothing": 0.1}, "--label-smoothing"),
    ],
)
def test_different_training_settings_are_named(change: dict[str, Any], settings: str) -> None:
    refused(f"last.pt was trained with {settings}", checkpoint(DDP), config=with_settings(CONFIG, **change))


def refused(expected: str, had: CheckpointDescription, cell: Cell = DDP, seed: int = 0, config: Any = CONFIG) -> None:
    with pytest.raises(DpscopeError, match=expected):
        check_same_learning(PATH, had, config, cell, seed)


def test_a_checkpoint_at_another_position_is_refused() -> None:
    config = with_settings(CONFIG, workers=7, epochs=9, eval_batch_size=3)  # loading may change and epochs may be added
    check_same_learning(PATH, checkpoint(DDP), config, SINGLE, seed=0)
    check_same_learning(PATH, checkpoint(DDP, epochs=4), CONFIG, DDP, seed=0)
    refused("--seeds 0, not 1", checkpoint(DDP), seed=1)
    refused(r"--epochs 4: last\.pt is at epoch 5, after 3 steps already", checkpoint(DDP, epochs=4, step=3))
    other_batch = Cell(strategy="ddp", devices=2, batch_size=8)
    refused(r"after 3 steps, in steps of 8 samples, and ddp-d2-b8 takes 16", checkpoint(DDP, step=3), other_batch)
    check_same_learning(PATH, checkpoint(DDP), CONFIG, other_batch, seed=0)
