"""Bus bandwidth by message size, of a calibration and in traces, with the fit, the ring's bound and
the link's specification.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import cycle
from statistics import median
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from dpscope.analysis.cells.predicted import place_of
from dpscope.analysis.costs.calibration_fit import find_fit, predict_us, predicts_badly
from dpscope.analysis.costs.cost import Place
from dpscope.analysis.costs.costs import Costs
from dpscope.analysis.costs.formulas import bus_factor, bus_gb_per_s, moved_as, ring_hops, ring_us
from dpscope.analysis.figures.style import (
    COLOURS,
    MARKERS,
    STYLE,
    WIDTH,
    finish,
    labelled,
    literal,
    panel_grid,
)
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.units import show_bytes
from dpscope.analysis.traces.reading.table import Table
from dpscope.profiling.records.calibration import Calibration, CalibrationPoint, CollectiveFit
from dpscope.profiling.records.finding import counted, grouped
from dpscope.profiling.records.links import LinkRate

_CURVE_POINTS = 200
_POINTS: dict[str, Any] = {
    "fmt": "o",
    "markersize": 3,
    "linewidth": 0.8,
    "color": COLOURS["transfer"],
}
_MEANS: dict[str, Any] = {
    "markersize": 5,
    "capsize": 2,
    "color": COLOURS["transfer"],
    "mfc": "none",
}
_CROSSES: dict[str, Any] = {
    "linestyle": "",
    "marker": "x",
    "markersize": 5,
    "color": COLOURS["predicted"],
}
_CURVE: dict[str, Any] = {"color": COLOURS["predicted"], "linewidth": 1.2}
_BOUND: dict[str, Any] = {"color": COLOURS["ring"], "linestyle": "--", "linewidth": 1.2}
_LINK: dict[str, Any] = {"color": "black", "linestyle": ":", "linewidth": 1.0}
_BREAK: dict[str, Any] = {"color": "black", "linewidth": 0.4}


def calibration_figure(calibration: Calibration) -> Figure:
    """One panel per collective and device count, sizes and bandwidths on logarithmic scales.

    Points are medians with the range of the iterations. The ring's bound is alpha + S f/B for the
    fit's latency alpha, the link's specified rate B and the collective's bus factor f: the link
    without any protocol.
    """
    known = (point for point in calibration.points if bus_factor(point.collective, point.devices))
    by_place = [((point.collective, point.devices, point.nodes), point) for point in known]
    groups = grouped(by_place)
    columns = min(2, len(groups))
    with mpl.rc_context(STYLE):
        figure, panels = panel_grid(len(groups), columns, WIDTH, 2.7, top=0.7)
        for axes, ((collective, devices, nodes), points) in zip(
            panels, groups.items(), strict=True
        ):
            on_as_many = calibration if nodes is None else calibration.on_nodes(nodes)
            fit = find_fit(on_as_many, collective, devices)
            link = calibration.links.get(devices)
            noisy = fit is not None and predicts_badly(calibration, fit)
            carried_as = moved_as(collective, calibration.backend)
            _panel(axes, points, carried_as, fit, noisy, link)
            over = ""
            if nodes not in (None, 1):
                over = f" over {nodes} nodes"
            axes.set_title(f"{collective}, {counted(devices, 'device')}{over}")
        title = f"Bus bandwidth by size ({_machine(calibration)})"
        finish(figure, title, "range of the iterations")
    return figure


def _machine(calibration: Calibration) -> str:
    """The devices, and on how many of them the link's rate is not known."""
    names = calibration.device_names
    machine = f"{calibration.backend}, {len(names)} x {literal(names[0])}"
    measured = {point.devices for point in calibration.points}
    unknown = sorted(measured - set(calibration.links))
    if unknown:
        counts = ", ".join(map(str, unknown))
        machine += f"; link's rate unknown on {counts} devices"
    return machine


def _panel(
    axes: Axes,
    points: list[CalibrationPoint],
    kind: str,
    fit: CollectiveFit | None,
    noisy: bool,
    link: LinkRate | None,
) -> None:
    ranks = points[0].devices
    sizes_bytes = [point.size_bytes for point in points]
    # of the median, longest and shortest time
    rates = []
    for of in (median, max, min):
        times_us = [float(of(point.times_us)) for point in points]
        rates.append(_rates(kind, ranks, sizes_bytes, times_us))
    medians, slowest, fastest = rates
    axes.errorbar(
        sizes_bytes,
        medians,
        yerr=[medians - slowest, fastest - medians],
        label="measured: median",
        **_POINTS,
    )
    sizes = (min(sizes_bytes), max(sizes_bytes))
    draw_models(axes, sizes, kind, ranks, fit, noisy, link)
    _bandwidth_axes(axes)


