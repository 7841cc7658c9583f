"""Partials of generated ranks: a job of any size, with one node whose one rank is late and makes all others wait.

Every rank has the same collectives in each step. All may begin one STEP_GAP_US after the one before has ended everywhere; a
rank arrives later by `lateness_us`, and its duration is that much shorter: who waits for whom is known by hand.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpscope.analysis.partials.file import MADE_FROM, PARTIAL_SCHEMA, Partial, write_partial
from dpscope.analysis.traces.ranks.parallelism import ParallelismEvidence, Requests
from dpscope.analysis.traces.ranks.rank_rows import COPY_COLUMNS, SCHEMA

TRANSFER_US = 500.0
STEP_GAP_US = 200.0
SIZES = (26_494_976, 9_461_800, 8_739_072)  # ResNet-18's buckets, in turn
PER_NODE = 8
_Times = npt.NDArray[np.float64]


def host_of(rank: int) -> str:
    return f"n{rank // PER_NODE:04d}"


def lateness_us(ranks: int, collectives: int, bad_rank: int | None, seed: int = 0) -> _Times:
    """(collectives, ranks): how late each comes, up to 50 us by chance.

    Of ten collectives the bad rank comes 1,000 us later in six and its neighbour on the node in one; in two it is rank 0.
    """
    late = np.random.default_rng(seed).uniform(0.0, 50.0, (collectives, ranks)).round(3)
    if bad_rank is not None:
        for rank, which in ((bad_rank, range(6)), (bad_rank + 1, range(6, 7)), (0, range(7, 9))):
            late[np.isin(np.arange(collectives) % 10, list(which)), rank] += 1_000.0
    return late


def write_partials(
    folder: Path,
    ranks: int,
    per_partial: int = PER_NODE,
    steps: int = 10,
    per_step: int = 7,
    bad_rank: int | None = None,
    left_out: frozenset[int] = frozenset(),
) -> None:
    """A partial for every `per_partial` ranks; those `left_out` are in none."""
    late = lateness_us(ranks, steps * per_step, bad_rank)
    latest = late.max(axis=1)
    begun = np.concatenate(([0.0], np.cumsum(latest + TRANSFER_US + STEP_GAP_US)[:-1]))  # of each collective
    for first in range(0, ranks, per_partial):
        own = [rank for rank in range(first, min(first + per_partial, ranks)) if rank not in left_out]
        if own:
            rows = _rows(own, ranks, late[:, own], latest, begun, steps, per_step)
            write_partial(Partial(rows), folder / f"{host_of(first)}.dpscope")


def _rows(
    own: list[int], ranks: int, late: _Times, latest: _Times, begun: _Times, steps: int, per_step: int
) -> pa.Table:
    count = len(own)
    each = steps * per_step
    starts = (begun[:, None] + late).T.ravel()
    durations = (latest[:, None] - late + TRANSFER_US).T.ravel()
    step = np.tile(np.repeat(np.arange(steps), per_step), count)
    none = pa.nulls
    collectives = {
        "device": np.repeat(np.array(own) % PER_NODE, each),
        "step": step,
        "kind": pa.array(["all_reduce"] * count * each),
        "group": pa.array(["0"] * count * each),
        "group_ranks": none(count * each, pa.string()),
        "sequence": np.tile(np.arange(each), count),
        "order": np.tile(np.arange(each), count),
        "bytes": np.tile(np.resize(SIZES, each), count),
        "group_size": np.full(count * each, ranks),
        "start_us": starts,
        "duration_us": durations,
        "queue_us": none(count * each, pa.float64()),
        "ready_us": starts - 5.0,
        "concurrent": np.zeros(count * each, dtype=np.int64),
    }
    exposed = {"device": collectives["device"], "step": step, "start_us": starts, "end_us": starts + durations}
    ends = np.array([*begun[per_step::per_step], begun[-1] + latest[-1] + TRANSFER_US + STEP_GAP_US])
    lengths = np.tile(np.diff(ends, prepend=0.0), count)
    communication = durations.reshape(count * steps, per_step).sum(axis=1)
    zeros = np.zeros(count * steps)
    table = {
        "device": np.repeat(np.array(own) % PER_NODE, steps),
        "step": np.tile(np.arange(steps), count),
        "step_us": lengths,
        "compute_us": lengths - communication,
        "communication_us": communication,
        "exposed_us": communication,
        **dict.fromkeys(("hidden_us", "host_copy_us", "device_copy_us", "idle_us", "clipped_us"), zeros),
        "partial_window": np.tile(np.arange(steps) == 0, count),
        **{f"{name}_us": none(count * steps, pa.float64()) for name in _PHASES},
        "collective_count": np.full(count * steps, per_step),
        "by_time_us": zeros,
    }
    evidence = msgspec.msgpack.encode(
        {
            "range_counts": {},
            "parallelism": msgspec.to_builtins(_evidence(ranks)),
            "reduction_ends_us": {},
            "identity": {"source": "", "world_size": ranks},
        }
    )
    columns = {
        "source": pa.array([f"traces/{host_of(rank)}_{rank}.pt.trace.json.gz" for rank in own]),
        "rank": pa.array(own),
        "host": pa.array([host_of(rank) for rank in own]),
        **{name: pa.array([value] * count) for name, value in _ALIKE.items()},
        "evidence": pa.array([evidence] * count, pa.binary()),
        "findings": pa.array([[]] * count, SCHEMA.field("findings").type),
        "collectives": _lists("collectives", collectives, count),
        "exposed": _lists("exposed", exposed, count),
        "steps": _lists("steps", table, count),
        "dp_phases": pa.array([[]] * count, SCHEMA.field("dp_phases").type),
        "kernels": pa.array([[]] * count, SCHEMA.field("kernels").type),
        "copies": _lists("copies", {name: np.zeros(0, dtype=np.int64) for name in COPY_COLUMNS}, count),
        "timeline": pa.nulls(count, pa.binary()),
        "file": pa.array([f"/scratch/{host_of(rank)}_{rank}.pt.trace.json.gz" for rank in own]),
        **{name: pa.array([value] * count, MADE_FROM.field(name).type) for name, value in _MADE.items()},
        "world_size": pa.array([ranks] * count),
    }
    return pa.table([columns[name] for name in PARTIAL_SCHEMA.names], schema=PARTIAL_SCHEMA)


_PHASES = ("data", "host_to_device", "forward", "backward", "optimizer")
_ALIKE = {"zero_ns": 0, "on_device": True, "communication_shown": True, "cut_short": False}
_MADE = {"size_bytes": 5_000_000, "modified_ns": 1, "reader": "1", "reduced_on": None}


def _evidence(ranks: int) -> ParallelismEvidence:
    reduced = Requests(gradients=7, seen=7)
    return ParallelismEvidence(1, ranks, False, False, True, True, frozenset({"all_reduce"}), reduced, Requests())


def _lists(name: str, columns: Mapping[str, Any], count: int) -> pa.Array:
    kind = SCHEMA.field(name).type
    fields = list(kind.value_type)
    unknown = pa.nulls(len(next(iter(columns.values()))))  # a column that is not generated
    arrays = [
        pa.array(columns[one.name], one.type) if one.name in columns else unknown.cast(one.type) for one in fields
    ]
    rows = pa.StructArray.from_arrays(arrays, fields=fields)
    offsets = np.linspace(0, len(rows), count + 1).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), rows, type=kind)
