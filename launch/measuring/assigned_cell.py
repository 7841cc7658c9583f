"""The repeat of a cell that a worker measures, from its assignment and the run's manifest. Imports
no torch.

A cell that is started by hand brings the run's options: the first one begins the run folder, as
`dpscope run` with these options would.
"""

from dataclasses import dataclass
from functools import partial

from dpscope.launch.jobs.assignment import Assignment
from dpscope.launch.jobs.devices import DeviceType
from dpscope.launch.jobs.worker_process import TorchrunPlace, begin_once, planned_cell
from dpscope.profiling.records.config import RunConfig
from dpscope.profiling.records.run import Cell
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import RepeatFolder, RunFolder


@dataclass(frozen=True)
class AssignedCell:
    """What this process measures, and its folder."""

    config: RunConfig
    cell: Cell
    repeat: int
    kind: DeviceType
    threads: int
    folder: RepeatFolder


def assigned_cell(assignment: Assignment, place: TorchrunPlace) -> AssignedCell:
    """The cell of an assignment; rank 0 begins the run if it has not begun and the assignment has
    its options.
    """
    run = RunFolder(assignment.folder)
    if assignment.options is not None:
        from dpscope.launch.measuring.run import begin_by_hand

        begin_once(partial(begin_by_hand, assignment), run.manifest_path, place)
    manifest = run.manifest()
    cell = planned_cell(assignment.cell, manifest.plan, run.manifest_path, place)
    folder = run.repeat(cell, assignment.repeat)
    if folder.status() == "ok":
        raise DpscopeError(
            f"repeat {assignment.repeat} of {cell.name} is measured already, in {folder.path}; give another one, "
            "or remove that folder to measure it again"
        )
    return AssignedCell(
        config=manifest.config,
        cell=cell,
        repeat=assignment.repeat,
        kind=manifest.device_type,
        threads=manifest.threads_per_process,
        folder=folder,
    )
