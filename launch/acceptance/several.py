"""What takes two GPUs or more: DataParallel's copies, overlap by engine, links, nccl-tests, a late rank, the order of GPUs."""

import json
import re
import shutil
import statistics
import subprocess
from typing import Any

from dpscope.launch.acceptance.cells import SMALL, judged
from dpscope.launch.acceptance.verdict import CheckVerdict, at_most, equals, none_of, skipped
from dpscope.launch.acceptance.workplace import Workplace, last_line
from dpscope.profiling.machine.interconnect import interconnect
from dpscope.profiling.machine.nvml import open_nvml

_SHORT = ("--steps", "20", "--traced-steps", "2", "--repeats", "1", "--quiet")
_SIZE_BYTES = 64 << 20
_RATE_OF_NCCL_TESTS = 0.2  # apart at most


def data_parallel_counts(place: Workplace) -> list[CheckVerdict]:
    """DataParallel and DDP on two GPUs: all that they must move is in their traces, on every device."""
    analysis, failed = _run(place, "n.run", "counts", ("--strategy", "single,dp,ddp"))
    return failed or judged("n", analysis)


def overlap(place: Workplace) -> list[CheckVerdict]:
    """What each of torch's engines hides; the value is told, and where one hides nothing it is found."""
    flags = ("--strategy", "ddp", "--overlap", "on,off", "--nccl-engine", "legacy,default")
    analysis, failed = _run(place, "o.run", "overlap", flags)
    if failed:
        return failed
    shares = {
        row["cell"]: row["hidden_us"] / row["communication_us"] for row in analysis["cells"] if row["communication_us"]
    }
    told = ",".join(f"{cell}:{share:.0%}" for cell, share in sorted(shares.items()))
    found = [one["code"] for one in analysis["findings"] if one["code"] == "engine_hides_nothing"]
    return [none_of("o.engine_hides_nothing", found, told), CheckVerdict("PASS", "o.hidden", told or "none")]


def links(place: Workplace) -> list[CheckVerdict]:
    """NVLinks as dpscope reads them of NVML, and as `nvidia-smi topo -m` has them."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return [skipped("p.links", "nvidia-smi is not in PATH")]
    listed = subprocess.run([program, "topo", "-m"], capture_output=True, text=True, timeout=30, check=False).stdout
    (place.folder / "topology.txt").write_text(listed)
    own = [link.active_nvlinks for link in interconnect(open_nvml()).devices]
    there = bonded(listed)
    if there is None:
        return [equals("p.links", "nvlink" if any(own) else "no_nvlink", "no_nvlink")]
    return [equals("p.links", max(own, default=0), there, "NVLinks per GPU: by NVML, and by nvidia-smi topo -m")]


def bonded(topology: str) -> int | None:
    """The most NVLinks between two GPUs by ``NV12``; None without any."""
    return max(map(int, re.findall(r"\bNV(\d+)\b", topology)), default=None)


def nccl_tests(place: Workplace) -> list[CheckVerdict]:
    """The calibrated bus bandwidth of a large all-reduce against nccl-tests', where it is installed."""
    program = shutil.which("all_reduce_perf")
    if program is None:
        return [skipped("q.nccl_tests", "all_reduce_perf is not in PATH")]
    size = str(_SIZE_BYTES)
    command = [program, "-b", size, "-e", size, "-g", "2"]
    log = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    out = place.folder / "calibration.json"
    flags = (
        "--devices",
        "2",
        "--collectives",
        "all_reduce",
        "--min-bytes",
        "1MiB",
        "--max-bytes",
        f"{_SIZE_BYTES >> 20}MiB",
    )
    ended = place.dpscope("calibrate", *flags, "--out", out)
    if not out.exists():
        return [equals("q.calibrate", f"status_{ended.returncode}", "status_0", last_line(ended.stderr))]
    theirs = average_bus_gb_per_s(log)
    own = busbw_gb_per_s(json.loads(out.read_text()))
    share = None if theirs is None or own is None else abs(own / theirs - 1)
    return [at_most("q.nccl_tests", share, _RATE_OF_NCCL_TESTS, "%", f"{own} GB/s here, {theirs} GB/s by nccl-tests")]


def average_bus_gb_per_s(log: str) -> float | None:
    """``# Avg bus bandwidth    : 123.4`` of a log."""
    found = re.search(r"Avg bus bandwidth\s*:\s*([\d.]+)", log)
    return None if found is None else float(found[1])


def busbw_gb_per_s(calibration: dict[str, Any]) -> float | None:
    """Of the largest all-reduce of two devices, whose bus bandwidth is its size over its time (2 (N - 1) / N = 1)."""
    points = [one for one in calibration["points"] if one["collective"] == "all_reduce" and one["devices"] == 2]
    largest = max(points, key=lambda one: int(one["size_bytes"]), default=None)
    return None if largest is None else largest["size_bytes"] / statistics.median(largest["times_us"]) / 1e3


def straggler(place: Workplace) -> list[CheckVerdict]:
    """A rank that is 20 ms late is named."""
    model = ("--strategy", "ddp", "--model", "dpscope.launch.acceptance.models:late_on_rank_1")
    analysis, failed = _run(place, "r.run", "straggler", model)
    named = [one["message"] for one in (analysis or {}).get("findings", []) if one["code"] == "straggler"]
    return failed or [equals("r.straggler", any("rank 1" in one for one in named), True, "; ".join(named))]


def order_of_devices(place: Workplace) -> list[CheckVerdict]:
    """The last GPU alone, made the only visible one, is the one that is measured."""
    variables = {"CUDA_VISIBLE_DEVICES": str(place.gpus - 1)}
    analysis, failed = _run(place, "s.run", "last", ("--strategy", "single"), "1", variables)
    return failed or judged("s", analysis)


def _run(
    place: Workplace,
    name: str,
    folder: str,
    flags: tuple[str, ...],
    devices: str = "2",
    variables: dict[str, str] | None = None,
) -> tuple[dict[str, Any], list[CheckVerdict]]:
    """A short run's analysis, and what is wrong with it."""
    run = place.folder / folder
    common = tuple(part for part in SMALL if "--model" not in flags or part not in ("--model", "resnet18_cifar"))
    everything = ("--device", place.kind, "--devices", devices, *flags, *common, *_SHORT, "--out", run)
    ended = place.dpscope("run", *everything, variables=variables)
    if ended.returncode not in (0, 1) or not run.exists():
        return {}, [equals(name, f"status_{ended.returncode}", "status_0", last_line(ended.stderr))]
    return place.analysis(run), []
