"""Many works as one: how host and device leave a stretch of works, given how they enter it.

Launches and kernels only ever wait for the latest of several times and then take so long, so any number of them in a row is a
2 x 2 matrix of the max-plus algebra (Baccelli, Cohen, Olsder and Quadrat, "Synchronization and linearity", 1992): a ResNet-50's
thousand kernels become a matrix between every two gradients, and a replay takes microseconds.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from dpscope.analysis.what_if.replay.step_profile import Works

Stretch = tuple[float, float, float, float]
"""hh, dh, hd, dd: host' = max(host + hh, device + dh), device' = max(host + hd, device + dd)."""

NEVER = float("-inf")
NO_WORK: Stretch = (0.0, NEVER, NEVER, 0.0)


def joined(first: Stretch, second: Stretch) -> Stretch:
    """Both in a row.

    >>> joined((1.0, NEVER, 3.0, 2.0), (1.0, NEVER, 3.0, 2.0))  # host 1 + 1; device the later of 1 + 3, 3 + 2 and 2 + 2
    (2.0, -inf, 5.0, 4.0)
    """
    hh, dh, hd, dd = first
    host_host, device_host, host_device, device_device = second
    return (
        max(hh + host_host, hd + device_host),
        max(dh + host_host, dd + device_host),
        max(hh + host_device, hd + device_device),
        max(dh + host_device, dd + device_device),
    )


def stretches(works: Works, cuts: Sequence[int], host_scale: float = 1.0) -> list[Stretch]:
    """The works between every two of the cuts, which count works from 0 and ascend; the host's own time is scaled."""
    host = works.host_us * host_scale
    through = works.launch_gap_us + works.device_us
    in_order = works.order_gap_us + works.device_us
    goes_on = np.where(np.isnan(works.sync_us), NEVER, works.sync_us)
    columns = (host.tolist(), through.tolist(), in_order.tolist(), goes_on.tolist())
    of_work = [
        (max(own, own + to_end + after), after + following, own + to_end, following)
        for own, to_end, following, after in zip(*columns, strict=True)
    ]
    found = []
    for begin, end in pairwise(cuts):
        whole = NO_WORK
        for one in of_work[begin:end]:
            whole = joined(whole, one)
        found.append(whole)
    return found
