"""DataParallel's phases as a table to read: of one trace analysis, or of the cells of a run."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import choose_unit, show, text
from dpscope.analysis.traces.data_parallel.phases import phase_means
from dpscope.analysis.traces.reading.table import Table, as_table, joined

if TYPE_CHECKING:
    import pandas as pd

_KEYS = ("rank", "device", "replica")
_LABELS = {
    "host_to_device": "to dev.", "parallel_apply": "apply", "loss_backward": "loss+bwd", "gradient_reduce": "reduce",
    "optimizer": "optim.",
}  # fmt: skip
_OF_REPLICAS = "replicas work in parallel: their times do not add up to the row of all"
_OF_DEVICES = "device time launched in each phase, communication included; NA: nothing was launched there"


def trace_phases(phases: Table) -> TextTable:
    """Mean time of each phase per step from `dp_phase_table`'s rows, a row per device, or per replica of dp-host."""
    return _shown({None: phase_means(phases)})


def run_phases(by_cell: "Mapping[str, pd.DataFrame]") -> TextTable | None:
    """The same of several cells, whose rows also carry a `repeat`: means over repeats. None without any rows."""
    means: dict[str | None, Table] = {
        cell: _over_repeats(as_table(frame)) for cell, frame in by_cell.items() if len(frame)
    }
    return _shown(means) if means else None


def _over_repeats(phases: Table) -> Table:
    repeats = [phase_means(phases.take(rows)) for rows in phases.group("repeat").rows()]
    names = dict.fromkeys(name for one in repeats for name in one.columns)
    together = joined(
        [one.assign(**{name: None for name in names if name not in one}).select(names) for one in repeats]
    )
    places = together.group(*_KEYS, in_order=True)
    times = {name: places.means(together[name]) for name in names if name not in _KEYS}
    return together.take(places.first).select(_KEYS).assign(**times)


def _shown(means: Mapping[str | None, Table]) -> TextTable:
    names = dict.fromkeys(name for table in means.values() for name in table.columns if name not in _KEYS)
    known = [table[name] for table in means.values() for name in names if name in table]
    unit = choose_unit("time", np.concatenate(known).tolist() if known else [])
    on_host = not any(table.known("device").any() for table in means.values())
    rows = []
    for cell, table in means.items():
        for record in table.records():
            place = record["replica"] if on_host else record["device"]
            label = "all" if on_host and place is None else text(place)
            key = (label,) if cell is None else (cell, label)
            rows.append((*key, *(show(record.get(name), unit) for name in names)))
    place_heading = "replica" if on_host else "device"
    phases = [name.removesuffix("_us") for name in names]
    return TextTable(
        f"{'dp-host' if on_host else 'DataParallel'}'s phases (means per step)",
        (
            *((place_heading,) if None in means else ("cell", place_heading)),
            *(f"{_LABELS.get(name, name)} [{unit.label}]" for name in phases),
        ),
        tuple(rows),
        (_OF_REPLICAS if on_host else _OF_DEVICES,),
    )
