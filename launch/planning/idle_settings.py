"""Settings that do nothing beside the others, in every command that has them. Imports no torch."""

from collections.abc import Mapping

from dpscope.profiling.records.config import Workload
from dpscope.profiling.records.matrix import Matrix
from dpscope.profiling.records.strategies import any_reducer, traits_of
from dpscope.profiling.store.errors import DpscopeError


def idle_settings(workload: Workload, matrix: Matrix) -> dict[str, str]:
    """Settings that do nothing with the others as they are, and why."""
    idle: dict[str, str] = {}
    if workload.data != "cifar10":
        idle |= dict.fromkeys(
            ("data_dir", "download"), f"only cifar10 is read from a folder, and --data is {workload.data}"
        )
    if workload.data in ("digits", "cifar10"):
        idle["samples"] = f"{workload.data} has its own number of samples"
    else:
        idle["transforms"] = f"only the images of cifar10 and digits are transformed, and --data is {workload.data}"
    if workload.data == "synthetic":
        idle |= dict.fromkeys(
            ("workers", "workers_total", "pin_memory"), "synthetic data is one batch on the device, never loaded"
        )
    elif workload.workers_total is not None:
        idle["workers"] = "--workers-total says how many there are"
    if workload.device == "cpu":
        idle["pin_memory"] = "batches are copied to no GPU with --device cpu"
    one_device = matrix.devices == (1,) and not matrix.layouts
    if one_device:
        idle["scaling"] = "on one device weak and strong are the same"
    if not any_reducer(matrix.strategies):
        idle["ddp_alone"] = f"ddp is not in --strategy {','.join(matrix.strategies)}"
    elif matrix.devices is not None and (1 not in matrix.devices or one_device):
        idle["ddp_alone"] = "DDP on one device is measured only beside several, and --devices does not name both"
    if one_device or all(traits_of(one).baseline for one in matrix.strategies):
        idle |= dict.fromkeys(
            ("link", "target_efficiency", "calibrate"),
            "nothing is measured on several devices, so there is no link and no scaling",
        )
    return idle


def check_idle(idle: Mapping[str, str], origins: Mapping[str, str]) -> None:
    """Raise DpscopeError for a field in `idle` that was given as a flag; a file may serve several commands."""
    for field, why in idle.items():
        if origins.get(field, "").startswith("--"):
            raise DpscopeError(f"{origins[field]} does nothing here: {why}; omit it")
