"""The jobs in which NCCL writes its log: settings, variables, stored choices, and when there are no
such jobs.
"""

import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from rich.console import Console

from dpscope.analysis.costs.calibration_fit import fit_calibration
from dpscope.analysis.report.calibration import calibration_tables
from dpscope.launch.jobs.job_outcome import JobWait
from dpscope.launch.jobs.job_queue import JobStarter
from dpscope.launch.jobs.torchrun import Job, TorchrunJob
from dpscope.launch.jobs.worker_process import TorchrunPlace
from dpscope.launch.measuring import calibration_run as run
from dpscope.launch.measuring import calibration_task
from dpscope.launch.measuring.calibration_run import run_calibration
from dpscope.launch.measuring.calibration_task import collectives_path, log_variables
from dpscope.profiling.records.calibration import (
    Calibration,
    CalibrationPoint,
    CalibrationSettings,
    TimedCollectives,
)
from dpscope.profiling.store.files import read_json, write_json
from dpscope.profiling.store.folders import JobFolder
from tests.helpers.environments import environment
from tests.helpers.nccl_logs import all_reduce, nccl_log

SETTINGS = CalibrationSettings(
    device="cuda",
    devices=(2, 4),
    collectives=("all_reduce",),
    chosen_sizes=(1 << 20, 2 << 20),
    iterations=1,
)


class Ended(TorchrunJob):
    """A job that is over."""

    def __init__(self, folder: JobFolder, exit_status: int) -> None:
        self.folder, self.exit_status, self.memory_kills_before = folder, exit_status, None

    def wait(
        self,
        timeout_s: float,
        on_progress: Callable[[str | None], None],
        stop_requested: Callable[[], bool],
    ) -> tuple[JobWait, int | None]:
        return "exited", self.exit_status

    def end(self) -> list[int]:
        return []


@dataclass
class Stub(JobStarter):
    """In place of torchrun: writes a job's result, and NCCL's log to the file that the job's
    variables name.
    """

    log_ranks: Callable[[int], int] = lambda devices: devices
    exit_status: int = 0  # of the jobs in which NCCL writes its log
    loses_contention: bool = False  # the timed job fails after its collectives
    jobs: list[CalibrationSettings] = field(default_factory=list)

    def start(self, job: Job) -> TorchrunJob:
        folder = job.folder
        settings = read_json(folder.settings_path, CalibrationSettings)
        self.jobs.append(settings)
        folder.log_path.write_text("")
        if settings.nccl_log and self.exit_status:
            return Ended(folder, self.exit_status)
        if self.loses_contention and not settings.nccl_log:
            write_json(collectives_path(folder), timed(settings))
            return Ended(folder, 1)
        write_json(
            folder.result_path,
            TimedCollectives(backend="nccl") if settings.nccl_log else timed(settings),
        )
        if settings.nccl_log and (ranks := self.log_ranks(settings.job.devices)):
            sizes = ((8, "TREE", "LL"), (1 << 20, "TREE", "LL"), (2 << 20, "RING", "SIMPLE"))
            path = (
                log_variables(folder.path)["NCCL_DEBUG_FILE"]
                .replace("%h", "node1")
                .replace("%p", "10")
            )
            Path(path).write_text(nccl_log(ranks, *(all_reduce(*one) for one in sizes)))
        return Ended(folder, 0)


