"""Commands that measure a planted node or read its runs: calibrate, whatif, compare, merge, bundle
and tensorboard.
"""

import json
import random
import shutil
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dpscope.analysis.output.tensorboard import write_tensorboard
from tests.helpers.tensorboard_pages import get, hparams, serving
from tests.helpers.words import words
from tests.virtual_gpu.conftest import Plant
from tests.virtual_gpu.node import (
    Collectives,
    CollectiveTime,
    Device,
    Kernels,
    KernelTime,
    Node,
    PlantedNode,
)

CELL = "ddp-d2-b8"
PLUGIN = "data/plugin/pytorch_profiler"
SMALL = words(
    "--model tests.user_models.tiny_models:layered --batch-size 8 --steps 5 --traced-steps 2"
)
SIZES = words("--min-bytes 32KiB --max-bytes 512KiB --collectives all_reduce")


@dataclass(frozen=True)
class Planted:
    kernel_us: float
    matrix_us: float
    latency_us: float
    gb_per_s: float
    slowdown: float  # of the second device in the later run

    @property
    def node(self) -> Node:
        # the host enqueues a calibration's calls meanwhile
        sleep = KernelTime(name="spin_kernel", us=200_000)
        kernels = Kernels(us=self.kernel_us, matrix_us=2 * self.kernel_us, by_name=(sleep,))
        times = CollectiveTime(latency_us=self.latency_us, gb_per_s=self.gb_per_s)
        collectives = Collectives(by_size=(times,), largest_moved_bytes=65536)
        return Node(kernels=kernels, collectives=collectives)


@dataclass(frozen=True)
class Calibrated:
    out: Path
    calibration: dict[str, Any]


@dataclass(frozen=True)
class Ran:
    planted: Planted
    node: PlantedNode
    shown: dict[str, Any]  # what `analyze` shows of the run before
    out: Path  # calibrated, then DDP on two devices of `node`
    after: Path  # the same of a node whose second device is slower


@pytest.fixture(scope="module")
def planted(random_values: random.Random) -> Planted:
    return Planted(
        kernel_us=random_values.uniform(1800, 2200),
        matrix_us=random_values.uniform(150, 250),
        latency_us=random_values.uniform(100, 300),
        gb_per_s=random_values.uniform(0.3, 0.6),
        slowdown=random_values.uniform(1.2, 1.4),
    )


@pytest.fixture(scope="module")
def calibrated(
    plant: Plant, planted: Planted, tmp_path_factory: pytest.TempPathFactory
) -> Calibrated:
    """On the same node, where several products of matrices run within a collective."""
    kernels = replace(planted.node.kernels, matrix_us=planted.matrix_us)
    out = tmp_path_factory.mktemp("before") / "run"
    plant(replace(planted.node, kernels=kernels)).dpscope(
        "calibrate",
        *("--devices", "2,4", *SIZES, "--iterations", "3", "--warmup", "1", "--out", str(out)),
        # otherwise a job of each count follows for a log, which the virtual NCCL does not write
        variables={"NCCL_DEBUG": "WARN"},
    )
    # before a run adds broadcasts
    return Calibrated(out, json.loads((out / "calibration.json").read_text()))


@pytest.fixture(scope="module")
def ran(
    plant: Plant, planted: Planted, calibrated: Calibrated, tmp_path_factory: pytest.TempPathFactory
) -> Ran:
    healthy, slow = Device(), Device(slowdown=planted.slowdown)
    node = plant(planted.node)
    slower = plant(replace(planted.node, devices=(healthy, slow, healthy, healthy)))
    after = tmp_path_factory.mktemp("after") / "run"
    run = (*words("run --strategy ddp --devices 2 --repeats 2"), *SMALL)
    shown = undisturbed(node, calibrated.out, *run)
    slower.dpscope(*run, "--no-calibrate", "--out", str(after))
    return Ran(planted, node, shown, calibrated.out, after)


