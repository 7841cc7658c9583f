"""Curves of trainings: in TensorBoard while they run, through its own endpoints, and as figures."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpscope.analysis.figures.draw import TRAINING_FIGURES, caption_of, draw_training
from dpscope.analysis.figures.style import COLOURS
from dpscope.analysis.training.data import load_training
from dpscope.profiling.mirrors.tensorboard_mirror import training_events
from tests.helpers.tensorboard_pages import get, hparams, scalars, serving
from tests.helpers.trainings import plain_epochs, record, write_train_json

TAGS = {
    "loss/train", "loss/test", "accuracy_percent/train", "accuracy_percent/test", "learning_rate",
    "seconds/train_epoch", "seconds/evaluation", "seconds/trained",
}  # fmt: skip


@pytest.mark.process
def test_epochs_appear_while_the_training_goes_on(tmp_path: Path) -> None:
    """A server reads along: each epoch is there before the next one is written."""
    run = "training/ddp-d2-b16/seed0"
    epochs = [record(epoch=epoch, test_accuracy=50.0 + 10 * epoch) for epoch in (1, 2, 3)]
    events = training_events(tmp_path, None)
    events.write(epochs[:1])
    with serving(tmp_path / "tensorboard", tmp_path) as address:
        assert scalars(address, run, "accuracy_percent/test", 1)[0][1:] == [1, 60.0]
        tags = get(
            address, "data/plugin/scalars/tags", until=lambda found: set(found.get(run, ())) >= TAGS
        )
        assert set(tags[run]) == TAGS
        events.write(epochs[:2])
        assert scalars(address, run, "accuracy_percent/test", 2)[1] == [1_700_000_006.0, 2, 70.0]
        events.write(epochs)
        events.write([record("single-d1-b32")])
        assert [step for _, step, _ in scalars(address, run, "loss/test", 3)] == [1, 2, 3]
        assert scalars(address, "training/single-d1-b32/seed0", "seconds/trained", 1)[0][2] == 2.0
        events.close()
        sessions = hparams(address, count=2)
    assert {group["hparams"]["strategy"] for group in sessions} == {"ddp", "single"}
    (ddp,) = [group for group in sessions if group["hparams"]["strategy"] == "ddp"]
    metrics = {value["name"]["tag"]: value["value"] for value in ddp["metricValues"]}
    assert metrics["accuracy_percent/test"] == 80.0  # of the last epoch
    assert ddp["hparams"]["seed"] == 0


def drawn(tmp_path: Path) -> dict[str, Figure]:
    epochs: list[dict[str, object]] = []
    for seed in range(3):
        epochs += plain_epochs(
            "single", 1, seed, [80.0, 90.0 + seed], [4.0, 4.0], losses=[2.0, 0.1]
        )
        epochs += plain_epochs("ddp", 2, seed, [70.0, 90.0 + seed], [2.0, 3.0], losses=[2.0, 0.5])
    return draw_training(load_training(write_train_json(tmp_path, epochs)))


def points(line: Line2D) -> list[list[float]]:
    found: list[list[float]] = np.asarray(line.get_xydata()).tolist()
    return found


def test_figures_show_every_seed_thin_and_their_median_thick(tmp_path: Path) -> None:
    figures = drawn(tmp_path)
    assert list(figures) == [one.name for one in TRAINING_FIGURES]
    assert "Thin: one line per seed" in caption_of("training_loss", figures["training_loss"])
    by_epoch, by_time = figures["training_accuracy"].axes[2:]  # the lower row: test accuracy
    lines = [line for line in by_time.get_lines() if line.get_color() == COLOURS["ddp"]]
    assert len(lines) == 4
    (middle,) = [line for line in lines if line.get_label() == "ddp-d2"]
    assert middle.get_linewidth() > max(
        line.get_linewidth() for line in lines if line is not middle
    )
    # Epochs of 2 and 3 s end at 2 and 5 s; the median of 90, 91, 92 is 91.
    assert points(middle) == [[2.0, 70.0], [5.0, 91.0]]
    (single,) = [line for line in by_epoch.get_lines() if line.get_label() == "single-d1"]
    assert single.get_color() == COLOURS["single"]
    assert points(single) == [[1.0, 80.0], [2.0, 91.0]]

    for axes in figures["training_accuracy"].axes[::2]:
        assert all(tick == round(tick) for tick in axes.get_xticks()), "epochs are whole"
