"""torch's nn.DataParallel on two devices: its copies, the threads of its parts, dpscope's ranges
and traces of it.

One process runs tests/helpers/data_parallel_scenario.py. The devices are PrivateUse1's, for which a
guard of a few lines of C++ is compiled: without a compiler, or with a torch that cannot register
backends from Python, these tests are skipped.
"""

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dpscope.analysis.traces.steps.data_parallel import reduce_chunks
from dpscope.profiling.instruments.ddp_counters import parameter_sizes
from dpscope.profiling.records.range_names import GATHER, PARALLEL_APPLY, REPLICATE, SCATTER
from tests.helpers.data_parallel_scenario import model
from tests.helpers.paths import ROOT
from tests.helpers.two_devices import compile_guard

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler"),
    pytest.mark.skipif(
        not hasattr(torch._C, "_acc"), reason="this torch registers no backend from Python"
    ),
]
SIZE_BYTES = 4 * (4 * 8 + 8 + 8 * 8 + 8 + 8 * 1500 + 1500 + 2 * (1500 * 1500 + 1500) + 1500 * 2 + 2)
CHUNK_BYTES = 10 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data_parallel")
    command = [
        sys.executable,
        "-m",
        "tests.helpers.data_parallel_scenario",
        str(compile_guard(out)),
        str(out),
    ]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return out


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return content


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    found = json.loads(gzip.decompress((folder / f"{name}.json.gz").read_bytes()))["traceEvents"]
    return [one for one in found if one.get("ph") == "X"]


def test_gradients_are_those_of_both_halves(results: dict[str, Any]) -> None:
    assert results["differences"] == [0.0, 0.0]  # plain, and with recomputed activations


def test_what_moves_between_the_devices_and_in_which_order(results: dict[str, Any]) -> None:
    """Inputs, parameters and the buffer of 8 numbers out, outputs in; then their gradients out, and
    those of parameters in.
    """
    moved = [call for call in results["calls"] if call[0] != "record_stream"]
    assert [call[0] for call in moved] == [
        "scatter",
        "broadcast",
        "broadcast",
        "gather",
        "scatter",
        "copy",
        "copy",
    ]
    parameters, buffers = moved[1:3]
    assert parameters == ["broadcast", [0, 1], SIZE_BYTES, CHUNK_BYTES]
    assert buffers == ["broadcast", [0, 1], 8 * 4, CHUNK_BYTES]
    assert moved[3] == ["gather", [0, 1], 0]


def test_gradients_are_reduced_in_chunks_as_dpscope_expects_them(results: dict[str, Any]) -> None:
    copies = [call for call in results["calls"] if call[0] == "copy"]
    assert [call[1:3] for call in copies] == [[1, 0]] * 2  # from the second device to the first
    reduced = [call[3] for call in copies]
    assert sum(reduced) == SIZE_BYTES
    assert all(size <= CHUNK_BYTES for size in reduced)
    assert reduce_chunks(parameter_sizes(model()).parameter_tensors) == reduced


def test_each_replica_has_a_thread_and_each_device_one_of_autograd(results: dict[str, Any]) -> None:
    """Forward runs on two separate threads; backward recomputes activations on autograd's thread of
    the same device.
    """
    forward = {seen[1]: seen[2] for seen in results["seen"]}
    assert sorted(forward) == [0, 1]
    assert len({*forward.values(), results["main_thread"]}) == 3
    again = results["seen_checkpointed"]
    assert [sorted(seen[1] for seen in part) for part in (again[:2], again[2:])] == [[0, 1], [0, 1]]
    backward = {seen[1]: seen[2] for seen in again[2:]}
    scattering = [call[2] for call in results["calls"] if call[0] == "scatter"]
    # The first device's thread splits the outputs' gradients.
    assert scattering == [results["main_thread"], backward[0]]
    assert backward[1] not in (
        backward[0],
        results["main_thread"],
        *(seen[2] for seen in again[:2]),
    )


def test_an_autocast_dtype_reaches_the_replicas_only_from_within_the_model(
    results: dict[str, Any],
) -> None:
    """Autocast around DataParallel reaches the threads without its dtype: hence dpscope's wrapper
    is inside.
    """
    assert results["autocast"] == {
        "around": ["torch.float16"] * 2,
        "within": ["torch.bfloat16"] * 2,
    }


def test_the_phases_are_named_in_their_order_on_the_calling_thread(
    folder: Path, results: dict[str, Any]
) -> None:
    for name in ("all", "own"):
        ranges = [
            one
            for one in events(folder, name)
            if one["name"] in (SCATTER, REPLICATE, PARALLEL_APPLY, GATHER)
        ]
        ordered = sorted(ranges, key=lambda one: float(one["ts"]))
        # two steps
        assert [one["name"] for one in ordered] == [SCATTER, REPLICATE, PARALLEL_APPLY, GATHER] * 2
        assert {one["tid"] for one in ordered} == {results["main_thread"]}
        ends = [float(one["ts"]) + float(one["dur"]) for one in ordered]
        assert all(
            end <= float(later["ts"]) for end, later in zip(ends[:-1], ordered[1:], strict=True)
        )


def test_replicas_are_traced_if_all_threads_are(folder: Path, results: dict[str, Any]) -> None:
    """Two threads a step compute within parallel_apply; the default tracer sees none of them."""
    threads = {}
    for name in ("all", "own"):
        found = events(folder, name)
        spans = [
            (float(one["ts"]), float(one["ts"]) + float(one["dur"]))
            for one in found
            if one["name"] == PARALLEL_APPLY
        ]
        layers = [one for one in found if one["name"] == "aten::linear"]
        assert all(any(begin <= float(one["ts"]) <= end for begin, end in spans) for one in layers)
        threads[name] = [
            len({one["tid"] for one in layers if begin <= float(one["ts"]) <= end})
            for begin, end in spans
        ]
    assert threads == {"all": [2, 2], "own": [0, 0]}


def test_gradients_are_reduced_on_the_first_device_s_thread(
    folder: Path, results: dict[str, Any]
) -> None:
    found = events(folder, "all")
    reducing = {one["tid"] for one in found if one["name"] == "ReduceAddCoalesced"}
    assert len(reducing) == 1
    assert reducing.isdisjoint({results["main_thread"]})
    assert reducing == {one["tid"] for one in found if one["name"] == "GatherBackward"}