def timed(settings: CalibrationSettings) -> TimedCollectives:
    """1 MiB takes 864 us on 2 devices, 129 us on 4; 2 MiB takes 200 us."""
    points = [
        CalibrationPoint("all_reduce", devices, size, size // 4, "float32", (time_us,))
        for devices, first_us in ((2, 864.0), (4, 129.0))
        for size, time_us in ((1 << 20, first_us), (2 << 20, 200.0))
    ]
    return TimedCollectives(backend="nccl", device_names=("H100",) * 4, points=tuple(points))


def calibrated(
    starter: Stub, monkeypatch: pytest.MonkeyPatch, settings: CalibrationSettings = SETTINGS
) -> Calibration:
    for name in log_variables(Path()):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(run, "collect_environment", lambda *_, **__: environment())
    return run_calibration(settings, Console(file=io.StringIO()), starter=starter)


def unread(found: Calibration) -> list[str]:
    return [one.message for one in found.findings if one.code == "calibration_incomplete"]


@pytest.mark.long
def test_a_job_of_each_device_count_follows_the_timed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub()
    found = calibrated(stub, monkeypatch)
    assert [(job.devices, job.nccl_log) for job in stub.jobs] == [
        ((2, 4), False),
        ((2,), True),
        ((4,), True),
    ]
    assert found.settings == SETTINGS
    assert [(one.devices, one.nodes) for one in found.nccl] == [(2, 1), (4, 1)]
    # The job's own message of 8 bytes is left out.
    choices = [(one.size_bytes, one.algorithm) for one in found.nccl[0].log.choices]
    assert choices == [(1 << 20, "tree"), (2 << 20, "ring")]
    assert unread(found) == []
    assert msgspec.json.decode(msgspec.json.encode(found), type=Calibration) == found


def test_choices_are_reported_next_to_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    found = fit_calibration(calibrated(Stub(), monkeypatch))
    tables = {table.title: table for table in calibration_tables(found)}
    of_two = tables["all_reduce on 2 devices"]
    assert of_two.headings[-1] == "NCCL chose"
    assert [row[-1] for row in of_two.rows] == ["tree, ll", "ring, simple"]
    assert (
        "the ring formula describes 2.10 MB of 3.15 MB (67%) of one call at each size"
        in of_two.notes[-1]
    )
    assert len(tables["What NCCL chose"].rows) == 4


def test_without_nccl_or_with_a_users_own_settings_no_such_job_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stub = Stub()
    found = calibrated(stub, monkeypatch, msgspec.structs.replace(SETTINGS, device="cpu"))
    assert (found.nccl, unread(found)) == ((), [])
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE"):
        with monkeypatch.context() as changed:
            changed.setenv(name, "WARN")
            found = run_calibration(SETTINGS, Console(file=io.StringIO()), starter=stub)
        assert unread(found) == [
            f"what NCCL chose was not recorded: {name} is set in the environment"
        ]
        assert found.points
    assert [job.nccl_log for job in stub.jobs] == [False] * 3


@pytest.mark.parametrize(
    ("stub", "reason"),
    [
        (Stub(exit_status=1), "its job failed"),
        (Stub(log_ranks=lambda _: 0), "NCCL wrote no log"),
        (Stub(log_ranks=lambda _: 16), "no communicator of 2 ranks"),
    ],
)
def test_an_unreadable_log_only_loses_the_choices(
    stub: Stub, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = calibrated(stub, monkeypatch)
    assert (len(found.points), found.nccl) == (4, ())
    assert len(lost := unread(found)) == 2
    assert reason in lost[0]


def test_contention_that_cannot_be_timed_loses_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = calibrated(Stub(loses_contention=True), monkeypatch)
    assert (len(found.points), found.contention, len(found.nccl)) == (4, (), 2)
    (finding,) = [one for one in found.findings if one.code == "calibration_incomplete"]
    assert "torchrun ended with exit status 1" in finding.message
    assert "assume no slowdown" in finding.next_step


@pytest.mark.parametrize("nccl_log", [True, False])
def test_only_that_job_makes_nccl_write(
    nccl_log: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = log_variables(tmp_path)
    seen: dict[str, str | None] = {}
    monkeypatch.setattr(
        os, "environ", {name: value for name, value in os.environ.items() if name not in variables}
    )

    def measure(
        settings: object, place: object, keep: Callable[[TimedCollectives], None]
    ) -> TimedCollectives:
        seen.update({name: os.environ.get(name) for name in variables})
        keep(timed(SETTINGS))
        return timed(SETTINGS)

    # In place of the module that imports torch.
    monkeypatch.setitem(
        sys.modules, "dpscope.launch.measuring.collective_timing", SimpleNamespace(measure=measure)
    )
    settings = msgspec.structs.replace(SETTINGS, nccl_log=nccl_log)
    place = TorchrunPlace(rank=0, local_rank=0, world_size=1, local_world_size=1, node=0)
    calibration_task._calibrate(JobFolder(tmp_path), settings, place)
    assert seen == (variables if nccl_log else dict.fromkeys(variables))
    assert read_json(collectives_path(JobFolder(tmp_path)), TimedCollectives) == timed(SETTINGS)
