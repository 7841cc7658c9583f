"""The calibration before a run's cells: collectives, device counts, sizes, and stored results."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from dpscope.analysis.costs.calibration_files import load_calibration
from dpscope.launch.jobs.devices import Devices
from dpscope.launch.jobs.stop_request import StoppedError
from dpscope.launch.measuring import first_calibration as calibration_module
from dpscope.launch.measuring.first_calibration import (
    calibrate_first,
    calibrated_sizes,
    calibration_seconds,
    needed_pairs,
    of_this_machine,
    plan_calibration,
    stored_calibration,
)
from dpscope.launch.planning.cells import make_plan, resolve
from dpscope.launch.planning.run_config import load_config
from dpscope.launch.workload.model_size import SIZES, ModelSize
from dpscope.profiling.records.calibration import Calibration, CalibrationPoint, CalibrationSettings
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.matrix import Layout
from dpscope.profiling.records.run import Cell, Environment, PlannedCell
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RunFolder
from tests.helpers.known import known
from tests.helpers.paths import EXAMPLE_RUN
from tests.helpers.run_cells import calibration, fitted
from tests.helpers.run_cells import timed as timed_sizes

RESNET = SIZES["resnet18_cifar"]  # 11,173,962 parameters: 44.7 MB of gradients


def planned(
    kind: str, stored: Calibration | None = None, **flags: object
) -> CalibrationSettings | None:
    config = load_config(None, {"devices": "1,2,4", "batch_size": "8", **flags})
    devices = Devices(kind="cuda", count=4) if kind == "cuda" else Devices(kind="cpu", count=None)
    resolved = resolve(config, devices)
    plan = make_plan(resolved.matrix, resolved.workload.samples, devices.kind)
    return plan_calibration(plan, resolved, devices.kind, RESNET, stored)


def holding(*pairs: tuple[Any, int]) -> Calibration:
    points = tuple(
        CalibrationPoint(
            collective=kind, devices=count, size_bytes=8, count=2, dtype="float32", times_us=(1.0,)
        )
        for kind, count in pairs
    )
    return msgspec.structs.replace(calibration({}), points=points)


@pytest.mark.parametrize(
    ("kind", "flags", "counts", "collectives"),
    [
        ("cuda", {"strategy": "single,ddp"}, (2, 4), ("all_reduce", "broadcast")),
        ("cuda", {}, (2, 4), ("all_reduce", "broadcast", "reduce")),
        ("cpu", {}, (2, 4), ("all_reduce", "broadcast")),  # dp-host uses no link
        ("cpu", {"broadcast_buffers": "off"}, (2, 4), ("all_reduce",)),
        ("cuda", {"strategy": "fsdp", "devices": "1,4"}, (4,), ("all_gather", "reduce_scatter")),
        (
            "cuda",
            {"strategy": "ddp,fsdp", "devices": "2"},
            (2,),
            ("all_reduce", "all_gather", "reduce_scatter", "broadcast"),
        ),
    ],
)
def test_each_strategy_has_its_collectives_timed_unless_they_are_stored(
    kind: str, flags: dict[str, object], counts: tuple[int, ...], collectives: tuple[str, ...]
) -> None:
    settings = planned(kind, None, **flags)
    assert settings is not None
    assert settings.devices == counts
    assert set(settings.collectives) == set(collectives)
    held = [(collective, count) for collective in collectives for count in counts]
    assert planned(kind, holding(*held), **flags) is None


def test_hsdp_has_timed_what_one_group_of_a_node_runs() -> None:
    """Its four shards are reduced between two nodes at once: one ring alone would be faster. On one
    node all groups share.
    """
    cell = Cell(strategy="hsdp", devices=8, batch_size=8, nodes=2)
    assert needed_pairs([PlannedCell(cell=cell)]) == {
        ("all_gather", Layout(1, 4)),
        ("reduce_scatter", Layout(1, 4)),
    }
    assert needed_pairs([PlannedCell(cell=msgspec.structs.replace(cell, nodes=1))]) == set()
    each_alone = msgspec.structs.replace(cell, nodes=8)  # one ring of eight, and nothing to gather
    assert needed_pairs([PlannedCell(cell=each_alone)]) == {("all_reduce", Layout(8, 1))}
    assert needed_pairs([PlannedCell(cell=msgspec.structs.replace(cell, strategy="fsdp"))]) == {
        ("all_gather", Layout(2, 4)), ("reduce_scatter", Layout(2, 4)),
    }  # fmt: skip


def test_nothing_is_timed_that_is_not_needed_not_wanted_or_there_already() -> None:
    assert planned("cpu", strategy="single,dp") is None
    assert planned("cpu", devices="1") is None
    assert planned("cpu", calibrate=False) is None
    rest = planned("cpu", holding(("all_reduce", 2), ("all_reduce", 4), ("broadcast", 2)))
    assert rest is not None
    assert (rest.devices, rest.collectives) == ((4,), ("broadcast",))
    logs = msgspec.structs.replace(holding(), source="nccl-tests")
    assert planned("cpu", logs) is None  # the user's choice


def test_sizes_are_around_the_buckets() -> None:
    matrix = resolve(load_config(None, {"device": "cpu"}), Devices(kind="cpu", count=None)).matrix
    # 25 MiB buckets: 4 KiB, 64 KiB, and 1/8, 1/4, 1/2 of 25 MiB and all of it
    assert [size >> 10 for size in calibrated_sizes(matrix, RESNET)] == [
        4,
        64,
        3200,
        6400,
        12800,
        25600,
    ]
    # 100,000 parameters are 400,000 B, less than 8 x 64 KiB
    small = calibrated_sizes(matrix, ModelSize(parameters=100_000, multiplications=None))
    assert [size >> 10 for size in small] == [4, 64, 128, 256, 512]
    whole = msgspec.structs.replace(matrix, overlap=("on", "off"))
    assert calibrated_sizes(whole, RESNET)[-1] == 44_695_848 >> 10 << 10  # one bucket
    huge = ModelSize(parameters=10**9, multiplications=None)
    assert calibrated_sizes(whole, huge)[-1] == 64 << 20


def test_it_takes_seconds() -> None:
    one = planned("cpu", devices="1,2")
    assert one is not None
    assert one.sizes == one.chosen_sizes
    # 50.1 MB at 6 sizes x 13 calls x 2 collectives over 0.5 GB/s: 2.6 s; 26.2 MB x 5 calls x 10
    # iterations: 2.6 s; 5 s to start
    assert 10 < calibration_seconds(one) < 10.5


ENVIRONMENT = RunFolder(EXAMPLE_RUN).manifest().environment
SETTINGS = CalibrationSettings(device="cpu", devices=(2,), chosen_sizes=(4096, 65536))


def timed(*pairs: tuple[str, int], environment: Environment = ENVIRONMENT) -> Calibration:
    """A job's measurements, on this machine by default."""
    return msgspec.structs.replace(holding(*pairs), environment=environment, source="measured")


