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
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

from dpscope.analysis import load_run
from dpscope.analysis.figures import draw
from dpscope.analysis.output.tensorboard import write_tensorboard
from dpscope.launch.commands import bundle
from dpscope.launch.contents import app
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
SMALL = words(
    "--model tests.user_models.tiny_models:layered --batch-size 8 --steps 4 --traced-steps 2"
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
        kernel_us=random_values.uniform(2700, 3300),
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
    undisturbed(slower, after, *run, "--no-calibrate")
    return Ran(planted, node, shown, calibrated.out, after)


def undisturbed(node: PlantedNode, out: Path, *run: str) -> dict[str, Any]:
    """What `analyze` shows of a run on a node whose steps all take the same time, timed or traced,
    unless the machine that plays the node is too busy to queue their work: such a run is measured
    again.
    """
    for _ in range(4):
        node.dpscope(*run, "--fresh", "--out", str(out))
        shown = answer(node, "analyze", str(out))
        (cell,) = shown["cells"]
        if max(cell["step_us"], cell["traced_step_us"]) < 1.02 * fastest_us(out):
            return shown
    pytest.fail("this machine is too busy: steps took unlike times in each of four runs")


def fastest_us(out: Path) -> float:
    """The fastest timed step of a run's only cell."""
    (cell,) = load_run(out).cells.values()
    timed = cell.samples[cell.samples["measuring_pass"] == "timed"]
    return float(timed["step_us"].min())


def answer(node: PlantedNode, *arguments: str, status: int = 0) -> dict[str, Any]:
    """What a command prints as JSON; its notes on standard error come first."""
    printed = node.dpscope(*arguments, "--format", "json", status=status)
    found: dict[str, Any] = json.loads(printed[printed.index("{\n") :])
    return found


@pytest.mark.timed
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


@pytest.mark.timed
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
    command = words("calibrate --devices 2 --iterations 3 --warmup 1 --out")
    printed = node.dpscope(*command, str(tmp_path / "run"), *SIZES, status=2)
    assert (
        "nothing could be timed: the host took longer to queue the calls than the GPU slept"
        in " ".join(printed.split())
    )
    assert not (tmp_path / "run" / "calibration.json").exists()


@pytest.mark.timed
def test_whatif_predicts_other_device_counts(ran: Ran, tmp_path: Path) -> None:
    """Four devices of the same node, which are measured then. Its fastest step counts: the host of
    four ranks, which this machine is, delays some.
    """
    (prediction,) = answer(ran.node, "whatif", str(ran.out), "--devices", "4")["predictions"]
    run = words("run --strategy ddp --devices 4 --repeats 1 --no-calibrate")
    ran.node.dpscope(*run, *SMALL, "--out", str(tmp_path / "four"))
    assert prediction["low_us"] <= fastest_us(tmp_path / "four") <= prediction["high_us"]
    assert prediction["high_us"] / prediction["low_us"] < 1.5


@pytest.mark.timed
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


def test_a_bundle_is_read_as_the_run_it_holds(
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "_machine_notes", dict)  # of this machine, not of the node
    packed = tmp_path / "bundle.zip"
    ended = CliRunner().invoke(app, ["bundle", str(ran.out), "--output", str(packed)])
    assert ended.exit_code == 0, ended.output
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(tmp_path / "unpacked")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    (own,) = ran.shown["cells"]
    (bundled,) = answer(ran.node, "analyze", str(unpacked))["cells"]
    names = "step_us compute_us transfer_us hidden_us exposed_us bytes_per_step"
    for name in names.split():
        assert bundled[name] == pytest.approx(own[name], rel=1e-6), name


def test_hparams_are_the_reports_values(
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw, "RUN_FIGURES", ())
    folder = write_tensorboard([Path(shutil.copytree(ran.out, tmp_path / "run"))], None)
    shown = EventAccumulator(str(folder / CELL)).Reload()
    (cell,) = ran.shown["cells"]
    columns = {
        "step": "step",
        "compute": "compute",
        "transfer": "exposed_transfer",
        "wait": "exposed_wait",
    }
    for heading, column in columns.items():
        (metric,) = shown.Scalars(f"report/{heading} [ms]")
        assert metric.value == pytest.approx(cell[f"{column}_us"] / 1e3, rel=1e-6, abs=1e-6)
