"""Makes a run's manifest. Imports torch only to make one."""

import importlib.metadata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from dpscope.launch.jobs.devices import DeviceType
from dpscope.launch.planning.cells import plan_findings
from dpscope.launch.planning.plan_estimate import baseline_findings
from dpscope.launch.planning.published import published_of, read_published
from dpscope.launch.workload.data_files import normalisation
from dpscope.profiling.machine.conditions import ConditionDifference, condition_differences, machine_differences
from dpscope.profiling.machine.environment import collect_environment, machine_findings
from dpscope.profiling.machine.nvml import open_nvml
from dpscope.profiling.records.config import ResolvedConfig
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.plan_codes import PlanCode
from dpscope.profiling.records.run import SCHEMA_VERSION, Cell, Commit, Environment, Host, Manifest, PlannedCell
from dpscope.profiling.store.errors import DpscopeError


def new_manifest(
    config: ResolvedConfig,
    kind: DeviceType,
    threads: int,
    plan: Sequence[PlannedCell],
    on_this_host: int | None = None,
    code: Path | None = None,
) -> Manifest:
    """The manifest of a run that starts now, on this machine; `on_this_host` as `cells.resolve` has it.

    `code` is as in `collect_environment`.
    """
    environment = collect_environment(open_nvml() if kind == "cuda" else None, on_gpus=kind == "cuda", code=code)
    findings = plan_findings(config.workload, config.matrix, kind, on_this_host)
    if on_this_host is None:  # a cell started by hand is one of several
        findings = [*findings, *baseline_findings(plan)]
    table = config.reporting.published
    published = read_published(Path(table)) if table is not None else ()
    return Manifest(
        schema_version=SCHEMA_VERSION,
        dpscope_version=importlib.metadata.version("dpscope"),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        config=config,
        device_type=kind,
        threads_per_process=threads,
        environment=environment,
        plan=tuple(plan),
        normalisation=normalisation(config.workload),
        findings=(*machine_findings(environment, kind, config.matrix.most_on_a_node), *findings),
        published=tuple(published_of(published, config.workload, [one.cell for one in plan])),
    )


def check_same_conditions(out: Path, then: Manifest, now: Manifest) -> None:
    """As `check_same_machine`, and of the variables and threads that times depend on."""
    _refuse(out, condition_differences(then, now))


def check_same_machine(out: Path, then: Environment, now: Environment) -> None:
    """Raise DpscopeError unless what is added to a run folder will compare with what is there."""
    _refuse(out, machine_differences(then, now))


def _refuse(out: Path, differences: Sequence[ConditionDifference]) -> None:
    if differences:
        raise DpscopeError(
            f"--out {out}: begun with {differences[0]}: new cells would not compare with those that are there; set it as it "
            "was, use --fresh to redo them, or another --out"
        )


def commit_findings(then: Commit | None, now: Commit | None) -> tuple[Finding, ...]:
    """What it means that a run goes on with other code than it was begun with; nothing where either is not known."""
    if then is None or now is None or then == now:
        return ()
    return (PlanCode.MIXED_COMMITS.finding(f"the run was begun with the code at {then} and goes on with {now}."),)


def most_on_several_nodes(cells: Iterable[Cell]) -> int:
    """The most devices on each node that a cell over several has; 0 where none is."""
    return max((cell.processes // cell.nodes for cell in cells if cell.nodes > 1), default=0)


def hosts_findings(first: Environment, hosts: Sequence[Host]) -> tuple[Finding, ...]:
    """`host_findings` of all nodes of a command."""
    environments = (host.environment for host in hosts if host.environment is not None)
    return tuple(finding for one in environments for finding in host_findings(first, one))


def host_findings(first: Environment, other: Environment) -> tuple[Finding, ...]:
    """Conditions that make a job over several hosts unfair, found on another host than the first."""
    differences = machine_differences(first, other, partly=["GPUs"])
    if not differences:
        return ()
    finding = PlanCode.MIXED_HOSTS.finding(
        message=f"{other.hostname} is unlike {first.hostname}, on which the run began ({'; '.join(map(str, differences))}): "
        "every synchronous step waits for the slowest host."
    )
    return (finding,)
