"""A source of costs: the measured step's own transfers, on its devices, and by the ring's formula
on others.
"""

import numpy as np

from dpscope.analysis.costs.cost import Call, Cost, Known, banded
from dpscope.analysis.costs.formulas import bus_factor
from dpscope.profiling.records.finding import counted

_BAND, _CARRIED_BAND = 0.10, 0.30  # half a 90% band, in logarithms
_BOUNDED = 2.0  # times as wide where the transfers are upper bounds


def own_transfers(call: Call, known: Known) -> Cost | None:
    """On the devices that were measured."""
    if not known.is_own(call.place):
        return None
    return _by_size(call, known)


def carried_transfers(call: Call, known: Known) -> Cost | None:
    """On other devices of the same level: transfer by the bus factor, with latency as it was."""
    here = _by_size(call, known)
    if here is None or known.place is None or not known.same_level(call.place):
        return None
    before = bus_factor(call.kind, known.place.devices)
    after = bus_factor(call.kind, call.place.devices)
    if before is None or after is None:
        return None
    transfer_us = here.transfer_us * after / before
    words = f"{here.words}, carried to {call.place.devices} by the ring's formula"
    return banded(here.latency_us, transfer_us, _CARRIED_BAND, "transfers", words)


def _by_size(call: Call, known: Known) -> Cost | None:
    """By the step's own collectives of that kind: that of the same size, else a line through
    them.
    """
    times_us = {}
    for (kind, size), time_us in known.transfers.items():
        if kind == call.kind:
            times_us[size] = time_us
    if not times_us or known.place is None or not call.on_measured_links:
        return None
    latency_us, us_per_byte = _line(list(times_us), list(times_us.values()))
    on_line_us = latency_us + us_per_byte * call.size_bytes
    total_us = times_us.get(call.size_bytes, on_line_us)
    latency_us = min(latency_us, total_us)
    devices = counted(known.place.devices, "device")
    words = f"transfers of the base on {devices}"
    half = _BAND
    if known.transfers_bounded:
        words = f"{words}, upper bounds"
        half *= _BOUNDED
    return banded(latency_us, total_us - latency_us, half, "transfers", words)


def _line(sizes_bytes: list[float], times_us: list[float]) -> tuple[float, float]:
    """Latency and microseconds a byte, both at least 0, by least squares of relative errors.

    One size alone scales with its bytes.
    """
    from scipy.optimize import nnls

    if len(sizes_bytes) == 1:
        (size,), (time_us,) = sizes_bytes, times_us
        return 0.0, time_us / size if size else 0.0
    sizes = np.array(sizes_bytes, dtype=float)
    times = np.array(times_us, dtype=float)
    weights = 1 / np.maximum(times, 1.0)
    rows = np.stack((weights, sizes * weights), axis=1)
    (latency_us, us_per_byte), _ = nnls(rows, times * weights)
    return float(latency_us), float(us_per_byte)
