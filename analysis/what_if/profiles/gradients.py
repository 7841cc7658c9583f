"""When each gradient of a traced step became ready, and how many bytes it has."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dpscope.analysis.stats.arrays import Floats
from dpscope.analysis.traces.reading.event_table import Category, CommunicationArgs, EventTable
from dpscope.analysis.traces.reading.tensor_sizes import element_bytes
from dpscope.analysis.what_if.replay.step_profile import BY_ORDER, INTERPOLATED, RECORDED, UNKNOWN

NODE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
_INNER = "torch::autograd::AccumulateGrad"
_NO_ARGS = CommunicationArgs()
PARTS = 20  # of a bucket whose gradients the trace does not show


@dataclass(frozen=True)
class ReadyGradients:
    """In order of readiness, per gradient: when its node began and ended (from the trace's start), bytes, its bucket's index."""

    begin_us: Floats
    end_us: Floats
    bytes: Floats
    bucket: tuple[int, ...]
    known: str


def ready_gradients(
    events: EventTable,
    window: tuple[float, float],
    launches_us: Sequence[float],
    sizes: Sequence[float],
    parameter_bytes: Sequence[int] = (),
) -> ReadyGradients | None:
    """The gradients whose nodes begin in a window of the host, given when each bucket's all-reduce was launched and its bytes.

    Bytes as the trace records them, else those of the parameters in reverse order, else each bucket's spread evenly over its
    gradients: the first of these that adds up to the buckets. Where no bucket has bytes, every one counts alike. None where the
    trace shows no node for a bucket.
    """
    rows = np.flatnonzero(_named(events, NODE) & (events.start_us >= window[0]) & (events.start_us < window[1]))
    rows = rows[np.argsort(events.start_us[rows], kind="stable")]
    if parameter_bytes and len(rows) % len(parameter_bytes) == 0:
        rows = rows[-len(parameter_bytes) :]  # of accumulated micro-batches only the last one's are reduced
    begin, end = events.start_us[rows], events.end_us[rows]
    last = [int(np.searchsorted(begin, launch, side="right")) - 1 for launch in launches_us]
    if not len(rows) or not last or last[0] < 0 or any(b <= a for a, b in pairwise(last)):
        return None
    last[-1] = len(rows) - 1
    bucket = np.searchsorted(np.array(last), np.arange(len(rows)), side="left")
    end = np.minimum(end, np.append(begin[1:], np.inf))  # nodes of one thread do not overlap
    for index, launch in zip(last, launches_us, strict=True):
        end[index] = launch
    for known, found in ((RECORDED, _recorded(events, rows)), (BY_ORDER, _reversed(parameter_bytes, len(rows)))):
        if found is not None and _adds_up(found, bucket, sizes):
            return ReadyGradients(begin, end, found, tuple(bucket.tolist()), known)
    counts = np.bincount(bucket, minlength=len(last))
    spread = (np.array(sizes, dtype=float) / counts)[bucket]
    if np.isnan(spread).any():
        return ReadyGradients(begin, end, (1.0 / counts)[bucket], tuple(bucket.tolist()), UNKNOWN)
    return ReadyGradients(begin, end, spread, tuple(bucket.tolist()), INTERPOLATED)


def _named(events: EventTable, name: str) -> np.ndarray:
    is_node = events.has_name(np.array([one == name for one in events.names], dtype=bool))
    return is_node & events.is_category(Category.CPU_OP)


def _recorded(events: EventTable, nodes: np.ndarray) -> Floats | None:
    """Bytes by the shapes of the function inside each node."""
    inner = np.flatnonzero(_named(events, _INNER))
    inner = inner[np.argsort(events.start_us[inner], kind="stable")]
    if not len(inner):
        return None
    places = np.searchsorted(events.start_us[inner], events.start_us[nodes], side="left")
    if (places >= len(inner)).any():
        return None
    found = []
    for row in inner[places].tolist():
        args = events.communication.get(row, _NO_ARGS)
        size = element_bytes(args.dtype)
        if args.input_elements is None or size is None:
            return None
        found.append(args.input_elements * size)
    return np.array(found, dtype=float)


def _reversed(parameter_bytes: Sequence[int], count: int) -> Floats | None:
    return np.array(parameter_bytes[::-1], dtype=float) if len(parameter_bytes) == count else None


def _adds_up(sizes: Floats, bucket: np.ndarray, totals: Sequence[float]) -> bool:
    """Whether the gradients of every bucket have its bytes, or one same share of them (a hook's type)."""
    sums = np.bincount(bucket, weights=sizes, minlength=len(totals))
    ratio = np.array(totals, dtype=float) / np.maximum(sums, 1.0)
    return bool(sums.min() > 0 and np.ptp(ratio) < 1e-6 * ratio.max() and ratio.max() <= 1.0 + 1e-9)


def ends_of(bucket: Sequence[int]) -> tuple[int, ...]:
    """The last gradient of every bucket, given each gradient's bucket.

    >>> ends_of([0, 0, 1, 2, 2])
    (1, 2, 4)
    """
    return tuple(
        index for index in range(len(bucket)) if index + 1 == len(bucket) or bucket[index + 1] != bucket[index]
    )
