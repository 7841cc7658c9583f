"""Conclusions and warnings of a run in plain sentences: what was seen, what it means, what to do."""

from collections.abc import Iterator

import msgspec

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.row import as_number
from dpscope.analysis.cells.subtraction import FORMULAS
from dpscope.analysis.findings.communication import communication_finding, known_values
from dpscope.analysis.findings.estimate_gaps import reasons
from dpscope.analysis.findings.no_overlap import no_overlap_finding
from dpscope.analysis.findings.predictions import prediction_findings
from dpscope.analysis.findings.scaling import scaling_findings
from dpscope.analysis.findings.slow_tracing import slowed_by_tracing
from dpscope.analysis.findings.straggler import straggler_finding
from dpscope.analysis.findings.strategy_costs import strategy_cost_finding
from dpscope.analysis.findings.strategy_gaps import gap_finding
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.repeats import repeat_findings
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.runs.script_findings import no_single_device
from dpscope.analysis.runs.variant_savings import single_device_baselines, variant_findings
from dpscope.analysis.text.units import show_time
from dpscope.analysis.training.findings import training_findings
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.learning_codes import LearningCode
from dpscope.profiling.records.run import CellResult, CellStatus
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.strategies import any_reducer, traits_of
from dpscope.profiling.records.trace_codes import TraceCode

TRACER_COST = 1.15
THROUGHPUT_APART = 0.05  # of the median step's

_MERGED = RunCode.that_are("of_many_cells") | TraceCode.that_are("of_many_cells")
_CODE_OF_STATUS: dict[CellStatus, RunCode] = {
    "out_of_memory": RunCode.CELL_OUT_OF_MEMORY,
    "crashed": RunCode.CELL_CRASHED,
    "timed_out": RunCode.CELL_TIMED_OUT,
}
_ORDER = {"error": 0, "warning": 1, "info": 2}


def conclusions(run: RunData, comparison: Comparison) -> list[Finding]:
    """All findings of a run, or of traces alone, errors first; nothing here is measured anew."""
    found = _of_run(run, comparison) if run.recorded is not None else _of_traces(run, comparison)
    return sorted(_merged(found), key=lambda finding: _ORDER[finding.severity])


def _of_traces(run: RunData, comparison: Comparison) -> list[Finding]:
    return [
        *(finding for cell in run.cells.values() for finding in cell.findings),
        *prediction_findings(comparison, shared_cores=run.device_type == "cpu"),
        *(finding for cell in run.measured for finding in straggler_finding(cell)),
        *(finding for cell in run.measured for finding in no_overlap_finding(cell)),
    ]


def _of_run(run: RunData, comparison: Comparison) -> list[Finding]:
    return [
        *run.manifest.findings,
        *(finding for cell in run.cells.values() for finding in cell.findings),
        *_cells_not_measured(run),
        *repeat_findings(run),
        *(gap_finding(gap) for gap in comparison.gaps if gap.ratio.value is not None),
        *(
            strategy_cost_finding(cost, comparison.of_script)
            for cost in comparison.costs
            if cost.ratio.value is not None
        ),
        *_per_row(comparison),
        *prediction_findings(comparison, shared_cores=run.manifest.device_type == "cpu"),
        *scaling_findings(comparison),
        *variant_findings(run),
        *(finding for cell in run.measured for finding in straggler_finding(cell)),
        *(finding for cell in _traced_as_trained(run, comparison) for finding in no_overlap_finding(cell)),
        *no_single_device(run.manifest, _without_single_device(run), str(run.path)),
        *_setting(run),
        *(training_findings(run.training) if run.training else ()),
        *([LearningCode.NO_EPOCH.finding(f"{run.untrained}.")] if run.untrained else ()),
    ]


def _traced_as_trained(run: RunData, comparison: Comparison) -> list[CellData]:
    """The cells whose traced steps are not much longer than untraced ones."""
    rows = {str(row["cell"]): known_values(row) for row in comparison.table.to_dict("records")}
    return [data for data in run.measured if slowed_by_tracing(rows[data.cell.name]) is None]


def _without_single_device(run: RunData) -> list[str]:
    """Cells of several devices that can be compared with no cell of one."""
    return [
        data.cell.name
        for data in run.measured
        if data.cell.devices > 1
        and data.knows_samples
        and not data.trained_alone
        and {data.cell.batch_size, data.planned.global_batch_size}.isdisjoint(single_device_baselines(run, data.cell))
    ]


def _merged(findings: list[Finding]) -> list[Finding]:
    """Each finding once; those of _MERGED that many cells share become one."""
    groups: dict[object, list[Finding]] = {}
    for finding in dict.fromkeys(findings):
        same = (finding.severity, finding.code, finding.next_step) if finding.code in _MERGED else finding
        groups.setdefault(same, []).append(finding)
    return [
        msgspec.structs.replace(group[0], message="; ".join(finding.message for finding in group))
        for group in groups.values()
    ]


def _cells_not_measured(run: RunData) -> Iterator[Finding]:
    for name, data in run.cells.items():
        for result in data.results:
            if result.status not in ("ok", "skipped"):
                yield _not_measured(name, result)
        if data.skip_reason and not data.measured:
            yield RunCode.CELL_SKIPPED.finding(f"{name} was left out: {data.skip_reason}")


