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
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from dpscope.analysis.figures.style import COLOURS, WIDTH
from dpscope.analysis.training.data import TrainedCell, TrainingData
from dpscope.profiling.records.training import Epoch

SEED = "one seed"
"""The label of a thin line."""
_LINES = ("-", "--", "-.", ":")
# points; how much wider a line is than the next, and how often
_WIDTH, _WIDER, _MOST_WIDER = 1.3, 1.0, 3
_DECADE = 10.0
_THIN = 0.6
_FEW_EPOCHS = 10


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
    trainings = [training for cell in data.trained for training in cell.trainings]
    if sum(len(training.epochs) for training in trainings) < 2:
        return None
    count = len(panels)
    height = 2.6 * count + 1.0
    figure = Figure(figsize=(WIDTH, height))
    styles = _styles(data.trained)
    for row, (label, value) in enumerate(panels.items()):
        left = figure.add_subplot(count, 2, 2 * row + 1)
        right = figure.add_subplot(count, 2, 2 * row + 2, sharey=left)
        drawn = []
        for cell in data.trained:
            values = [_values(training.epochs, value) for training in cell.trainings]
            drawn += [one for seed in values for one in seed if one > 0]
            epochs = [_numbers(training.epochs) for training in cell.trainings]
            times_s = [list(accumulate(training.train_s)) for training in cell.trainings]
            style = styles[cell.name]
            _draw_cell(left, cell.name, epochs, values, style)
            _draw_cell(right, cell.name, times_s, values, style)
        left.set_ylabel(label)
        left.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        smallest = min(drawn, default=1.0)
        largest = max(drawn, default=1.0)
        if "loss" in label and largest >= _DECADE * smallest:
            _make_logarithmic(left)
    if len(trainings) > len(data.trained):
        # of whatever cell
        left.plot([], [], color="black", linewidth=_THIN, label=SEED)
    left.set_xlabel("epochs trained")
    right.set_xlabel("training time [s], without evaluation")
    return figure


def _make_logarithmic(axes: Axes) -> None:
    """The values, labelled by plain numbers: 0.3, 1, 3, ..."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _values(epochs: Sequence[Epoch], value: _Value) -> list[float]:
    """The value of each epoch; NaN where it is missing."""
    values: list[float] = np.array([value(epoch) for epoch in epochs], dtype=float).tolist()
    return values


def _numbers(epochs: Sequence[Epoch]) -> list[float]:
    """The numbers of epochs: others' may begin at 0, continued ones begin later."""
    return [float(max(number, epoch.epoch)) for number, epoch in enumerate(epochs, 1)]


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
    """Each seed, and the median over the seeds up to the shortest training, with markers where a
    line would hide how few epochs there are.
    """
    thin = {**style, "linewidth": _THIN, "alpha": 0.5}
    if len(values) > 1:
        for place, value in zip(places, values, strict=True):
            axes.plot(place, value, **thin)
    shortest = min(map(len, values))
    marker = "o" if shortest <= _FEW_EPOCHS else ""
    across = _medians(places)
    up = _medians(values)
    axes.plot(across, up, label=name, marker=marker, **style)


def _medians(seeds: list[list[float]]) -> list[float]:
    """Of each epoch that all seeds have."""
    return [median(epoch) for epoch in zip(*seeds, strict=False)]
