"""Every strategy on four virtual devices, one of them slow: `dpscope run`, its ledgers, transfers,
timing and counters, and what once failed on nodes with GPUs.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest

from dpscope.analysis import analyze_traces, compare, load_run
from dpscope.analysis.runs.run_data import RunData
from dpscope.profiling.records.run import Cell, Manifest
from dpscope.profiling.store.files import read_json
from dpscope.profiling.store.folders import RunFolder
from tests.helpers import gpu_checks
from tests.helpers.words import words
from tests.virtual_gpu.conftest import Plant
from tests.virtual_gpu.ledgers import assert_ledgers_are_true
from tests.virtual_gpu.node import (
    Collectives,
    CollectiveTime,
    Device,
    Kernels,
    KernelTime,
    Links,
    Node,
    Truth,
)
from tests.virtual_gpu.programs import noted_limits
from tests.virtual_gpu.true_steps import length_us, process_of, traced, united, without

DEVICES, TRACED_STEPS, TIMED_STEPS = 4, 3, 4
LIMIT_S = 140
# by CUDA's own order the faster ones come first
NAMES = ("dpscope virtual GPU", "dpscope virtual GPU fast") * 2
TERAFLOPS = (10, 30) * 2
CELLS = MappingProxyType(
    {
        "single": "single-d1-b8",
        "dp": "dp-d4-b8",
        "ddp": "ddp-d4-b8-bucket-0.5mb",
        "replicate": "replicate-d4-b8",
        "fsdp": "fsdp-d4-b8",
        "hsdp": "hsdp-d4-b8",
    }
)
# tests/user_models/tiny_models.py, `layered`: parameters in fp32, buffers in fp32 and one in int64;
# batches of 8.
PARAMETERS, FLOAT_BUFFERS, INTEGER_BUFFER = 2_502_656, 4096, 8
INPUTS, OUTPUTS = 8 * 192 * 4, 8 * 4 * 4
# FSDP gathers every unit twice; HSDP shards over two devices, and reduces its shards between two.
TRAFFIC: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "ddp": {"all_reduce": PARAMETERS, "broadcast": FLOAT_BUFFERS + INTEGER_BUFFER},
        "replicate": {"all_reduce": PARAMETERS},
        "fsdp": {"all_gather": 2 * PARAMETERS, "reduce_scatter": PARAMETERS},
        "hsdp": {
            "all_gather": 2 * PARAMETERS,
            "reduce_scatter": PARAMETERS,
            "all_reduce": PARAMETERS // 2,
        },
    }
)
# times (n-1)/n: a ring's links
CARRIED = MappingProxyType({"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1})
ONCE_A_STEP = "nll_loss_forward"  # a kernel
LEAST_WARM_UP_STEPS, LEAST_WARM_UP_S = 11, 1.5


@dataclass(frozen=True)
class Planted:
    slow_device: int
    slowdown: float
    latency_us: float
    gb_per_s: float
    copy_us: float


@dataclass(frozen=True)
class Ran:
    planted: Planted
    truth: Truth
    folder: Path
    data: RunData
    limits_s: dict[str, dict[str, float]]  # by file: of a rank's groups

    def traces(self, strategy: str, passes: str = "traces") -> list[Path]:
        return sorted(self.folder.glob(f"cells/{CELLS[strategy]}/repeat0/{passes}/*.gz"))


@pytest.fixture(scope="module")
def ran(
    plant: Plant, random_values: random.Random, tmp_path_factory: pytest.TempPathFactory
) -> Ran:
    planted = Planted(
        slow_device=random_values.randrange(DEVICES),
        slowdown=random_values.uniform(2.5, 3.0),
        latency_us=random_values.uniform(80, 200),
        gb_per_s=random_values.uniform(0.6, 1.0),
        copy_us=random_values.uniform(100, 300),
    )
    slowdowns = [
        planted.slowdown if index == planted.slow_device else 1.0 for index in range(DEVICES)
    ]
    node = plant(
        Node(
            devices=tuple(
                Device(name=name, teraflops=teraflops, slowdown=slowdown)
                for name, teraflops, slowdown in zip(NAMES, TERAFLOPS, slowdowns, strict=True)
            ),
            kernels=Kernels(
                us=300, by_name=(KernelTime(name="sgemm", us=random_values.uniform(500, 900)),)
            ),
            links=Links(gb_per_s=planted.gb_per_s, latency_us=planted.copy_us),
            collectives=Collectives(
                by_size=(CollectiveTime(latency_us=planted.latency_us),), largest_moved_bytes=65536
            ),
        )
    )
    folder, noted = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("limits")
    node.dpscope(
        *("run", "--strategy", ",".join(CELLS), "--devices", f"1,{DEVICES}"),
        *words("--batch-size 8 --bucket-mb 0.5 --repeats 1 --no-ddp-alone --no-calibrate"),
        *("--model", f"{noted_limits.__name__}:layered", "--timeout", str(LIMIT_S)),
        *("--steps", str(TIMED_STEPS), "--traced-steps", str(TRACED_STEPS), "--out", str(folder)),
        variables={noted_limits.FOLDER: str(noted)},
    )
    limits_s = {path.stem: json.loads(path.read_text()) for path in noted.iterdir()}
    return Ran(planted, node.truth(), folder, load_run(folder), limits_s)


@pytest.mark.parametrize("strategy", CELLS)
def test_every_part_of_every_step_equals_the_truth(ran: Ran, strategy: str) -> None:
    assert_ledgers_are_true(ran.truth, ran.traces(strategy), TRACED_STEPS)


@pytest.mark.timed
@pytest.mark.parametrize("strategy", TRAFFIC)
def test_transfers_take_what_was_planted_for_computed_bytes(ran: Ran, strategy: str) -> None:
    table = analyze_traces(ran.traces(strategy)).collectives
    per_step = table.groupby(["rank", "step", "kind"])["bytes"].sum()
    assert per_step.index.get_level_values("rank").nunique() == DEVICES
    assert {kind: set(sums) for kind, sums in per_step.groupby("kind")} == {
        kind: {size} for kind, size in TRAFFIC[strategy].items()
    }
    split = table[table["kind"].isin(list(CARRIED))]
    ring_bytes = split["kind"].map(CARRIED) * (1 - 1 / split["group_size"]) * split["bytes"]
    planted_us = ran.planted.latency_us + ring_bytes / ran.planted.gb_per_s / 1000
    assert split["transfer_us"].to_list() == pytest.approx(planted_us.to_list(), abs=0.01)


@pytest.mark.parametrize("strategy", CELLS)
def test_steps_by_events_equal_the_virtual_clock(ran: Ran, strategy: str) -> None:
    """The timer records an event between steps, and one when the batch is there, on the process's
    first device.
    """
    samples = ran.data.cells[CELLS[strategy]].samples
    timed = samples[samples["measuring_pass"] == "timed"]
    for rank, trace in enumerate(ran.traces(strategy)):
        times_ns = _events_ns(ran, trace)
        steps_us = timed[timed["rank"] == rank]["step_us"].to_numpy()
        assert len(steps_us) == TIMED_STEPS
        waits_us = timed[timed["rank"] == rank]["data_wait_us"].to_numpy()
        parts_us = np.column_stack([waits_us, steps_us - waits_us]).ravel()
        parts = len(parts_us)
        between_us = np.diff(times_ns) / 1000
        windows_us = [between_us[start : start + parts] for start in range(len(between_us) - parts)]
        assert any(np.allclose(found, parts_us, rtol=1e-5, atol=0.1) for found in windows_us)


@pytest.mark.parametrize("strategy", CELLS)
def test_memory_and_states_are_those_of_the_devices_that_ran(ran: Ran, strategy: str) -> None:
    for rank, trace in enumerate(ran.traces(strategy)):
        devices = list(range(DEVICES)) if strategy == "dp" else [rank]
        work = ran.truth.work[ran.truth.work["pid"] == process_of(trace)]
        assert sorted(work["device"].unique()) == devices
        stored = json.loads((trace.parents[1] / f"rank_0_{rank}.json").read_text())
        assert [memory["device"] for memory in stored["memory"]] == devices
        for moment in ("device_states_before", "device_states_after"):
            assert [state["index"] for state in stored[moment]] == devices


@pytest.mark.timed
@pytest.mark.parametrize("strategy", CELLS)
def test_warm_up_is_as_long_on_every_rank(ran: Ran, strategy: str) -> None:
    counts = set()
    for trace in ran.traces(strategy):
        work = ran.truth.work[ran.truth.work["pid"] == process_of(trace)]
        before = work[work["start_ns"] < _first_timed_ns(ran, trace, strategy)]
        counts.add(int(before["name"].str.contains(ONCE_A_STEP).sum()))
        assert before["end_ns"].max() - before["start_ns"].min() > 1e9 * LEAST_WARM_UP_S
    assert len(counts) == 1
    assert counts.pop() >= LEAST_WARM_UP_STEPS


def test_phases_of_data_parallel(ran: Ran) -> None:
    """By the names and sizes of what moves: broadcasts replicate, inputs are scattered, outputs
    gathered.
    """
    (trace,) = ran.traces("dp")
    work = traced(ran.truth.work, trace)
    table = analyze_traces([trace]).dp_phases
    for step in sorted(work["step"].unique())[1:]:
        of_step = work[work["step"] == step]
        for device in range(DEVICES):
            phases = table[(table["step"] == step) & (table["device"] == device)].set_index("phase")
            own = of_step[of_step["device"] == device]
            copies = of_step[
                (of_step["name"] == "ptop") & of_step[["source", "target"]].eq(device).any(axis=1)
            ]
            compute = _spans(own[(own["kind"] == "kernel") & ~own["name"].str.startswith("nccl")])
            # the gradient of the outputs
            back = (copies["source"] == 0) & (copies["bytes"] == OUTPUTS)
            moved = {
                "scatter": copies[copies["bytes"] == INPUTS],
                "replicate": own[own["name"].str.contains("Broadcast")],
                "gather": copies[(copies["bytes"] == OUTPUTS) & ~back],
                "loss_backward": copies[back],
                "gradient_reduce": own[own["name"].str.contains("Reduce")],
            }
            for phase, rows in moved.items():
                exposed_us = length_us(without(_spans(rows), compute))
                assert phases.loc[phase, "exposed_us"] == pytest.approx(exposed_us, abs=1)
            assert (
                len(moved["scatter"]) == len(moved["gather"]) == (DEVICES - 1 if device == 0 else 1)
            )
            assert len(moved["replicate"]) == phases.loc["replicate", "collective_count"] == 3
            assert phases.loc["gradient_reduce", "collective_bytes"] == PARAMETERS
            assert phases.loc["scatter", "time_us"] == pytest.approx(
                len(moved["scatter"])
                * (ran.planted.copy_us + INPUTS / ran.planted.gb_per_s / 1000),
                abs=1,
            )


@pytest.mark.timed
def test_the_slow_device_is_critical(ran: Ran) -> None:
    """Of DataParallel's devices the slow one is idle for the least time."""
    table = compare(ran.data).table.set_index("cell")
    assert table.loc[CELLS["dp"], "critical_device"] == ran.planted.slow_device


