"""Curves of trainings: loss and accuracy by epoch and by training time, seeds thin, their median
thick.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, cycle
from statistics import median
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dpscope.analysis.figures.style import COLOURS, WIDTH
from dpscope.analysis.training.data import TrainedCell, TrainingData
from dpscope.profiling.records.training import Epoch

SEED = "one seed"
"""The label of a thin line."""
_LINES = ("-", "--", "-.", ":")
# points; how much wider a line is than the next, and how often
_WIDTH, _WIDER, _MOST_WIDER = 1.3, 1.0, 3
_DECADE = 10.0


_Value = Callable[[Epoch], float | None]


def accuracy_curves(data: TrainingData) -> Figure | None:
    """Accuracy on both data sets, by epoch and by training time."""
    return _curves(
        data,
        {
            "training accuracy [%]": lambda epoch: epoch.train_accuracy,
            "test accuracy [%]": lambda epoch: epoch.test_accuracy,
        },
    )


def loss_curves(data: TrainingData) -> Figure | None:
    """Loss on both data sets; on a logarithmic axis where it spans a decade."""
    return _curves(
        data,
        {
            "training loss": lambda epoch: epoch.train_loss,
            "test loss": lambda epoch: epoch.test_loss,
        },
    )


def _curves(data: TrainingData, panels: Mapping[str, _Value]) -> Figure | None:
    """A row per panel, which is a value of each epoch: by epoch on the left, by training time on
    the right; None for a single epoch of a single training.
    """
    if sum(len(one.epochs) for cell in data.trained for one in cell.trainings) < 2:
        return None
    height = 2.6 * len(panels) + 1.0
    figure = Figure(figsize=(WIDTH, height))
    styles = _styles(data.trained)
    for row, (label, value) in enumerate(panels.items()):
        left = figure.add_subplot(len(panels), 2, 2 * row + 1)
        right = figure.add_subplot(len(panels), 2, 2 * row + 2, sharey=left)
        drawn = []
        for cell in data.trained:
            values = [
                np.array([value(epoch) for epoch in training.epochs], dtype=float).tolist()
                for training in cell.trainings
            ]
            drawn += [one for seed in values for one in seed if one > 0]
            epochs = [  # others' may begin at 0, continued ones begin later
                [float(max(number, one.epoch)) for number, one in enumerate(training.epochs, 1)]
                for training in cell.trainings
            ]
            times_s = [list(accumulate(training.train_s)) for training in cell.trainings]
            _draw_cell(left, cell.name, epochs, values, styles[cell.name])
            _draw_cell(right, cell.name, times_s, values, styles[cell.name])
        left.set_ylabel(label)
        left.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if "loss" in label and drawn and max(drawn) >= _DECADE * min(drawn):
            left.set_yscale("log")
    left.set_xlabel("epochs trained")
    right.set_xlabel("training time [s], evaluation apart")
    return figure


def _styles(cells: Sequence[TrainedCell]) -> dict[str, dict[str, Any]]:
    """The colour of each cell's strategy, and a line style; later cells are thinner, so that none
    is hidden.
    """
    styles: dict[str, dict[str, Any]] = {}
    for index, (cell, line) in enumerate(zip(cells, cycle(_LINES), strict=False)):
        later = len(cells) - 1 - index
        width = _WIDTH + _WIDER * min(later, _MOST_WIDER)
        styles[cell.name] = {"color": COLOURS[cell.strategy], "linestyle": line, "linewidth": width}
    return styles


def _draw_cell(
    axes: Axes,
    name: str,
    places: list[list[float]],
    values: list[list[float]],
    style: dict[str, Any],
) -> None:
    """Each seed, and the median over the seeds up to the shortest training, which is a marker where
    that is one epoch.
    """
    if len(values) > 1:
        for across, up in zip(places, values, strict=True):
            axes.plot(across, up, **{**style, "linewidth": 0.6, "alpha": 0.5}, label=SEED)
    middle = (
        [median(seeds) for seeds in zip(*series, strict=False)] for series in (places, values)
    )
    axes.plot(*middle, label=name, marker="o" if min(map(len, values)) == 1 else "", **style)
