"""Causes of missing overlap that only devices have, planted in generated traces: numbers by hand,
and near misses.

Of a step 4 x 1 ms is the forward pass, 4 x 2 ms the backward, and behind each layer's backward an
all-reduce takes 1.5 ms. Each overlaps the next layer's 2 ms, the last one overlaps nothing: 4.5 of
6 ms are hidden. Launches take microseconds.
"""

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dpscope.analysis.findings.no_overlap import no_overlap_finding, overlap_reasons
from dpscope.analysis.runs.run_data import traced_run
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.generated_traces.launched import Launched, write_launched_job
from tests.helpers.known import known
from tests.helpers.paths import DATA


def cell_of(paths: list[Path]) -> Job:
    (data,) = traced_run(analyze_traces(paths), paths).cells.values()
    return data


def about(value: float, share: float = 0.01) -> object:
    return pytest.approx(value, rel=share)


@pytest.mark.parametrize(
    ("options", "means_ms", "held_ms", "reason", "advice"),
    [
        # All but the last bucket is hidden, and the host is ahead.
        (
            Launched(),
            {"hidden": about(4.5), "exposed": about(1.5), "unlaunched": pytest.approx(0, abs=0.05)},
            [0, 0, 0, 0],
            "",
            "",
        ),
        # Three layers' kernels, launched long before, wait for 1.5 ms each; nothing is left to wait
        # for the last all-reduce.
        (
            Launched(waits=True),
            {"exposed": about(6.0)},
            [1.5, 1.5, 1.5, 0],
            "held_compute: compute that was already launched waits for 4.50 ms of the 6.00 ms exposed, until a collective ends",
            "CUDA_DEVICE_MAX_CONNECTIONS",
        ),
        # Kernels wait behind collectives of their stream, which explains it: nothing else is named.
        (
            Launched(on_compute_stream=True),
            {},
            None,
            "compute_stream: 100% of it runs on a stream that also computes, where one waits for the other",
            "launch collectives on a separate stream",
        ),
        # 3 ms of host time before each layer: the device has nothing for 2 ms behind each of 4
        # forward kernels. Of the backward pass the all-reduce covers what the kernel does not: both
        # of a layer take 3.5 ms, so the next kernel begins 0.5 ms before that ends, and only that
        # is hidden. Before the first forward kernel, behind the last step, are 3 ms with nothing
        # launched. A step: 8 x 3 ms of the host's, the last layer's 2 ms, its all-reduce and the
        # optimizer.
        (
            Launched(host_us=3000.0),
            {"hidden": about(3 * 0.5, 0.03), "unlaunched": about(3 + 3 * 2 + 2, 0.03)},
            None,
            "host_bound: the host launches work too late: for 11.0 ms of a 27.7 ms step the CPU had queued no work",
            ".item()",
        ),
        # 8 of 12 ms computing; the first bucket would have been ready after 6, but all are after
        # 12.
        (
            Launched(compiled=True),
            {},
            None,
            "compiled_graph: its buckets are ready only when the step's compute is nearly done: 10.0 MB at 100%, 10.0 MB at "
            "100%, 10.0 MB at 100%, 10.0 MB at 100%; one compiled backward graph, 67% of that compute, returns their gradients",
            "compile each block separately",
        ),
    ],
)
def test_a_planted_cause_is_the_only_one_that_is_named(
    tmp_path: Path,
    options: Launched,
    means_ms: dict[str, object],
    held_ms: list[float] | None,
    reason: str,
    advice: str,
) -> None:
    data = cell_of(write_launched_job(tmp_path, options))
    found = {name: known(data.whole_windows.mean(f"{name}_us")) / 1e3 for name in means_ms}
    assert found == means_ms
    if held_ms is not None:  # of each all-reduce of a step, as they come
        whole = data.collectives[data.collectives["step"] > 0]
        means = whole.groupby(whole.groupby(["rank", "step"]).cumcount())["held_us"].mean()
        assert [float(one) / 1e3 for one in means] == pytest.approx(held_ms, abs=0.01)
    reasons = [f"{one.name}: {one.text}" for one in overlap_reasons(data)]
    assert len(reasons) == bool(reason)
    assert "".join(reasons).startswith(reason)
    findings = list(no_overlap_finding(data))
    assert [one.severity for one in findings] == ["warning"] * len(reasons)
    assert all(advice in one.next_step for one in findings)


def test_a_real_job_whose_host_was_slow_is_named_with_numbers_from_its_file() -> None:
    """ResNet-50 on two A100: of 222 ms a step the GPU computes 39. What it had to run is counted
    here from the file itself.
    """
    path = DATA / "a100x2_ddp_resnet50_rank0.json.gz"
    data = cell_of([path])
    (reason,) = overlap_reasons(data)
    assert reason.name == "host_bound"
    windows = data.whole_windows
    begins = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    calls = {
        one["args"]["correlation"]: one["ts"]
        for one in begins
        if one.get("cat") in ("cuda_runtime", "cuda_driver")
        and "correlation" in one.get("args", {})
    }
    works = [one for one in begins if one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    pending = sorted(
        (min(calls.get(one["args"]["correlation"], one["ts"]), one["ts"]), one["ts"] + one["dur"])
        for one in works
    )
    ends = step_ends(begins, works, calls)
    expected = [nothing_pending(pending, begin, end) for begin, end in pairwise(ends)]
    assert len(expected) == len(windows) == 2
    assert windows["unlaunched_us"].astype(float).tolist() == pytest.approx(expected, rel=1e-3)
    mean, step = sum(expected) / 2e3, float(windows["step_us"].mean()) / 1e3
    assert reason.text.endswith(
        f"for {mean:.1f} ms of a {step:.1f} ms step the CPU had queued no work"
    )


Event = dict[str, Any]


def step_ends(events: list[Event], works: list[Event], calls: dict[int, float]) -> list[float]:
    """When the last work that each ProfilerStep launched ended."""
    steps = sorted(
        (one["ts"], one["ts"] + one["dur"])
        for one in events
        if str(one.get("name")).startswith("ProfilerStep#")
        and one.get("cat") in ("cpu_op", "user_annotation")
    )
    return [
        max(
            one["ts"] + one["dur"]
            for one in works
            if begin <= calls.get(one["args"]["correlation"], -1.0) < end
        )
        for begin, end in steps
    ]


def nothing_pending(pending: list[tuple[float, float]], begin: float, end: float) -> float:
    """Time from `begin` to `end` in which none of the spans, sorted by their starts, is open."""
    nothing, reach = 0.0, begin
    for first, last in pending:
        if first >= end:
            break
        nothing += max(0.0, first - reach)
        reach = max(reach, last)
    return nothing + max(0.0, end - reach)