def test_data_parallel_copies_nothing_by_the_host(ran: Ran) -> None:
    """Its collectives have no transfer because one process drives all devices."""
    reason = compare(ran.data).reasons[CELLS["dp"], "transfer_us"]
    assert reason == "one process drives all devices: there are no ranks to match"


def test_counters_of_ddp_are_those_of_their_step(ran: Ran) -> None:
    """DDP records events around its forward pass, its backward pass and its communication, and
    counts between them.
    """
    for rank, trace in enumerate(ran.traces("ddp", "counters")):
        counters = json.loads(trace.with_name(f"0_{rank}.json").read_text())
        reduced = traced(ran.truth.collectives.query("name.str.contains('AllReduce')"), trace)
        work, times_ns = traced(ran.truth.work, trace), _events_ns(ran, trace)
        assert len(counters) == TRACED_STEPS + 1
        for counter in counters:
            of_step = reduced[reduced["step"] == counter["step"]]
            assert sorted(counter["bucket_bytes"]) == sorted(of_step["bytes"])
            ran_ns = work[work["step"] == counter["step"]][["start_ns", "end_ns"]]
            near = [time for time in times_ns if abs(time - ran_ns["start_ns"].min()) < 5e9]
            spans_us = np.subtract.outer(near, near).ravel() / 1000
            for name in ("forward_compute_us", "backward_compute_us", "backward_comm_us"):
                assert np.abs(spans_us - counter[name]).min() < 1
            communication_us = length_us(_spans(of_step))
            whole_us = (ran_ns["end_ns"].max() - ran_ns["start_ns"].min()) / 1000
            assert communication_us <= counter["backward_comm_us"] + 20
            assert counter["backward_comm_us"] <= whole_us + 20