First = Callable[[Calibration | Exception], tuple[Finding, ...]]


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> First:
    """Call `calibrate_first` on a run folder, with a job that ends as requested."""

    def calibrate(result: Calibration | Exception) -> tuple[Finding, ...]:
        def ended(*_: object, **__: object) -> Calibration:
            if isinstance(result, Exception):
                raise result
            return result

        monkeypatch.setattr(calibration_module, "run_calibration", ended)
        return calibrate_first(
            RunFolder(tmp_path), SETTINGS, ENVIRONMENT, Console(file=io.StringIO())
        )

    return calibrate


def pairs_in(folder: Path) -> set[tuple[str, int]]:
    stored = stored_calibration(RunFolder(folder))
    return (
        {(point.collective, point.devices) for point in stored.points}
        if stored is not None
        else set()
    )


def test_a_failed_calibration_is_a_finding_and_ends_nothing(first: First, tmp_path: Path) -> None:
    (finding,) = first(DpscopeError("calibration failed, nothing is saved: rank 1 was killed"))
    assert (finding.code, finding.severity) == ("calibration_failed", "warning")
    assert "rank 1 was killed" in finding.message
    assert not (tmp_path / "calibration.json").exists()
    assert first(timed(("all_reduce", 2))) == ()
    lost = RunCode.CALIBRATION_INCOMPLETE.finding("contention could not be timed: rank 0 raised")
    without = msgspec.structs.replace(timed(("all_reduce", 2)), findings=(lost,))
    assert first(without) == (lost,)  # the run reports it too
    (finding,) = first(DpscopeError("again"))  # stored results stay
    with pytest.raises(StoppedError, match="stopped"):  # and a signal ends the run
        first(StoppedError("stopped by SIGINT", 130))
    assert pairs_in(tmp_path) == {("all_reduce", 2)}