def undisturbed(node: PlantedNode, out: Path, *run: str) -> dict[str, Any]:
    """What `analyze` shows of a run on a node of equal devices, whose ranks wait only where the
    machine that plays the node was too busy to queue their work: such a run is measured again.
    """
    for _ in range(4):
        node.dpscope(*run, "--fresh", "--out", str(out))
        shown = answer(node, "analyze", str(out))
        (cell,) = shown["cells"]
        if cell["exposed_wait_us"] < 0.01 * cell["step_us"]:
            return shown
    pytest.fail("this machine is too busy: ranks of equal devices waited in each of four runs")


def answer(node: PlantedNode, *arguments: str, status: int = 0) -> dict[str, Any]:
    """What a command prints as JSON; its notes on standard error come first."""
    printed = node.dpscope(*arguments, "--format", "json", status=status)
    found: dict[str, Any] = json.loads(printed[printed.index("{\n") :])
    return found


@pytest.mark.parametrize("devices", [2, 4])
def test_calibrate_recovers_latency_and_bandwidth(
    calibrated: Calibrated, planted: Planted, devices: int
) -> None:
    (fit,) = (
        fit
        for fit in calibrated.calibration["fits"]
        if (fit["devices"], fit["statistic"]) == (devices, "slowest")
    )
    (piece,) = fit["pieces"]
    carried = 2 * (devices - 1) / devices  # of each byte, by each link of the ring
    assert piece["alpha_us"] == pytest.approx(planted.latency_us, rel=0.03)
    assert piece["bandwidth_gb_per_s"] * carried == pytest.approx(planted.gb_per_s, rel=0.03)


@pytest.mark.parametrize("devices", [2, 4])
def test_contention_is_what_the_node_has_none_of(
    calibrated: Calibrated, planted: Planted, devices: int
) -> None:
    """Two all-reduces at once take turns on NCCL's stream; one beside products of matrices slows
    neither.
    """
    (contention,) = (
        entry for entry in calibrated.calibration["contention"] if entry["devices"] == devices
    )
    moved_bytes = 2 * (devices - 1) / devices * contention["size_bytes"]  # by each link of the ring
    alone_us = planted.latency_us + moved_bytes / planted.gb_per_s / 1000
    product_us = planted.matrix_us + 2 * 1024**3 / Device().teraflops / 1e6
    expected = {
        "alone_us": alone_us,
        "two_in_flight_us": 2 * alone_us,
        "beside_compute_us": alone_us,
        "compute_alone_us": product_us,
        "compute_beside_us": product_us,
    }
    for name, time_us in expected.items():
        assert contention[name] == pytest.approx([time_us] * 3, rel=0.01), name


def test_a_calibration_whose_queue_runs_dry_stores_nothing(plant: Plant, tmp_path: Path) -> None:
    """A device that sleeps for a microsecond is awake before any host has queued a call behind: its
    times would be the host's.
    """
    kernels = Kernels(us=10.0, by_name=(KernelTime(name="spin_kernel", us=1.0),))
    node = plant(
        Node(
            kernels=kernels,
            collectives=Collectives(by_size=(CollectiveTime(latency_us=20.0, gb_per_s=1.0),)),
        )
    )
    command = (
        "calibrate",
        "--devices",
        "2",
        *SIZES,
        "--iterations",
        "3",
        "--warmup",
        "1",
        "--out",
        str(tmp_path / "run"),
    )
    printed = node.dpscope(*command, status=2)
    assert (
        "nothing could be timed: the host took longer to queue the calls than the GPU slept"
        in " ".join(printed.split())
    )
    assert not (tmp_path / "run" / "calibration.json").exists()


def test_whatif_predicts_other_device_counts(ran: Ran, tmp_path: Path) -> None:
    """Four devices of the same node, which are measured then."""
    (prediction,) = answer(ran.node, "whatif", str(ran.out), "--devices", "4")["predictions"]
    run = (*words("run --strategy ddp --devices 4 --repeats 1"), *SMALL)
    (cell,) = undisturbed(ran.node, tmp_path / "four", *run, "--no-calibrate")["cells"]
    assert prediction["low_us"] <= cell["step_us"] <= prediction["high_us"]
    assert prediction["high_us"] / prediction["low_us"] < 1.5


