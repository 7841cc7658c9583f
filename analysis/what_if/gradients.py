"""A step's gradients: when each is ready and how many bytes it has, by the autograd nodes that its
trace shows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.stats.samples import Floats
from dpscope.analysis.traces.reading.event_table import Category, CommunicationArgs, EventTable
from dpscope.analysis.traces.reading.tensor_sizes import element_bytes
from dpscope.analysis.what_if.step_profile import BY_ORDER, INTERPOLATED, RECORDED, Ints

NODE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
_INNER = "torch::autograd::AccumulateGrad"
_NO_ARGS = CommunicationArgs()
PARTS = 20  # of a bucket whose gradients the trace does not show


@dataclass(frozen=True)
class ReadyGradients:
    """In order of readiness, per gradient: when its node ended (from the trace's start) and bytes;
    the last of each bucket.
    """

    end_us: Floats
    bytes: Floats
    ends: tuple[int, ...]
    known: str


def ready_gradients(
    events: EventTable,
    window: tuple[float, float],
    launches_us: Floats,
    sizes: Floats,
    parameter_bytes: Sequence[int] = (),
) -> ReadyGradients:
    """The gradients whose nodes begin in a window of the host, given when each bucket's all-reduce
    was launched and its bytes.

    Bytes as the trace records them, else those of the parameters in reverse order, else each
    bucket's spread evenly over its gradients: the first of these that adds up to the buckets. Where
    no bucket has bytes, every one counts alike. Where the trace does not show the gradients of
    every bucket, each counts as PARTS of them, spread evenly over time and bytes.
    """
    rows = _named(events, NODE)
    rows = rows[(events.start_us[rows] >= window[0]) & (events.start_us[rows] < window[1])]
    if parameter_bytes and len(rows) % len(parameter_bytes) == 0:
        # of accumulated micro-batches only the last one's are reduced
        rows = rows[-len(parameter_bytes) :]
    begin = events.start_us[rows]
    # of each bucket the last node that began before its all-reduce was launched
    last = np.searchsorted(begin, launches_us, side="right") - 1
    weights = sizes
    if np.isnan(sizes).any():
        weights = np.ones(len(sizes))
    # every bucket has one gradient or more
    added = np.diff(last, prepend=-1)
    if not len(rows) or not len(last) or added.min() < 1:
        return _spread(launches_us, weights)
    last[-1] = len(rows) - 1
    every = np.arange(len(rows))
    bucket = np.searchsorted(last, every, side="left")
    following = np.append(begin[1:], np.inf)
    end = np.minimum(events.end_us[rows], following)  # nodes of one thread do not overlap
    end[last] = launches_us
    ends = tuple(last.tolist())

    candidates = [(RECORDED, _recorded(events, rows))]
    if len(parameter_bytes) == len(rows):
        candidates.append((BY_ORDER, np.array(parameter_bytes[::-1], dtype=float)))
    for known, of_each in candidates:
        if of_each is not None and _adds_up(of_each, bucket, sizes):
            return ReadyGradients(end, of_each, ends, known)
    alike = weights / np.bincount(bucket, minlength=len(last))
    return ReadyGradients(end, alike[bucket], ends, INTERPOLATED)


def _spread(launches_us: Floats, weights: Floats) -> ReadyGradients:
    """PARTS gradients for each bucket, evenly over its time and bytes."""
    return ReadyGradients(
        end_us=spread_evenly(launches_us),
        bytes=np.repeat(weights / PARTS, PARTS),
        ends=tuple(PARTS * (place + 1) - 1 for place in range(len(weights))),
        known=INTERPOLATED,
    )


def spread_evenly(ends: Floats) -> Floats:
    """PARTS places for each bucket, at equal distances from the end of the bucket before to its
    own; the first all at its end.

    >>> spread_evenly(np.array([20.0, 60.0]))[[0, 19, 20, 39]].tolist()
    [20.0, 20.0, 22.0, 60.0]
    """
    begins = np.concatenate((ends[:1], ends[:-1]))
    shares = np.arange(1, PARTS + 1) / PARTS
    return np.asarray((begins[:, None] + (ends - begins)[:, None] * shares).ravel())


def _named(events: EventTable, name: str) -> Ints:
    """Rows of an operator, in order of start."""
    rows = np.flatnonzero(
        events.named(lambda event_name: event_name == name) & events.is_category(Category.CPU_OP)
    )
    return rows[np.argsort(events.start_us[rows], kind="stable")]


def _recorded(events: EventTable, nodes: Ints) -> Floats | None:
    """Bytes by the shapes of the function inside each node."""
    inner = _named(events, _INNER)
    places = np.searchsorted(events.start_us[inner], events.start_us[nodes], side="left")
    if (places >= len(inner)).any():
        return None
    args = [events.communication.get(row, _NO_ARGS) for row in inner[places].tolist()]
    sizes = [(arg.input_elements, element_bytes(arg.dtype)) for arg in args]
    known = [
        elements * size for elements, size in sizes if elements is not None and size is not None
    ]
    return np.array(known, dtype=float) if len(known) == len(sizes) else None


def _adds_up(sizes: Floats, bucket: Ints, totals: Floats) -> bool:
    """Whether the gradients of every bucket have its bytes, or one same share of them (a hook's
    type).
    """
    sums = np.bincount(bucket, weights=sizes, minlength=len(totals))
    ratio = totals / np.maximum(sums, 1.0)
    return bool(sums.min() > 0 and np.ptp(ratio) < 1e-6 * ratio.max() and ratio.max() <= 1.0 + 1e-9)
