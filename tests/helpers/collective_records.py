"""Records of collectives made for tests: Flight Recorder dumps and NCCL Inspector logs."""

import json
import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

START_NS = 1_795_000_000_000_000_000


def entry(number: int, **other: Any) -> dict[str, Any]:
    """An entry of a dump: an all-reduce of 1,000 floats of the default group, completed."""
    return {
        "record_id": number,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": START_NS + number * 10_000_000,
        "duration_ms": None,
        "input_sizes": [[1000]],
        "input_dtypes": ["Float"],
        "output_sizes": [[1000]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "retired": True,
        "is_p2p": False,
    } | other


def dump(entries: Iterable[dict[str, Any]], ranks: Sequence[int] = (0, 1)) -> dict[str, Any]:
    """A dump of a process whose only group has these ranks."""
    group = {"name": "0", "desc": "default_pg", "ranks": str(list(ranks))}
    return {"version": "2.10", "pg_config": {"0": group}, "entries": list(entries)}


def timed_dump(
    durations_ms: Sequence[float | None], ranks: Sequence[int] = (0, 1)
) -> dict[str, Any]:
    """A dump whose collectives, numbered from 1, took these times."""
    entries = [entry(number, duration_ms=time) for number, time in enumerate(durations_ms, start=1)]
    return dump(entries, ranks)


def write_dumps(folder: Path, dumps: Sequence[dict[str, Any]], as_json: bool = False) -> Path:
    """A file for each rank in order: ``_dump_0``."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, shared in enumerate(dumps):
        content = _of_rank(rank, shared)
        packed = json.dumps(content).encode() if as_json else pickle.dumps(content, protocol=2)
        (folder / f"_dump_{rank}").write_bytes(packed)
    return folder


def _of_rank(rank: int, shared: dict[str, Any]) -> dict[str, Any]:
    """The dump with times of its own: no two ranks create a call in the same nanosecond."""
    entries = []
    for one in shared["entries"]:
        time_ns = one["time_created_ns"]
        entries.append(one | {"time_created_ns": time_ns + rank if time_ns else time_ns})
    return shared | {"entries": entries}


def log_line(rank: int, number: int, time_us: float | None, **other: Any) -> dict[str, Any]:
    """A line of a log: an all-reduce of 1 MiB between two ranks on two hosts."""
    header = {"id": "0xabc", "comm_name": "DP", "rank": rank, "n_ranks": 2, "nnodes": 2}
    metadata = {
        "inspector_output_format_version": "v4.0",
        "hostname": f"node{rank}",
        "pid": 100 + rank,
        "dump_timestamp_us": START_NS // 1000 + number * 1_000_000,
    }
    performance = {
        "coll": "AllReduce",
        "coll_sn": number,
        "coll_msg_size_bytes": 1 << 20,
        "coll_exec_time_us": time_us,
        "coll_timing_source": "kernel_gpu",
    }
    return {
        "header": header | other.pop("header", {}),
        "metadata": metadata | other.pop("metadata", {}),
        "coll_perf": performance | other,
    }


def write_logs(folder: Path, ranks: Sequence[Iterable[dict[str, Any]]]) -> Path:
    """A file for each rank in order."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, lines in enumerate(ranks):
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (folder / f"node{rank}-pid{100 + rank}.log").write_text(text)
    return folder
