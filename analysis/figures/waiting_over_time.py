"""The figure of a whole job: waiting by rank and time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpscope.analysis.figures.style import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_ROWS = 40  # of the figure's height
_HOUR_S = 7200.0  # from here on, times are in hours


@dataclass(frozen=True)
class WaitingOverTime:
    """Seconds that each rank (row) waited, and that the others waited for it, by part of the
    time.
    """

    ranks: Sequence[int]
    edges_s: npt.NDArray[np.float64]
    wait_s: npt.NDArray[np.float64]
    caused_s: npt.NDArray[np.float64]


def waiting_figure(source: WaitingOverTime) -> "Figure":
    """Two panels of ranks by time."""
    figure, axes = new_figure(min(len(source.ranks), _MOST_ROWS), columns=2, row_height=0.16)
    hours = source.edges_s[-1] >= _HOUR_S
    end = source.edges_s[-1] / (3600 if hours else 1)
    panels = (("waits [s]", source.wait_s), ("makes the others wait [s]", source.caused_s))
    for panel, (title, seconds) in zip(axes, panels, strict=True):
        image = panel.imshow(
            seconds,
            aspect="auto",
            interpolation="nearest",
            cmap="Blues",
            vmin=0.0,
            extent=(0.0, end, len(source.ranks) - 0.5, -0.5),
        )
        panel.grid(visible=False)
        panel.set_title(title)
        panel.set_xlabel("time [h]" if hours else "time [s]")
        places = np.unique(np.linspace(0, len(source.ranks) - 1, 9).astype(int))
        panel.set_yticks(places, [str(source.ranks[place]) for place in places])
        figure.colorbar(image, ax=panel, shrink=0.8)
    axes[0].set_ylabel("rank")
    return figure