def test_another_machines_calibration_is_neither_used_nor_extended(
    first: First, tmp_path: Path
) -> None:
    other = msgspec.structs.replace(ENVIRONMENT, cpu_name="another processor")
    write_json(
        tmp_path / "calibration.json", timed(("all_reduce", 2), ("broadcast", 2), environment=other)
    )
    stored = stored_calibration(RunFolder(tmp_path))
    assert of_this_machine(stored, ENVIRONMENT) is None
    assert of_this_machine(stored, other) == stored
    # logs do not name their machine
    assert of_this_machine(holding(("all_reduce", 2)), ENVIRONMENT) is not None
    first(timed(("all_reduce", 2)))
    assert pairs_in(tmp_path) == {("all_reduce", 2)}


def test_only_the_same_engines_times_are_merged(first: First, tmp_path: Path) -> None:
    def by(engine: str, *pairs: tuple[str, int]) -> Calibration:
        return msgspec.structs.replace(timed(*pairs), nccl_engine=engine)

    first(by("ProcessGroupNCCL", ("all_reduce", 2)))
    first(by("ProcessGroupNCCL", ("broadcast", 2)))
    assert pairs_in(tmp_path) == {("all_reduce", 2), ("broadcast", 2)}
    first(by("ProcessGroupNCCL2", ("all_reduce", 4)))
    assert pairs_in(tmp_path) == {("all_reduce", 4)}


def test_fits_stay_with_their_points_where_a_collective_is_added(
    first: First, tmp_path: Path
) -> None:
    """As `dpscope calibrate` wrote them; a reader fits the added collective alone. Points that are
    timed again lose theirs.
    """
    sizes = (10_000, 100_000, 1_000_000)
    reduced, broadcast = (
        fitted(timed_sizes(2, 10.0, 1.0, sizes)),
        fitted(timed_sizes(2, 5.0, 2.0, sizes, "broadcast")),
    )
    of_machine = {"environment": ENVIRONMENT, "nccl_engine": None}
    write_json(tmp_path / "calibration.json", msgspec.structs.replace(reduced, **of_machine))
    first(msgspec.structs.replace(broadcast, fits=(), **of_machine))
    stored = known(stored_calibration(RunFolder(tmp_path)))
    assert stored.fits == reduced.fits
    read = load_calibration(tmp_path)
    assert [fit.collective for fit in read.fits] == ["all_reduce", "broadcast"]
    assert [fit.pieces[0].alpha_us for fit in read.fits] == pytest.approx([10.0, 5.0])
    first(msgspec.structs.replace(fitted(timed_sizes(2, 20.0, 1.0, sizes)), fits=(), **of_machine))
    again = {fit.collective: fit.pieces[0].alpha_us for fit in load_calibration(tmp_path).fits}
    assert again == pytest.approx({"all_reduce": 20.0, "broadcast": 5.0})
