"""What dpscope asks and plans of a machine's devices, on the double of torch.cuda; `device_scenarios` runs it."""

from collections.abc import Callable
from typing import Any

import torch

from tests.helpers.recording_device import RecordingDevices


def _four_present() -> None:
    from dpscope.launch.jobs import devices

    setattr(devices, "present_gpus", lambda: devices.PresentGpus(4, "NVML", "570.86"))  # noqa: B010 (a double)


def machine(double: RecordingDevices) -> dict[str, Any]:
    """`doctor`'s checks, the devices of `--device`, the environment where NVML knows no GPU, generators' states."""
    from dpscope.launch.commands import doctor
    from dpscope.launch.jobs import devices as jobs_devices
    from dpscope.launch.jobs.all_reduce_check import _reduce
    from dpscope.launch.jobs.worker_process import TorchrunPlace
    from dpscope.launch.measuring.cell import precision_findings
    from dpscope.launch.training.checkpoint_state import rng_states, set_rng_states
    from dpscope.profiling.machine.environment import collect_environment, machine_findings

    double.peers = {(0, 1)}
    _four_present()
    checks = {"devices": doctor._devices(), "backends": doctor._backends(), "peer access": doctor._peer_access()}
    setattr(torch.version, "hip", "6.4")  # noqa: B010 (typed as a constant)
    checks["driver"] = doctor._driver()
    setattr(torch.version, "hip", None)  # noqa: B010
    environment = collect_environment(None, on_gpus=True)
    devices = tuple(torch.device("cuda", index) for index in range(2))
    set_rng_states(rng_states(devices), devices)
    reduced = ""
    try:
        _reduce("cuda", TorchrunPlace(rank=1, local_rank=1, world_size=2, local_world_size=2, node=0))
    except Exception as error:  # the double moves no data, which the check must see
        reduced = str(error)
    torch.distributed.destroy_process_group()
    return {
        "checks": [(name, check.status, check.detail) for name, check in checks.items()],
        "devices": jobs_devices.resolve_devices("cuda").count,
        "names": [one.name for one in environment.accelerators],
        "findings": [one.code for one in machine_findings(environment, "cuda", 2)],
        "emulated": [one.message for one in precision_findings("bf16", devices)],
        "reduced": reduced,
    }


def planning(double: RecordingDevices) -> dict[str, Any]:
    """What is planned and refused on GPUs, without touching one."""
    from dpscope.launch.calibration.settings import CalibrationFlags
    from dpscope.launch.equality.run import _check_sync
    from dpscope.launch.workload.strategies import _further_arguments
    from dpscope.profiling.records.run import CellOptions
    from dpscope.profiling.store.errors import DpscopeError

    def refusal(do: Callable[[], object]) -> str:
        try:
            return f"nothing: {do()}"
        except DpscopeError as error:
            return str(error)

    _four_present()
    counts = CalibrationFlags(device="cuda").resolved().devices
    mixed = _further_arguments(CellOptions(ddp_args="mixed_precision=bf16"), torch.device("cuda", 0))["mixed_precision"]
    double.count = 1
    refused = [
        refusal(lambda: CalibrationFlags(device="cuda").resolved()),
        refusal(lambda: _check_sync(("single", "ddp"), "cuda", freeze_batch_norm=True)),
        refusal(lambda: _check_sync(("single", "dp"), "cuda", freeze_batch_norm=False)),
    ]
    double.count = 4
    return {"counts": counts, "reduce_dtype": str(mixed.reduce_dtype), "refused": refused}
