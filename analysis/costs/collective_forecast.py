"""Times of collectives on counts that were not measured, as `dpscope calibrate --predict` prints
them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dpscope.analysis.costs.cost import Place
from dpscope.analysis.costs.costs import Costs
from dpscope.analysis.costs.other_counts import medians
from dpscope.analysis.costs.requested_places import Requested
from dpscope.analysis.stats.left_out import WIDEST_BAND, too_wide
from dpscope.analysis.stats.missing import Missing
from dpscope.profiling.records.calibration import Calibration

MEASURED = "measured"  # the source of a time of a measured count and size
_TOO_NOISY = (
    f"not known: the band would be wider than {WIDEST_BAND:g} times either way; calibrate again "
    "while no other program runs"
)
LARGEST_NODE = 16  # devices; beyond, one node's measurements are not extrapolated


@dataclass(frozen=True)
class CollectiveForecast:
    """One collective, count and size; `time_us` is None if unknown, with the reason in `source`.

    A measured time has no band: `low_us` and `high_us` are those of a prediction.
    """

    collective: str
    devices: int
    nodes: int
    size_bytes: int
    time_us: float | None
    low_us: float | None
    high_us: float | None
    source: str
    # times longer or shorter, of the band that is too wide for a time
    too_wide: float | None = None

    @property
    def basis(self) -> Literal["measured", "predicted", "not known"]:
        """What the time is."""
        if self.time_us is None:
            return "not known"
        return "measured" if self.source == MEASURED else "predicted"


def forecasts(calibration: Calibration, requested: Sequence[Requested]) -> list[CollectiveForecast]:
    """All collectives of a calibration at its sizes on these device counts or layouts, by
    collective, count and size.

    A full node has the most devices that were measured on one; with only one node measured, at
    least LARGEST_NODE.
    """
    every, costs = medians(calibration), Costs(calibration=calibration)
    layouts = [point.layout for points in every.values() for point in points]
    per_node = max((-(-devices // nodes) for nodes, devices in layouts), default=1)
    if all(nodes == 1 for nodes, _ in layouts):
        per_node = max(LARGEST_NODE, per_node)
    places = []
    for devices, nodes in requested:
        on_each = per_node if nodes is None else devices // nodes
        places.append(Place(devices, min(on_each, devices)))
    rows = []
    for kind, points in every.items():
        measured_us = {(point.layout, point.size_bytes): point.time_us for point in points}
        sizes = sorted({point.size_bytes for point in points})
        for place in places:
            for size in sizes:
                time_us = measured_us.get((place.layout, size))
                rows.append(_forecast(costs, kind, place, size, time_us))
    return rows


def _forecast(
    costs: Costs, kind: str, place: Place, size: int, measured_us: float | None
) -> CollectiveForecast:
    row = (kind, place.devices, place.nodes, size)
    if measured_us is not None:
        return CollectiveForecast(*row, measured_us, None, None, MEASURED)
    try:
        cost = costs.cost(kind, size, place)
    except Missing as unknown:
        return CollectiveForecast(*row, None, None, None, f"not known: {unknown}")
    if too_wide(cost.above) is not None:
        return CollectiveForecast(*row, None, None, None, _TOO_NOISY, math.exp(cost.above))
    words = cost.words
    if place.nodes == 1:
        words += "; assumed: all on one node"
    return CollectiveForecast(*row, cost.total_us, cost.low_us, cost.high_us, words)