def test_the_gpus_that_are_measured_are_those_recorded(ran: Ran) -> None:
    """CUDA's own order begins with the faster ones."""
    environment = read_json(ran.folder / "manifest.json", Manifest).environment
    assert [one.name for one in environment.accelerators] == list(NAMES)
    ranks = RunFolder(ran.folder).repeat(Cell("single", 1, 8), 0).ranks()
    assert gpu_checks.measured_uuids(ranks) == {"d5000000-0000-0000-0000-000000000000"}


def test_the_engine_that_torch_registers_is_recorded(ran: Ran) -> None:
    """torch 2.14 has a second one, which it uses only when TORCH_DIST_USE_NCCL2 says so."""
    engine = read_json(ran.folder / "manifest.json", Manifest).environment.nccl_engine
    ranks = RunFolder(ran.folder).repeat(Cell("hsdp", DEVICES, 8), 0).ranks()
    assert {engine, *(rank.nccl_engine for rank in ranks)} == {"ProcessGroupNCCL"}


def test_every_group_of_a_mesh_has_the_jobs_limit(ran: Ran) -> None:
    """80% of --timeout, where NCCL's own is ten minutes."""
    of_mesh = [("0,1", "0,2"), ("0,1", "1,3"), ("2,3", "0,2"), ("2,3", "1,3")]
    for rank, groups in enumerate(of_mesh):
        expected = dict.fromkeys(("0,1,2,3", *groups), 0.8 * LIMIT_S)
        assert ran.limits_s[f"groups3-rank{rank}"] == expected


