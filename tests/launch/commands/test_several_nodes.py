"""Every node derives the same jobs from the run folder that node 0 starts; a node's own part of the
command line.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from dpscope.launch.commands.several_nodes import _plan
from dpscope.launch.jobs.assignment import Assignment, read_assignment
from dpscope.launch.jobs.torchrun import Job
from dpscope.launch.learning.equal_run import equality_settings
from dpscope.launch.learning.train_plan import load_train_config, plan_trainings
from dpscope.launch.learning.train_run import open_train_manifest
from dpscope.launch.measuring.calibration_settings import calibration_settings
from dpscope.launch.measuring.run import plan_run
from dpscope.launch.planning.manifest import new_manifest
from dpscope.launch.planning.run_config import load_config
from dpscope.profiling.records.equality import EQUALITY_FOLDER
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import SETTINGS_NAME, JobFolder, RunFolder
from dpscope.profiling.store.training_folders import TrainFolder

FLAGS: dict[str, object] = {
    "device": "cpu",
    "batch_size": "4",
    "samples": 64,
    "devices": "1,2x1,2x2",
}


def over_several(jobs: Sequence[Job]) -> list[tuple[str, ...]]:
    found = [one.command for one in jobs if one.nodes > 1]
    assert found
    return found


def test_a_run_s_jobs(tmp_path: Path) -> None:
    config = load_config(None, {**FLAGS, "steps": 4, "repeats": 2})
    described = plan_run(config, tmp_path, nodes=2)
    assert _plan(tmp_path) == []
    manifest = new_manifest(
        described.config, "cpu", described.threads, described.plan, code=tmp_path
    )
    manifest = msgspec.structs.replace(manifest, orders=described.orders)
    write_json(RunFolder(tmp_path).manifest_path, manifest)
    planned = _plan(tmp_path)
    assert [one.command for one in planned] == over_several(described.jobs)
    assert {(one.threads, one.run is None) for one in planned} == {(described.threads, False)}
    folders = {job.command: job.folder.path for job in described.jobs}
    assert all(one.folder.path == folders[one.command] for one in planned)
    # is no part of the plan
    write_json(tmp_path / EQUALITY_FOLDER / SETTINGS_NAME, {"of": "another version"})
    assert [one.command for one in _plan(tmp_path)] == [one.command for one in planned]


@pytest.mark.process  # git
def test_trainings(tmp_path: Path) -> None:
    config = load_train_config(None, {**FLAGS, "data": "fake", "seeds": "0,1", "epochs": 1})
    described = plan_trainings(config, tmp_path, nodes=2)
    open_train_manifest(TrainFolder(tmp_path), described)
    planned = _plan(tmp_path)
    assert [one.command for one in planned] == over_several(described.jobs)


def test_comparisons_and_calibrations(tmp_path: Path) -> None:
    settings = equality_settings({**FLAGS, "devices": "2x1", "steps": 2}, "float64", 2)
    write_json(tmp_path / EQUALITY_FOLDER / SETTINGS_NAME, settings)
    timed = calibration_settings(
        device="cpu", devices="2x1", collectives=None, dtype="float32", min_bytes="4KiB", max_bytes="8KiB", iterations=1,
        warmup_iterations=1, timeout_s=60.0, nodes=2,
    )  # fmt: skip
    folder = tmp_path / ".tmp-calibrate-a"
    folder.mkdir()
    assert all(one.name != "calibration" for one in _plan(tmp_path))
    write_json(JobFolder(folder).settings_path, timed)
    first, *others = _plan(tmp_path)
    assert (first.name, first.run) == ("calibration", None)
    assert read_assignment(first.command[-1:]) == Assignment(task="calibrate", out=str(folder))
    assert [one.name for one in others] == [
        job.cell.name for job in settings.jobs if job.cell.nodes > 1
    ]