def _rates(
    kind: str, ranks: int, sizes_bytes: Sequence[float], times_us: Sequence[float]
) -> npt.NDArray[np.float64]:
    """Bus bandwidths in 1e9 B/s."""
    rates = []
    for size, us in zip(sizes_bytes, times_us, strict=True):
        rates.append(bus_gb_per_s(kind, size, ranks, us))
    return np.array(rates, dtype=float)


def draw_models(
    axes: Axes,
    sizes: tuple[float, float],
    kind: str,
    ranks: int,
    fit: CollectiveFit | None,
    noisy: bool,
    link: LinkRate | None,
) -> None:
    """Bus bandwidth between two sizes by a fit, by the ring at the link's rate, and the link's rate
    itself.
    """
    if fit is not None:
        curve = np.geomspace(*sizes, _CURVE_POINTS).tolist()
        fitted_us = [predict_us(fit, size) for size in curve]
        fitted = _rates(kind, ranks, curve, fitted_us)
        label = "calibration's fit"
        style = "-"
        if noisy:
            label = "calibration's fit (noisy)"
            style = "-."
        axes.plot(curve, fitted, style, label=label, **_CURVE)
        for piece in fit.pieces[1:]:
            axes.axvline(piece.from_bytes, label="breakpoint", zorder=0, ymax=0.8, **_BREAK)
        if link is not None:
            hop_us = fit.pieces[0].alpha_us / ring_hops(kind, ranks)
            bounds_us = []
            for size in curve:
                bound_us = ring_us(kind, size, ranks, link.gb_per_s, hop_us)
                bounds_us.append(bound_us or 0.0)
            axes.plot(
                curve,
                _rates(kind, ranks, curve, bounds_us),
                label="ring at the link's rate",
                **_BOUND,
            )
    if link is not None:
        axes.axhline(link.gb_per_s, label="link's specification", **_LINK)
        rate = f"{literal(link.name)}: {link.gb_per_s:.4g} GB/s"
        place = (sizes[0], link.gb_per_s)
        axes.annotate(rate, place, xytext=(4, 1), textcoords="offset points", va="bottom")
        axes.margins(y=0.15)  # so that this text stays below the panel's title


MOST_PANELS = 4
_LEAST_DECADES = 1.0  # an axis of one size is drawn this wide


# decades of an axis, below which these multiples of powers of ten have ticks
_MULTIPLES: Mapping[float, tuple[float, ...]] = {
    1.1: (1.0, 2.0, 3.0, 5.0, 7.0),
    2.0: (1.0, 2.0, 5.0),
    3.0: (1.0, 3.0),
}
_MOST_TICKS = 4  # at powers of ten: more labels of sizes would touch each other

Panel = tuple[str, int, int]
"""Kind of a collective, its ranks and their nodes."""


def bandwidths(run: RunData, costs: Costs) -> Figure | None:
    """A panel for each collective, number of ranks and nodes with matched transfers, the most bytes
    first; None without any, and of a single size with nothing to compare it with.
    """
    transfers = matched_transfers(run)
    if not transfers:
        return None

    def all_bytes(panel: Panel) -> int:
        return sum(int(rows["bytes"].sum()) for rows in transfers[panel].values())

    chosen = sorted(sorted(transfers), key=lambda panel: -all_bytes(panel))[:MOST_PANELS]
    figure, panels = panel_grid(len(chosen), min(2, len(chosen)), WIDTH, 2.9, top=0.8)
    cells = dict.fromkeys(cell for panel in chosen for cell in transfers[panel])
    markers = dict(zip(cells, cycle(MARKERS), strict=False))
    for axes, (kind, ranks, nodes) in zip(panels, chosen, strict=True):
        by_cell = transfers[kind, ranks, nodes]
        place = place_of(run.cells[next(iter(by_cell))], kind, ranks)
        over = ""
        if nodes > 1:
            over = f" of a job over {nodes} nodes"
        axes.set_title(f"{kind}, {counted(ranks, 'rank')}{over}")
        _trace_panel(axes, kind, place, by_cell, markers, costs)
    # every cell and every model has its label
    if len(labelled(figure)) > 1 or len(chosen) > 1:
        return figure
    sizes: set[int] = set()
    for rows in transfers[chosen[0]].values():
        sizes.update(rows["bytes"].tolist())
    return figure if len(sizes) > 1 else None


