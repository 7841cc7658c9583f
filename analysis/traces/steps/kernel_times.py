"""How long the kernels of a trace run while communication runs and while none does, by what makes kernels comparable."""

import zlib

import numpy as np
import pandas as pd

from dpscope.analysis.traces.reading.event_table import BoolColumn, Category, FloatColumn, IntColumn
from dpscope.analysis.traces.steps import intervals
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.enclosing_ranges import innermost
from dpscope.analysis.traces.steps.event_kind import COMMUNICATION_KINDS, Kind

COLUMNS = ("rank", "device", "operator", "kernel_class", "unit", "overlapped", "count", "time_us", "overlap_us")
_LEAST_OVERLAP = 0.5  # of a kernel's duration; kernels between 0 and this share are neither free nor overlapped
_FEWEST_UNITS = 5


def kernel_times(attribution: Attribution) -> pd.DataFrame:
    """Rows of COLUMNS: kernels of one class and unit, overlapped or free; `overlap_us` is the time next to communication.

    Kernels of a class have the same kernel name, operator, input sizes, grid and block, and are alike in whether they are the
    first, the last or neither of their step. Where no input sizes are recorded, a class holds one place in the order of the
    step only, and only if each step launches as many of these kernels. A unit is one independent observation: a place in the
    step, or a kernel where a class holds one place or there are few places. On a CPU timeline, operators that call no other
    operator stand for kernels. If the trace overlaps any kernel, classes without an overlapped kernel are omitted.
    """
    kernels = _kernels(attribution)
    kernels = kernels[(kernels["overlap_us"] == 0) | (kernels["overlap_us"] >= _LEAST_OVERLAP * kernels["time_us"])]
    kernels = kernels[kernels["time_us"] > 0]
    kernels["overlapped"] = kernels["overlap_us"] > 0
    if kernels["overlapped"].any():
        kernels = kernels[kernels.groupby("kernel_class")["overlapped"].transform("any")]
    kernels["unit"] = kernels["place"] if _has_many_places(kernels) else np.arange(len(kernels))
    keys = ["device", "operator", "kernel_class", "unit", "overlapped"]
    grouped = kernels.groupby(keys, dropna=False, sort=True)
    frame = grouped.agg(count=("time_us", "size"), time_us=("time_us", "sum"), overlap_us=("overlap_us", "sum"))
    frame = frame.reset_index()
    frame.insert(0, "rank", attribution.trace.rank)
    whole = ["rank", "device", "kernel_class", "unit", "count"]
    frame[whole] = frame[whole].astype("Int64")
    frame[["time_us", "overlap_us"]] = frame[["time_us", "overlap_us"]].astype("Float64")
    return frame.astype({"operator": "string", "overlapped": "boolean"})[list(COLUMNS)]


def _kernels(attribution: Attribution) -> pd.DataFrame:
    """A row per kernel of a step, in order of start, with its class and its place among the kernels of its class."""
    events = attribution.events
    operators = events.is_category(Category.CPU_OP)
    rows = np.flatnonzero(attribution.rows(Kind.COMPUTE) & (attribution.step >= 0))
    if attribution.on_device:
        operator = innermost(events, attribution.launch_row[rows], operators)
    else:
        rows = rows[_is_leaf(attribution, operators)[rows]]
        operator = rows
    names = np.array([zlib.crc32(name.encode()) for name in events.names], dtype=np.int64)
    caller = np.maximum(operator, 0)
    frame = pd.DataFrame(
        {
            "device": pd.array(events.device[rows] if attribution.on_device else [None] * len(rows), dtype="Int64"),
            "step": attribution.step[rows],
            "start_us": events.start_us[rows],
            "time_us": events.duration_us[rows],
            "overlap_us": _overlap_us(attribution, rows),
            "operator": [events.names[events.name[row]] if row >= 0 else "unknown" for row in operator.tolist()],
            "kernel_name": names[events.name[rows]],
            "operator_name": np.where(operator >= 0, names[events.name[caller]], -1),
            "launch": events.shape[rows],
            "sizes": np.where(operator >= 0, events.shape[caller], -1),
        }
    )
    frame = frame.sort_values("start_us", kind="stable", ignore_index=True)
    return _with_classes(frame)


def _with_classes(frame: pd.DataFrame) -> pd.DataFrame:
    of_step = frame.groupby(["device", "step"], dropna=False)
    position, count = of_step.cumcount(), of_step["step"].transform("size")
    frame["edge"] = (position == 0).astype(np.int64) + 2 * (position == count - 1)
    same = ["kernel_name", "operator_name", "launch", "sizes", "edge"]
    frame["place"] = frame.groupby(["device", "step", *same], dropna=False).cumcount()
    known = frame["sizes"] >= 0
    counts = frame.groupby(["device", *same, "step"], dropna=False).size().rename("in_step").reset_index()
    spread = counts.groupby(["device", *same], dropna=False)["in_step"].agg(["min", "max"]).reset_index()
    frame = frame.merge(spread, on=["device", *same], how="left")
    frame = frame[(known | (frame["min"] == frame["max"])).to_numpy()].copy()
    key = frame[same].assign(place=frame["place"].where(frame["sizes"] < 0, -1))
    frame["kernel_class"] = pd.util.hash_pandas_object(key, index=False).to_numpy().view(np.int64)
    return frame


def _has_many_places(kernels: pd.DataFrame) -> bool:
    """Whether places are enough as independent observations: of overlapped kernels, and of free ones beyond one per class."""
    overlapped = kernels[kernels["overlapped"]].drop_duplicates(["device", "kernel_class", "place"])
    free = kernels[~kernels["overlapped"]].drop_duplicates(["device", "kernel_class", "place"])
    spare = len(free) - len(free.drop_duplicates(["device", "kernel_class"]))
    found = min(len(overlapped), spare) if len(overlapped) else spare
    return bool((kernels["sizes"] >= 0).all()) and found >= _FEWEST_UNITS


def _overlap_us(attribution: Attribution, rows: IntColumn) -> FloatColumn:
    """How much of each event lies in communication of its device, or of the process on a CPU timeline."""
    events = attribution.events
    communication = attribution.rows(*(COMMUNICATION_KINDS if attribution.on_device else (Kind.COLLECTIVE,)))
    result = np.zeros(len(rows))
    devices = events.device if attribution.on_device else np.zeros(len(events), dtype=np.int64)
    for device in np.unique(devices[rows]).tolist():
        own = communication & (devices == device)
        busy = intervals.union(events.start_us[own], events.end_us[own])
        here = devices[rows] == device
        ends, starts = events.end_us[rows[here]], events.start_us[rows[here]]
        result[here] = intervals.length_before(busy, ends) - intervals.length_before(busy, starts)
    return np.where(result > 1e-6, result, 0.0)


def _is_leaf(attribution: Attribution, operators: BoolColumn) -> BoolColumn:
    """Operators in which no other operator of their thread begins."""
    events = attribution.events
    rows = np.flatnonzero(operators)
    rows = rows[np.lexsort((-events.end_us[rows], events.start_us[rows], events.thread[rows]))]
    leaf = np.zeros(len(events), dtype=bool)
    follows = events.thread[rows[1:]] == events.thread[rows[:-1]]
    holds_next = follows & (events.start_us[rows[1:]] < events.end_us[rows[:-1]])
    leaf[rows] = ~np.concatenate((holds_next, [False])) if len(rows) else False
    return leaf
