"""Whether two measurements were made under the same conditions: machine, variables, threads,
settings. Imports no torch.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from dpscope.profiling.machine.gpus import GPU_ORDER
from dpscope.profiling.records.config import MAY_CHANGE, RunConfig
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.plan_codes import PlanCode
from dpscope.profiling.records.run import Environment, Manifest
from dpscope.profiling.records.settings import declarations, settings_of
from dpscope.profiling.records.training import TrainManifest

_SET_FOR_JOBS = {
    **dict([GPU_ORDER]),  # by dpscope
    "CUDA_MODULE_LOADING": "LAZY",  # by torch, once it uses CUDA
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",  # by torchrun
}
"""Values of variables in a job's processes if the user does not set them."""

_OF_NO_EFFECT = (
    "CUDA_CACHE_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",  # the GPUs themselves are compared
    "HIP_VISIBLE_DEVICES",
    "MKL_NUM_THREADS",  # dpscope sets the threads itself, and torchrun the variable
    "OMP_NUM_THREADS",
    "PYTORCH_KERNEL_CACHE_PATH",
    "TORCH_CPP_LOG_LEVEL",
    "TORCH_HOME",
    "TORCH_SHOW_CPP_STACKTRACES",
)
"""Recorded variables on which no time depends."""


@dataclass(frozen=True)
class ConditionDifference:
    what: str  # such as "torch" or "NCCL_ALGO"
    then: object
    now: object

    def __str__(self) -> str:
        return f"{self.what} = {self.then}, not {self.now}"

    @property
    def change(self) -> str:
        """Such as ``torch 2.14 -> 2.15``."""
        return f"{self.what} {self.then} -> {self.now}"


def condition_differences(
    then: Manifest | TrainManifest, now: Manifest | TrainManifest
) -> list[ConditionDifference]:
    """Differences between two runs in machine, variables and threads, on which times depend."""
    return [
        *machine_differences(then.environment, now.environment),
        *variable_differences(then.environment, now.environment),
        *_differing([("threads a process", then.threads_per_process, now.threads_per_process)]),
    ]


def machine_differences(
    then: Environment, now: Environment, partly: Collection[str] = ()
) -> list[ConditionDifference]:
    """Differences between two machines on which times depend; identical hosts count as the same
    machine.

    `now` may have fewer of the resources that `partly` names ("GPUs", "cores"): a job may get a
    part of a machine.
    """
    compared = [
        ("processor", then.cpu_name, now.cpu_name),
        ("cores", then.cpu_count, now.cpu_count),
        ("GPUs", _device_names(then), _device_names(now)),
        ("driver", then.driver_version, now.driver_version),
        ("torch", then.torch_version, now.torch_version),
        ("CUDA", then.cuda_version, now.cuda_version),
        ("NCCL", then.nccl_version, now.nccl_version),
    ]
    some_of_the_gpus = {accelerator.name for accelerator in now.accelerators} <= {
        accelerator.name for accelerator in then.accelerators
    }
    ignored = {name for name in partly if name != "GPUs" or some_of_the_gpus}
    return _differing(
        (name, before or "none", other or "none")
        for name, before, other in compared
        if name not in ignored
    )


def _device_names(environment: Environment) -> str:
    """Such as ``2 x NVIDIA H100``; the GPUs of a host share its power, links and cores."""
    counts = Counter(device.name or "unnamed" for device in environment.accelerators)
    return ", ".join(f"{count} x {name}" for name, count in sorted(counts.items())) or "none"


def variable_differences(then: Environment, now: Environment) -> list[ConditionDifference]:
    """Differences in the variables of jobs' processes on which times may depend, by name."""
    stored, current = ({**_SET_FOR_JOBS, **environment.settings} for environment in (then, now))
    return _differing(
        (name, stored.get(name, "unset"), current.get(name, "unset"))
        for name in sorted({*stored, *current})
        if name not in _OF_NO_EFFECT
        and not name.startswith(("KINETO_", "NCCL_DEBUG", "TORCH_LOGS"))
    )


_OF_NO_CELL = (*MAY_CHANGE, "steps", "data_dir", "devices", "batch_sizes", "strategies")
SETTINGS = tuple(name for name in declarations(RunConfig) if name not in _OF_NO_CELL)
"""Settings on which the times of a cell may depend, without those of the amount of measurement and
the choice of cells.
"""


def setting_differences(
    then: msgspec.Struct, now: msgspec.Struct, names: Sequence[str]
) -> list[ConditionDifference]:
    stored = settings_of(then)
    current = settings_of(now)
    return _differing((name, stored[name], current[name]) for name in names)


def _differing(values: Iterable[tuple[str, object, object]]) -> list[ConditionDifference]:
    return [ConditionDifference(*value) for value in values if value[1] != value[2]]


def difference_findings(
    first: Manifest | TrainManifest,
    second: Manifest | TrainManifest,
    settings: Sequence[ConditionDifference],
) -> list[Finding]:
    """A finding about all differences between the conditions of two compared runs; empty if there
    are none.
    """
    hosts = _differing([("host", first.environment.hostname, second.environment.hostname)])
    differences = [*settings, *hosts, *condition_differences(first, second)]
    listed = "; ".join(difference.change for difference in differences)
    return [PlanCode.SETTINGS_DIFFER.finding(f"the runs differ in {listed}")] if differences else []
