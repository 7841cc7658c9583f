"""Makes a run's manifest. Imports torch only when asked to make one."""

import importlib.metadata
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from dpscope.launch.jobs.devices import DeviceType
from dpscope.launch.planning.cells import plan_findings
from dpscope.profiling.machine.environment import collect_environment, machine_findings
from dpscope.profiling.machine.nvml import open_nvml
from dpscope.profiling.machine.timing_variables import timing_variables
from dpscope.profiling.records.run import SCHEMA_VERSION, Environment, Finding, Manifest, PlannedCell, RunConfig
from dpscope.profiling.store.errors import DpscopeError

FIELDS_OF_THE_SWEEP = ("repeats", "timeout_s", "download")
"""Settings that say how often and how patiently a run is measured: they may change while it is resumed."""


def new_manifest(
    config: RunConfig,
    kind: DeviceType,
    threads: int,
    plan: Sequence[PlannedCell],
    on_this_host: int | None = None,
) -> Manifest:
    """The manifest of a run that starts now, on this machine; `on_this_host` as `plan.resolve` has it."""
    assert config.devices is not None
    environment = collect_environment(open_nvml() if kind == "cuda" else None)
    findings = plan_findings(config, kind, on_this_host)
    return Manifest(
        schema_version=SCHEMA_VERSION,
        dpscope_version=importlib.metadata.version("dpscope"),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        config=config,
        device_type=kind,
        threads_per_process=threads,
        environment=environment,
        plan=tuple(plan),
        findings=(*machine_findings(environment, kind, max(config.devices)), *findings),
    )


def check_same_conditions(out: Path, then: Manifest, now: Manifest) -> None:
    """As `check_same_machine`, and of the settings and threads that times depend on."""
    check_same_machine(out, then.environment, now.environment)
    if difference := settings_difference(then.environment, now.environment):
        raise DpscopeError(
            f"--out {out}: begun with {difference}: its cells would not compare; set it as it was, use --fresh to redo "
            "them, or another --out"
        )
    if then.threads_per_process != now.threads_per_process:
        raise DpscopeError(
            f"--out {out}: begun with {then.threads_per_process} thread(s) a process, and this run has "
            f"{now.threads_per_process}: its cells would not compare; use --fresh to redo it, or another --out"
        )


def settings_difference(then: Environment, now: Environment) -> str | None:
    """The first variable that differs and that times may depend on, such as ``NCCL_ALGO=Ring, now unset``."""
    had, has = timing_variables(then), timing_variables(now)
    for name in sorted({*had, *has}):
        if had.get(name) != has.get(name):
            begun = f"{name}={had[name]}" if name in had else f"{name} unset"
            return f"{begun}, now {f'{name}={has[name]}' if name in has else 'unset'}"
    return None


def machine_difference(then: Environment, now: Environment) -> str | None:
    """What of the machine differs, such as ``torch = 2.14, not 2.15``, seen by jobs that may be given some of its parts."""
    pairs: list[tuple[str, object, object]] = [
        ("processor", then.cpu_name, now.cpu_name),
        ("torch", then.torch_version, now.torch_version),
    ]
    had, has = ({state.name or "unknown" for state in one.accelerators} for one in (then, now))
    if not has <= had:
        pairs.append(("GPUs", ", ".join(sorted(had)) or "none", ", ".join(sorted(has))))
    return next((f"{name} = {one}, not {other}" for name, one, other in pairs if one != other), None)


def host_findings(first: Environment, other: Environment) -> tuple[Finding, ...]:
    """What makes a job over several hosts unfair, told by another one than the first."""
    difference = machine_difference(first, other)
    if difference is None and first.cpu_count != other.cpu_count:
        difference = f"cores = {first.cpu_count}, not {other.cpu_count}"
    if difference is None:
        return ()
    finding = Finding(
        severity="warning",
        code="mixed_hosts",
        message=f"{other.hostname} is unlike {first.hostname}, on which the run began ({difference}): every synchronous step "
        "waits for the slowest host.",
        next_step="Measure on hosts that are alike.",
    )
    return (finding,)


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
