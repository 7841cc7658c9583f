"""DataParallel's phases as a table to read: of one trace analysis, or of the cells of a run."""

from collections.abc import Mapping

import pandas as pd

from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import choose_unit, plain, show, text
from dpscope.analysis.traces.data_parallel.phases import phase_table

_KEYS = ["rank", "device", "replica"]
_LABELS = {
    "host_to_device": "to dev.", "parallel_apply": "apply", "loss_backward": "loss+bwd", "gradient_reduce": "reduce",
    "optimizer": "optim.",
}  # fmt: skip
_OF_REPLICAS = "replicas work in parallel: their times do not add up to the row of all"
_OF_DEVICES = "device time launched in each phase, communication included; NA: nothing was launched there"


def trace_phases(frame: pd.DataFrame) -> TextTable:
    """Mean time of each phase per step from `dp_phases`' rows, a row per device, or per replica of dp-host."""
    return _shown({None: phase_table(frame)})


def run_phases(by_cell: Mapping[str, pd.DataFrame]) -> TextTable | None:
    """The same of several cells, whose rows also carry a `repeat`: means over repeats. None without any rows."""
    means: dict[str | None, pd.DataFrame] = {
        cell: _over_repeats(frame) for cell, frame in by_cell.items() if len(frame)
    }
    return _shown(means) if means else None


def _over_repeats(frame: pd.DataFrame) -> pd.DataFrame:
    repeats = pd.concat([phase_table(own) for _, own in frame.groupby("repeat")], ignore_index=True)
    return repeats.groupby(_KEYS, dropna=False, as_index=False).mean()


def _shown(means: Mapping[str | None, pd.DataFrame]) -> TextTable:
    together = pd.concat(list(means.values()), ignore_index=True)
    names = [name for name in together.columns if name not in _KEYS]
    unit = choose_unit("time", [float(value) for name in names for value in together[name].dropna()])
    on_host = together["device"].isna().all()
    rows = []
    for cell, table in means.items():
        for record in table.to_dict("records"):
            place = plain(record["replica"] if on_host else record["device"])
            label = "all" if on_host and place is None else text(place)
            key = (label,) if cell is None else (cell, label)
            rows.append((*key, *(show(plain(record.get(name)), unit) for name in names)))
    place_heading = "replica" if on_host else "device"
    return TextTable(
        f"{'dp-host' if on_host else 'DataParallel'}'s phases (means per step)",
        (
            *((place_heading,) if None in means else ("cell", place_heading)),
            *(f"{_LABELS.get(name, name)} [{unit.label}]" for name in names),
        ),
        tuple(rows),
        (_OF_REPLICAS if on_host else _OF_DEVICES,),
    )
