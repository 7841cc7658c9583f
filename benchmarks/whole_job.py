"""What do the records of a whole job cost? Logs of generated ranks analysed, in time and memory,
against their bars; and what recording adds to a step.

    python benchmarks/whole_job.py [--ranks 1024] [--collectives 20000] [--small]

The logs of NCCL Inspector are written to a temporary folder, about 0.45 KB a record (9 GB for 1,024
ranks of 20,000 collectives), and removed. The analysis is a separate process, imports included; it
is made of a quarter of the ranks and of all, to show how it grows. Its time on the cores shows how
far other programs made it longer. Recording is the processor's time of Flight Recorder's dumps of a
process of one rank (gloo), at one and at two collectives in a step of 5 ms.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from trace_reading import say

_MOST_S = 60.0
_MOST_MB = 2048.0
_MOST_SHARE = 0.01  # of a step of 5 ms
_STEP_US = 5000.0
_PER_NODE = 8
_ANALYZE = """
import json, resource, sys, time
start = time.perf_counter()
from dpscope.analysis.traces.ranks.readers import find_files
from dpscope.analysis.whole_job.job import read_job
from dpscope.analysis.whole_job.summary import summarise
summary = summarise(read_job(find_files(sys.argv[1]), 1 << 36))
summary.verdict
wall_s = time.perf_counter() - start
own = resource.getrusage(resource.RUSAGE_SELF)
others = resource.getrusage(resource.RUSAGE_CHILDREN)
cpu_s = own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime
late = summary.job.ranks[int(summary.waiting.others.argmax())]
peak_mb = (own.ru_maxrss + 2 * others.ru_maxrss) / 1024
print(json.dumps([wall_s, cpu_s, peak_mb, summary.waiting.counts.matched, late]))
"""


class Cost(NamedTuple):
    """Of an analysis; `peak_mb` is of the process and twice that of the largest that helped."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    matched: int
    late_rank: int


def write_logs(folder: Path, ranks: int, collectives: int) -> int:
    """Logs of ranks, of which one is last in half of the collectives; returns that one."""
    source = np.random.default_rng(0)
    late_rank = int(source.integers(ranks))
    is_late = source.random(collectives) < 0.5
    late = np.where(is_late, late_rank, source.integers(ranks, size=collectives))
    transfer_us = source.integers(1000, 1200, size=collectives)
    wait_us = source.integers(1, 2000, size=collectives)
    performance = [
        f'"coll_sn":{number + 1},"coll_msg_size_bytes":{1 << (20 + number % 4)},"coll_exec_time_us":'
        for number in range(collectives)
    ]
    stamps = [
        f'"dump_timestamp_us":{1748030377748202 + 10_000 * number},'
        for number in range(collectives)
    ]
    for rank in range(ranks):
        host, process_id = f"node{rank // _PER_NODE:03d}", 1000 + rank % _PER_NODE
        header = (
            f'{{"header":{{"id":"0x7f8c496ae9f661","comm_name":"DP","rank":{rank},"n_ranks":{ranks},"nnodes":'
            f'{-(-ranks // _PER_NODE)}}},"metadata":{{"inspector_output_format_version":"v4.0","git_rev":"9019a1912",'
            '"rec_mechanism":"profiler_plugin",'
        )
        middle = f'"hostname":"{host}","pid":{process_id}}},"coll_perf":{{"coll":"AllReduce",'
        end = ',"coll_timing_source":"kernel_gpu","coll_algobw_gbs":277.210914,"coll_busbw_gbs":485.119099}}\n'
        times_us = np.where(late == rank, transfer_us, transfer_us + wait_us).tolist()
        with open(folder / f"{host}-pid{process_id}.log", "w") as file:
            for stamp, own, time_us in zip(stamps, performance, times_us, strict=True):
                file.write(f"{header}{stamp}{middle}{own}{time_us}{end}")
    return late_rank


def analysed(ranks: int, collectives: int) -> Cost:
    with tempfile.TemporaryDirectory(prefix="dpscope-whole-job-") as folder:
        late_rank = write_logs(Path(folder), ranks, collectives)
        command = [sys.executable, "-c", _ANALYZE, folder]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
    cost = Cost(*json.loads(ended.stdout))
    assert cost.matched == ranks * collectives, "every record has its counterparts"
    assert cost.late_rank == late_rank, "the planted rank is found"
    say(
        f"{ranks:,} ranks of {collectives:,} collectives: {cost.wall_s:.1f} s, {cost.cpu_s:.1f} s on the cores, "
        f"{cost.peak_mb:,.0f} MB"
    )
    return cost


def recording_us() -> float:
    """The processor's time of writing a record, for each collective."""
    import torch
    from torch import distributed

    from dpscope.profiling.instruments.collective_records import (
        RING,
        CollectiveRecorder,
        keep_records,
    )

    keep_records()
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    tensor = torch.zeros(4)
    best_us = float("inf")
    with tempfile.TemporaryDirectory() as folder:
        recorder = CollectiveRecorder(Path(folder) / "job", 1, print)
        for _ in range(5):
            fresh = int(0.8 * RING)
            for _ in range(fresh):
                distributed.all_reduce(tensor)
            start = time.thread_time()
            recorder._write()
            best_us = min(best_us, (time.thread_time() - start) / fresh * 1e6)
        recorder.close()
    distributed.destroy_process_group()
    return best_us


def main() -> int:
    parser = argparse.ArgumentParser(description="What do the records of a whole job cost?")
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--collectives", type=int, default=20_000)
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    ranks, collectives = (16, 200) if arguments.small else (arguments.ranks, arguments.collectives)
    part, whole = analysed(ranks // 4, collectives), analysed(ranks, collectives)
    growth = whole.cpu_s / part.cpu_s
    say(f"4 times the ranks take {growth:.1f} times the time on the cores")
    each_us = recording_us()
    for count in (1, 2):
        share = count * each_us / _STEP_US
        say(
            f"recording: {count * each_us:.0f} us a step of {count} collectives, {share:.1%} of 5 ms"
        )
    passed = whole.wall_s <= _MOST_S and whole.peak_mb <= _MOST_MB and growth <= 5
    passed &= each_us <= _MOST_SHARE * _STEP_US
    say("passed" if passed or arguments.small else "FAILED")
    return int(not passed and not arguments.small)


if __name__ == "__main__":
    sys.exit(main())
