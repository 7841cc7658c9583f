"""Curves of trainings: loss and accuracy by epoch and by training time, seeds thin, their median thick."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dpscope.analysis.figures.style import COLOURS, STYLE, shared_legend
from dpscope.analysis.training.data import Epoch, TrainedCell, Training, TrainingData

TRAINING_CAPTIONS = {
    "training_accuracy": "Accuracy by epoch and by training time (evaluation apart). Thin: one line per seed; thick: their "
    "median, in different widths so that coinciding lines are all visible. A faster strategy is as good only if its line "
    "also ends as high.",
    "training_loss": "Loss by epoch and by training time (evaluation apart). Thin: one line per seed; thick: their median. "
    "The training loss is the one minimised, the test loss plain cross-entropy.",
}
_LINES = ("-", "--", "-.", ":")  # a strategy's cells, in order
_WIDTH, _WIDER, _MOST_WIDER = 1.3, 1.0, 3  # points; how much wider a line is than the next, and how often
_DECADE = 10.0


@dataclass(frozen=True)
class _Panel:
    """One curve: a value of each epoch, and its axis."""

    label: str
    value: Callable[[Epoch], float | None]


_ACCURACY = (
    _Panel("training accuracy [%]", lambda epoch: epoch.train_accuracy),
    _Panel("test accuracy [%]", lambda epoch: epoch.test_accuracy),
)
_LOSS = (_Panel("training loss", lambda epoch: epoch.train_loss), _Panel("test loss", lambda epoch: epoch.test_loss))


def training_figures(data: TrainingData) -> dict[str, Figure]:
    """Accuracy and loss by file name; the loss on a logarithmic axis where it spans a decade."""
    with mpl.rc_context(STYLE):
        return {
            "training_accuracy": _curves(data, _ACCURACY, "Accuracy while training"),
            "training_loss": _curves(data, _LOSS, "Loss while training"),
        }


def _curves(data: TrainingData, panels: Sequence[_Panel], title: str) -> Figure:
    """A row per panel: by epoch on the left, by training time on the right."""
    figure = Figure(figsize=(8.5, 2.8 * len(panels) + 1.0), layout="constrained")
    styles = _styles(data.trained)
    for row, panel in enumerate(panels):
        left = figure.add_subplot(len(panels), 2, 2 * row + 1)
        right = figure.add_subplot(len(panels), 2, 2 * row + 2, sharey=left)
        for cell in data.trained:
            _draw_cell(left, cell, panel, styles[cell.name], _epochs)
            _draw_cell(right, cell, panel, styles[cell.name], _trained_s)
        left.set_ylabel(panel.label)
        left.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if "loss" in panel.label and _spans_decade(data, panel):
            left.set_yscale("log")
    left.set_xlabel("epochs trained")
    right.set_xlabel("training time [s], evaluation apart")
    shared_legend(figure, [left], 3)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def _styles(cells: Sequence[TrainedCell]) -> dict[str, dict[str, Any]]:
    """A colour for each strategy and a line style for each of its cells; later ones are thinner, so that none is hidden."""
    drawn: Counter[str] = Counter()
    styles: dict[str, dict[str, Any]] = {}
    for later, cell in zip(reversed(range(len(cells))), cells, strict=True):
        line = _LINES[drawn[cell.strategy] % len(_LINES)]
        width = _WIDTH + _WIDER * min(later, _MOST_WIDER)
        styles[cell.name] = {"color": COLOURS[cell.strategy], "linestyle": line, "linewidth": width}
        drawn[cell.strategy] += 1
    return styles


def _draw_cell(
    axes: Axes, cell: TrainedCell, panel: _Panel, style: dict[str, Any], place: Callable[[Training], list[float]]
) -> None:
    """Each seed, and the median over the seeds up to the shortest training."""
    places = [place(training) for training in cell.trainings]
    values = [[_number(panel.value(epoch)) for epoch in training.epochs] for training in cell.trainings]
    if len(values) > 1:
        for across, up in zip(places, values, strict=True):
            axes.plot(across, up, **{**style, "linewidth": 0.6, "alpha": 0.5})
    axes.plot(_middle(places), _middle(values), label=cell.name, marker=_marker(values), **style)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _middle(series: Sequence[Sequence[float]]) -> list[float]:
    """Median over seeds, epoch by epoch, up to the shortest training."""
    return [median(values) for values in zip(*series, strict=False)]


def _marker(values: Sequence[Sequence[float]]) -> str:
    """A marker for lines of one point, which would otherwise be invisible."""
    return "o" if min(map(len, values)) == 1 else ""


def _epochs(training: Training) -> list[float]:
    return [float(index + 1) for index in range(len(training.epochs))]


def _trained_s(training: Training) -> list[float]:
    return list(accumulate(training.train_s))


def _spans_decade(data: TrainingData, panel: _Panel) -> bool:
    values = [
        value
        for cell in data.trained
        for training in cell.trainings
        for epoch in training.epochs
        if (value := panel.value(epoch)) is not None and value > 0
    ]
    return bool(values) and max(values) >= _DECADE * min(values)