def _not_measured(name: str, result: CellResult) -> Finding:
    where, status = f"{name}, repeat {result.repeat}", result.status.replace("_", " ")
    stopped = result.status == "interrupted"  # by the user: its message says so, and how to go on
    if stopped:
        return RunCode.CELL_INTERRUPTED.finding(f"{where}: {result.message}")
    return _CODE_OF_STATUS[result.status].finding(
        f"{where}: {status}: {result.message}",
        f"read cells/{name}/repeat{result.repeat}/log.txt, fix the cause, and run again to retry it",
    )


def _per_row(comparison: Comparison) -> Iterator[Finding]:
    for row in comparison.table.to_dict("records"):
        values = known_values(row)
        yield from communication_finding(values)
        yield from _estimates(values)
        yield from _throughput(values)
        cost = values["tracer_cost"]
        if cost is not None and cost > TRACER_COST:
            yield RunCode.TRACER_COST.finding(
                message=f"{values['cell']}: a traced step takes {cost:.2f}x as long as an untraced one"
            )


def _throughput(values: dict[str, object]) -> Iterator[Finding]:
    steps, blocks = as_number(values["samples_per_s"]), as_number(values["block_samples_per_s"])
    if steps and blocks and abs(blocks / steps - 1) > THROUGHPUT_APART:
        yield RunCode.THROUGHPUT_DIFFERS.finding(
            f"{values['cell']}: {blocks:,.0f} samples/s in whole blocks, {steps:,.0f} by the median step "
            f"({blocks / steps - 1:+.0%})"
        )


def _estimates(values: dict[str, object]) -> Iterator[Finding]:
    """What each subtraction says beside what was measured, a sentence a cell."""
    exposed, total = as_number(values["exposed_us"]), as_number(values["communication_us"])
    if exposed is None or total is None:
        return
    said = []
    for method, formula in FORMULAS.items():
        value = as_number(values[f"{method}_us"])
        if value is not None:
            negative = ", negative, so it cannot be a time" if value < 0 else ""
            said.append(
                f"{method}, {formula}, gives {show_time(value)} ({_signed(value - exposed)} against exposed, "
                f"{_signed(value - total)} against all{negative})"
            )
    if said:
        why = [reason.text for reason in reasons(values)]
        because = f". Measured reasons: {'; '.join(why)}" if why else ""
        yield RunCode.ESTIMATES.finding(
            f"{values['cell']}: measured {show_time(exposed)} exposed of {show_time(total)}; {'; '.join(said)}{because}"
        )


def _signed(microseconds: float) -> str:
    return f"{'+' if microseconds >= 0 else '-'}{show_time(abs(microseconds))}"


def _setting(run: RunData) -> Iterator[Finding]:
    """What has to be known to read this run's numbers."""
    strategies = {data.cell.strategy for data in run.measured}
    if run.manifest.device_type == "cpu":
        yield RunCode.CPU_CONCURRENCY.finding(
            "on a CPU, computing and communicating share the cores: what counts as hidden ran at the same time and slowed both"
        )
    if any(traits_of(one).host_copies for one in strategies):
        yield RunCode.DP_HOST_STAND_IN.finding(
            "dp-host is not nn.DataParallel, which does nothing without a GPU: it is dpscope's stand-in that runs the same four "
            "phases on CPU threads; its communication is copying within one process"
        )
    workload, epochs = run.manifest.config.workload, run.manifest.config.measurement.epochs
    if (
        workload.data != "synthetic"
        and workload.workers_total is None
        and any_reducer(strategies)
        and len(strategies) > 1
    ):
        yield RunCode.LOADER_WORKERS.finding(
            f"each process has {workload.workers} loader workers, so a DDP cell on N devices has N times as many as a DP one"
        )
    if workload.data == "synthetic" and epochs is not None:
        yield from _synthetic_epochs(run.measured, workload.samples)
    if run.manifest.device_type == "cpu":
        yield _threads(run)


def _threads(run: RunData) -> Finding:
    """One number for all cells of `dpscope run`; a script's processes have what its environment says."""
    by_cell = {data.cell.name: min(rank.threads for _, rank in data.ranks) for data in run.measured if data.ranks}
    if len(set(by_cell.values())) > 1 and run.manifest.script is not None:
        each = ", ".join(f"{name} with {counted(threads, 'thread')}" for name, threads in by_cell.items())
        return RunCode.THREADS_DIFFER.finding(f"processes compute with different numbers of threads: {each}")
    return RunCode.THREADS.finding(
        "every process (dp-host: every replica) computes with "
        f"{counted(run.manifest.threads_per_process, 'thread')}, of {run.manifest.environment.cpu_count} cores"
    )


def _synthetic_epochs(cells: list[CellData], samples: int) -> Iterator[Finding]:
    """Synthetic batches are all whole, so an epoch whose last one would be short trains on more than the data set."""
    batches = {
        data.cell.name: (data.ranks[0][1].steps_per_epoch or 0, data.planned.global_batch_size) for data in cells
    }
    more = {name: steps * size / samples - 1 for name, (steps, size) in batches.items()}
    name = max(more, key=lambda cell: more[cell])
    if more[name] > 0:
        steps, size = batches[name]
        yield RunCode.SYNTHETIC_EPOCHS.finding(
            f"synthetic data have no short last batch: an epoch of {counted(samples, 'sample')} is timed as whole batches, "
            f"in {name} {steps} of {size}, {more[name]:.2%} more than the data set (no cell has more)"
        )
