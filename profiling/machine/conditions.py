"""What must be alike for two measurements to be compared, and what differs."""

from collections import Counter
from collections.abc import Sequence

from dpscope.profiling.machine.timing_variables import timing_variables
from dpscope.profiling.records.run import Environment, Finding, Manifest, RunConfig
from dpscope.profiling.records.training import TrainManifest

_NO_SETTINGS = ("repeats", "steps", "timeout_s", "devices", "batch_sizes", "strategies", "data_dir")
SETTINGS = tuple(name for name in RunConfig.__struct_fields__ if name not in _NO_SETTINGS)
MACHINE = ("hostname", "cpu_name", "cpu_count", "torch_version", "cuda_version", "nccl_version", "driver_version")


def machine_differences(first: Manifest | TrainManifest, second: Manifest | TrainManifest) -> list[str]:
    """How two machines and what was set on them differ: MACHINE, threads per process, devices, variables."""
    one, other = first.environment, second.environment
    said = [*differences(one, other, MACHINE), *differences(first, second, ("threads_per_process",))]
    named = _device_names(one), _device_names(other)
    if named[0] != named[1]:
        said.append(f"accelerators {named[0]} -> {named[1]}")
    had, has = timing_variables(one), timing_variables(other)
    variables = {name: (had.get(name, "not set"), has.get(name, "not set")) for name in sorted({*had, *has})}
    return [*said, *(f"{name} {value} -> {to}" for name, (value, to) in variables.items() if value != to)]


def _device_names(environment: Environment) -> str:
    """Such as ``2 x NVIDIA H100``; how many there are tells what shares a host's power, links and cores."""
    counts = Counter(device.name or "unnamed" for device in environment.accelerators)
    return ", ".join(f"{count} x {name}" for name, count in sorted(counts.items())) or "none"


def differences(first: object, second: object, names: Sequence[str]) -> list[str]:
    """Those of the named fields that differ, each with both values."""
    values = {name: (getattr(first, name), getattr(second, name)) for name in names}
    return [f"{name} {one} -> {other}" for name, (one, other) in values.items() if one != other]


def differing(differ: Sequence[str]) -> list[Finding]:
    """A finding about settings that differ, none without any."""
    if not differ:
        return []
    return [
        Finding(
            severity="warning",
            code="settings_differ",
            message=f"the runs differ in {'; '.join(differ)}",
            next_step="a change may come from that and not from the code",
        )
    ]