def test_compare_finds_the_slower_device(ran: Ran) -> None:
    comparison = answer(ran.node, "compare", str(ran.out), str(ran.after), status=1)
    assert comparison["regressions"] == [CELL]
    changes = {change["quantity"]: change for change in comparison["changes"]}
    mean = (1 + ran.planted.slowdown) / 2  # of the two devices
    assert changes["compute"]["ratio"] == pytest.approx(mean, rel=0.01)
    assert changes["step"]["verdict"] == "slower"
    assert changes["step"]["ratio"] == pytest.approx(ran.planted.slowdown, rel=0.05)


def test_merge(ran: Ran, tmp_path: Path) -> None:
    """Its track of transfers holds each all-reduce of both ranks, as long as planted."""
    merged = tmp_path / "merged.json"
    ran.node.dpscope("merge", str(ran.out), "--output", str(merged))
    events = json.loads(merged.read_text())["traceEvents"]
    named = {
        (one["pid"], one["tid"]): one["args"]["name"]
        for one in events
        if one["name"] == "thread_name"
    }
    transfers = [
        one
        for one in events
        if one.get("cat") == "dpscope" and named[one["pid"], one["tid"]] == "transfer"
    ]
    assert len({one["pid"] for one in transfers}) == 2
    assert len(transfers) >= 2 * 2
    planted_us = [
        ran.planted.latency_us + one["args"]["bytes"] / ran.planted.gb_per_s / 1000
        for one in transfers
    ]
    assert [one["dur"] for one in transfers] == pytest.approx(planted_us, rel=1e-3)


def test_a_bundle_is_read_as_the_run_it_holds(ran: Ran, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.zip"
    ran.node.dpscope("bundle", str(ran.out), "--output", str(bundle))
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(tmp_path / "unpacked")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    (own,) = ran.shown["cells"]
    (bundled,) = answer(ran.node, "analyze", str(unpacked))["cells"]
    for name in (
        "step_us",
        "compute_us",
        "transfer_us",
        "hidden_us",
        "exposed_us",
        "bytes_per_step",
    ):
        assert bundled[name] == pytest.approx(own[name], rel=1e-6), name


def test_tensorboard_shows_the_reports_values(ran: Ran, tmp_path: Path) -> None:
    """HParams hold the cell's columns, and the profiler plugin's Distributed view the hidden
    communication of each whole step.
    """
    folder = write_tensorboard([Path(shutil.copytree(ran.out, tmp_path / "run"))], None)
    (cell,) = ran.shown["cells"]
    with serving(folder, tmp_path) as address:
        (session,) = hparams(address, count=1)
        metrics = {value["name"]["tag"]: value["value"] for value in session["metricValues"]}
        spans = get(address, f"{PLUGIN}/spans", run=CELL, worker="All", view="Distributed")
        steps = get(
            address, f"{PLUGIN}/distributed/overlap", run=CELL, worker="All", span=spans[0]
        )["data"]
    for heading, name in (
        ("step", "step"),
        ("compute", "compute"),
        ("transfer", "exposed_transfer"),
        ("wait", "exposed_wait"),
    ):
        shown_ms = metrics[f"report/{heading} [ms]"]
        assert shown_ms == pytest.approx(cell[f"{name}_us"] / 1e3, rel=1e-6, abs=1e-6), name
    assert {len(workers) for workers in steps.values()} == {2}, steps
    compared = 0
    for one in ran.shown["steps"]:
        if not one["partial_window"] and one["repeat"] == 0:
            _, hidden, exposed, _ = steps[str(one["step"])][f"0_{one['rank']}"]
            assert [hidden, exposed] == pytest.approx([one["hidden_us"], one["exposed_us"]], abs=2)
            compared += 1
    assert compared >= 4, ran.shown["steps"]