def matched_transfers(run: RunData) -> dict[Panel, dict[str, Table]]:
    """Each matched collective of a whole step once, by panel and cell."""
    kept: defaultdict[Panel, dict[str, Table]] = defaultdict(dict)
    for data in run.measured:
        own = data.tables.collectives.within(data.whole_windows, ("repeat", "rank", "step"))
        known = own.take(own.known("busbw_gb_per_s") & own.known("bytes") & own.known("match"))
        once = known.take(known.group("repeat", "match").first)
        if not data.communication_known:
            continue
        moved = once.words("moved_as").where(once.known("moved_as"), once.words("kind"))
        once = once.assign(moved_as=moved)
        for places in once.group("kind", "group_size").rows():
            rows = once.take(places)
            kind = str(rows.words("kind").tolist()[0])
            ranks = int(rows["group_size"][0])
            kept[kind, ranks, data.nodes][data.name] = rows
    return dict(kept)


def _trace_panel(
    axes: Axes,
    kind: str,
    place: Place,
    by_cell: Mapping[str, Table],
    markers: Mapping[str, str],
    costs: Costs,
) -> None:
    for cell, rows in by_cell.items():
        sizes = rows.group("bytes", in_order=True)
        rates = [rows["busbw_gb_per_s"][places] for places in sizes.rows()]
        # bytes over the mean transfer, as in the tables
        means = np.array([1 / np.mean(1 / rate) for rate in rates])
        slowest = [rate.min() for rate in rates]
        fastest = [rate.max() for rate in rates]
        spread = [means - slowest, fastest - means]
        axes.errorbar(
            rows["bytes"][sizes.first].astype(float),
            means,
            yerr=np.maximum(spread, 0.0),  # of a single rate rounding leaves less than 0
            fmt=markers[cell],
            label=f"trace, {cell}: mean",
            **_MEANS,
        )
    calibrated = _calibrated_points(kind, place, costs)
    calibrated_bytes = [point.size_bytes for point in calibrated]
    sizes_bytes = np.concatenate([*(rows["bytes"] for rows in by_cell.values()), calibrated_bytes])
    fit = costs.fit(kind, place, "shortest")
    link = costs.link(place)
    sizes_drawn = _drawn_sizes(sizes_bytes)
    carried_as = str(next(iter(by_cell.values())).words("moved_as").tolist()[0])
    if calibrated:
        # of the fastest rank where that is known, as transfers are
        times_us = [float(median(point.shortest_us or point.times_us)) for point in calibrated]
        axes.plot(
            calibrated_bytes,
            _rates(carried_as, place.devices, calibrated_bytes, times_us),
            label="calibration: median",
            **_CROSSES,
        )
    calibration = costs.calibrated(place)
    # as the report's limits have it
    noisy = fit is not None and calibration is not None and predicts_badly(calibration, fit)
    draw_models(axes, sizes_drawn, carried_as, place.devices, fit, noisy, link)
    axes.set_xlim(*sizes_drawn)
    _bandwidth_axes(axes)


def _drawn_sizes(sizes_bytes: npt.NDArray[Any]) -> tuple[float, float]:
    """The ends of an axis of sizes, wide enough for a curve to be seen next to a single size."""
    low = float(np.log10(sizes_bytes.min()))
    high = float(np.log10(sizes_bytes.max()))
    decades = high - low
    beyond = max(0.15, (_LEAST_DECADES - decades) / 2)
    return 10 ** (low - beyond), 10 ** (high + beyond)


def _calibrated_points(kind: str, place: Place, costs: Costs) -> list[CalibrationPoint]:
    """The sizes of a collective that were calibrated on these devices."""
    calibrated = costs.calibrated(place)
    if calibrated is None:
        return []
    alike = []
    for point in calibrated.points:
        same = point.collective == kind and point.devices == place.devices
        if same and point.size_bytes > 0:
            alike.append(point)
    return alike


def _bandwidth_axes(axes: Axes) -> None:
    """Message sizes and bandwidths on logarithmic scales, with ticks as plain numbers."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: _plain_bytes(size)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
    # the fewer powers of ten, the more of their multiples
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        decades = np.log10(high / low) if low > 0 else np.inf
        fitting = (many for most, many in _MULTIPLES.items() if decades < most)
        multiples = next(fitting, (1.0,))
        axis.set_major_locator(LogLocator(subs=multiples, numticks=_MOST_TICKS))
        axis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    axes.set_xlabel("message size")
    axes.set_ylabel("bus bandwidth [GB/s]")


def _plain_bytes(size: float) -> str:
    """A size without needless decimals."""
    number, _, unit = show_bytes(size).partition(" ")
    return f"{float(number):g} {unit}"
