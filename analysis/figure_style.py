"""Colours and style of all figures: same colour for the same thing in all of them."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by colour-blind readers, and in grey.
COLOURS = {
    "compute": "#0072B2",
    "exposed": "#D55E00",
    "overlapped": "#E69F00",
    "idle": "#BBBBBB",
    "host_to_device": "#CC79A7",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "optimizer": "#009E73",
    "single": "#555555",
    "dp": "#D55E00",
    "dp-host": "#D55E00",
    "ddp": "#0072B2",
    "transfer": "#009E73",
    "same_local_batch": "#CC79A7",
    "ideal_split": "#F0E442",
    "same_total": "#999999",
    "ring": "#56B4E9",
}
STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "font.size": 9.0,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "dpscope",
}


def new_figure(rows: int, width: float = 7.5, columns: int = 1, row_height: float = 0.34) -> tuple[Figure, list[Axes]]:
    """A figure as high as its rows need, with its axes side by side."""
    figure = Figure(figsize=(width, 1.5 + row_height * rows), layout="constrained")
    return figure, [figure.add_subplot(1, columns, index + 1) for index in range(columns)]
