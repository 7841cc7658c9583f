"""Curves of trainings: loss and accuracy by epoch and by training time, seeds thin, their median
thick.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from statistics import median
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dpscope.analysis.figures.style import COLOURS, STYLE, headline, shared_legend
from dpscope.analysis.training.data import Epoch, TrainedCell, TrainingData

TRAINING_CAPTIONS = {
    "training_accuracy": "Accuracy by epoch and by training time (evaluation apart). Thin: one line per seed, of several; thick: "
    "their median, in different widths so that coinciding lines are all visible. A faster strategy is as good only if its line "
    "also ends as high.",
    "training_loss": "Loss by epoch and by training time (evaluation apart). Thin: one line per seed, of several; thick: their "
    "median. The training loss is the one minimised, the test loss the same without label smoothing.",
}
_LINES = ("-", "--", "-.", ":")  # a strategy's cells, in order
# points; how much wider a line is than the next, and how often
_WIDTH, _WIDER, _MOST_WIDER = 1.3, 1.0, 3
_DECADE = 10.0


_Value = Callable[[Epoch], float | None]
# by figure and the label of a panel's axis, a value of each epoch
_PANELS: dict[str, dict[str, _Value]] = {
    "accuracy": {
        "training accuracy [%]": lambda epoch: epoch.train_accuracy,
        "test accuracy [%]": lambda epoch: epoch.test_accuracy,
    },
    "loss": {
        "training loss": lambda epoch: epoch.train_loss,
        "test loss": lambda epoch: epoch.test_loss,
    },
}


def training_figures(data: TrainingData) -> dict[str, Figure]:
    """Accuracy and loss by file name; the loss on a logarithmic axis where it spans a decade."""
    with mpl.rc_context(STYLE):
        return {
            f"training_{name}": _curves(data, panels, f"{name.capitalize()} while training")
            for name, panels in _PANELS.items()
        }


def _curves(data: TrainingData, panels: Mapping[str, _Value], title: str) -> Figure:
    """A row per panel: by epoch on the left, by training time on the right."""
    figure = Figure(figsize=(8.5, 2.8 * len(panels) + 1.0), layout="constrained")
    styles = _styles(data.trained)
    for row, (label, value) in enumerate(panels.items()):
        left = figure.add_subplot(len(panels), 2, 2 * row + 1)
        right = figure.add_subplot(len(panels), 2, 2 * row + 2, sharey=left)
        drawn = []
        for cell in data.trained:
            known = [[value(epoch) for epoch in training.epochs] for training in cell.trainings]
            values = [[math.nan if one is None else one for one in seed] for seed in known]
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
    shared_legend(figure, [left], 3)
    headline(figure, title)
    return figure


def _styles(cells: Sequence[TrainedCell]) -> dict[str, dict[str, Any]]:
    """A colour for each strategy and a line style for each of its cells; later ones are thinner, so
    that none is hidden.
    """
    drawn: Counter[str] = Counter()
    styles: dict[str, dict[str, Any]] = {}
    for later, cell in zip(reversed(range(len(cells))), cells, strict=True):
        line = _LINES[drawn[cell.strategy] % len(_LINES)]
        width = _WIDTH + _WIDER * min(later, _MOST_WIDER)
        styles[cell.name] = {"color": COLOURS[cell.strategy], "linestyle": line, "linewidth": width}
        drawn[cell.strategy] += 1
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
            axes.plot(across, up, **{**style, "linewidth": 0.6, "alpha": 0.5})
    middle = (
        [median(seeds) for seeds in zip(*series, strict=False)] for series in (places, values)
    )
    axes.plot(*middle, label=name, marker="o" if min(map(len, values)) == 1 else "", **style)