def test_replicas_of_hsdp_reduce_in_two_groups_at_once(ran: Ran) -> None:
    """So no calibration of a pair of GPUs predicts them
    (tests/launch/measuring/test_first_calibration.py).
    """
    reduced = ran.truth.collectives.query("name.str.contains('AllReduce') and ranks == 2")
    devices = {frozenset(group) for _, group in reduced.groupby("communicator")["device"]}
    assert devices == {frozenset({0, 2}), frozenset({1, 3})}


def _events_ns(ran: Ran, trace: Path) -> list[int]:
    """When a process's first device reached its events that have times, in order."""
    events = ran.truth.events[ran.truth.events["pid"] == process_of(trace)]
    return sorted(events[events["device"] == events["device"].min()]["time_ns"].astype(int))


def _first_timed_ns(ran: Ran, trace: Path, strategy: str) -> int:
    """The boundary before the first timed step: the first events outside of DDP are the timer's."""
    times_ns = _events_ns(ran, trace)
    samples = ran.data.cells[CELLS[strategy]].samples
    rank = ran.traces(strategy).index(trace)
    first_us = samples[(samples["measuring_pass"] == "timed") & (samples["rank"] == rank)][
        "step_us"
    ].iloc[0]
    pairs = zip(times_ns, times_ns[2:], strict=False)
    return next(
        start
        for start, end in pairs
        if abs((end - start) / 1000 - first_us) < 0.1 + 1e-5 * first_us
    )


def _spans(work: pd.DataFrame) -> list[tuple[int, int]]:
    return united(zip(work["start_ns"].astype(int), work["end_ns"].astype(int), strict=True))
