"""Times of one collective measured on some numbers of devices, carried to another on the same links."""

from collections.abc import Mapping

import numpy as np

from dpscope.analysis.costs.formulas import bus_factor, ring_hops

_FULL = 3  # counts from which latency that grows with the hops can be told from what does not grow


def carried_us(times_us: Mapping[int, float], devices: int) -> float:
    """t(N) = a0 + a1 (N - 1) + b (N - 1)/N at one size, none of them negative, relative errors least; a1 from three counts on.

    `times_us` by count, two or more. Source of the form: the ring's formula (`ring_all_reduce_us`) with what does not grow added.
    On eight A100 behind NVSwitch it misses N = 8 by 4% from N up to 4, by 2.5% from N up to 6 (medians over sizes).

    >>> round(carried_us({2: 60.0, 4: 85.0}, 8), 1)  # 10 + 100 (N - 1)/N
    97.5
    """
    from scipy.optimize import nnls

    counts = np.array(sorted(times_us), dtype=float)
    values = np.array([times_us[int(count)] for count in counts])
    if not values.any():
        return 0.0
    weights = 1 / np.maximum(values, 1e-3)

    def columns(ranks: np.ndarray) -> np.ndarray:
        moved, hops = ([of("all_gather", int(count)) or 0 for count in ranks] for of in (bus_factor, ring_hops))
        return np.stack((np.ones_like(ranks), moved, hops)[: 3 if len(counts) >= _FULL else 2], axis=1)

    found, _ = nnls(columns(counts) * weights[:, None], values * weights)
    return float((columns(np.array([float(devices)])) @ found)[0])
