"""What others published of the cells of a run, beside what was measured here. Nothing is judged: their hardware is another."""

from collections.abc import Callable, Mapping, Sequence

from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA
from dpscope.profiling.records.run import Cell, PublishedValue

TITLE = "Published values of the same cells (other hardware)"
_HEADINGS = ("cell", "quantity", "measured", "published", "published method", "published by")
_OTHER = "published: on other hardware and software, so a difference allows no verdict; each by its authors' own method"
_ALL = "effective bandwidth, measured: all communication, in GB/s (1e9 bytes per second)"
_FIXED = {"global": "same global batch", "per_device": "same batch per device"}

MeasuredValue = tuple[Callable[[CellData], float | None], str]
"""A cell's own value, and its unit as PublishedValue writes units."""


def published_table(
    run: RunData, measured: Mapping[tuple[str, str], MeasuredValue], notes: Sequence[str] = ()
) -> tuple[TextTable | None, list[str]]:
    """A row per published value of a measured cell, or why there is none; `measured` by quantity and what is fixed.

    `notes`: how the measured values were obtained.
    """
    named = run.manifest.config.reporting.published
    if named is None:
        return None, []
    rows = tuple(row for data in run.measured for row in _rows(data, run.manifest.published, measured))
    if not rows:
        return None, [
            f"{named} has no row for a measured cell: model, data, strategy, devices and batch must be the same"
        ]
    bandwidth = any(row[1] == "effective bandwidth" for row in rows)
    return TextTable(TITLE, _HEADINGS, rows, (_OTHER, *notes, *((_ALL,) if bandwidth else ()))), []


def _rows(
    data: CellData, published: tuple[PublishedValue, ...], measured: Mapping[tuple[str, str], MeasuredValue]
) -> list[tuple[str, ...]]:
    cell = data.cell
    if not isinstance(cell, Cell) or cell.variant or cell.nodes > 1:
        return []
    rows: list[tuple[str, ...]] = []
    for one in published:
        if (one.strategy, one.devices, one.batch_size) == (cell.strategy, cell.devices, cell.batch_size):
            value, unit = measured[one.quantity, one.fixed]
            by = f"{one.source} ({one.hardware})"
            rows.append(
                (cell.name, _quantity(one), _shown(value(data), unit), _shown(one.value, one.unit), one.method, by)
            )
    return rows


def _quantity(one: PublishedValue) -> str:
    name = one.quantity.replace("_", " ").removesuffix(" seconds")
    return f"{name}, {_FIXED[one.fixed]}" if one.quantity in ("speedup", "efficiency") else name


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return NA
    return f"{value:.4g}%" if unit == "%" else f"{value:.4g} {'' if unit == '1' else unit}".strip()
