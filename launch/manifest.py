"""Makes a run's manifest. Imports torch only when asked to make one."""

import importlib.metadata
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from dpscope.launch.devices import DeviceType
from dpscope.launch.plan import plan_findings
from dpscope.profiling.environment import collect_environment, device_findings, open_nvml
from dpscope.profiling.run_store import DpscopeError
from dpscope.profiling.run_types import SCHEMA_VERSION, Environment, Manifest, PlannedCell, RunConfig

FIELDS_OF_THE_SWEEP = ("repeats", "timeout_s", "download")
"""Settings that say how often and how patiently a run is measured: they may change while it is resumed."""


def new_manifest(config: RunConfig, kind: DeviceType, threads: int, plan: Sequence[PlannedCell]) -> Manifest:
    """The manifest of a run that starts now, on this machine."""
    assert config.devices is not None
    environment = collect_environment(open_nvml() if kind == "cuda" else None)
    return Manifest(
        schema_version=SCHEMA_VERSION,
        dpscope_version=importlib.metadata.version("dpscope"),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        config=config,
        device_type=kind,
        threads_per_process=threads,
        environment=environment,
        plan=tuple(plan),
        findings=(*device_findings(environment.accelerators[: max(config.devices)]), *plan_findings(config, kind)),
    )


def check_same_machine(out: Path, then: Environment, now: Environment) -> None:
    """Raise DpscopeError unless what is added to a run folder will compare with what is there."""
    had, has = _machine(then), _machine(now)
    for name in had:
        if had[name] != has[name]:
            raise DpscopeError(
                f"--out {out}: begun with {name} {had[name]}, this is {has[name]}: its cells would not "
                "compare; use --fresh to redo it, or another --out"
            )


def _machine(environment: Environment) -> dict[str, object]:
    """What must be the same for cells to compare."""
    return {
        "processor": environment.cpu_name,
        "cores": environment.cpu_count,
        "torch": environment.torch_version,
        "GPUs": [state.name for state in environment.accelerators],
    }
