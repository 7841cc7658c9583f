"""Conclusions and warnings about a run: observation, meaning, next step."""

from collections.abc import Collection, Iterator, Sequence
from itertools import chain

import msgspec

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.findings.comparisons import (
    gap_finding,
    scaling_findings,
    strategy_cost_finding,
)
from dpscope.analysis.findings.gains import no_baseline
from dpscope.analysis.findings.ledger_text import slowed_by_tracing, tracing_findings
from dpscope.analysis.findings.limits import round_drift
from dpscope.analysis.findings.no_overlap import (
    no_overlap_finding,
    straggler_finding,
    waiting_findings,
)
from dpscope.analysis.findings.predictions import prediction_findings
from dpscope.analysis.runs.cell_findings import repeats_apart
from dpscope.analysis.runs.run_data import RunData, repeat_findings
from dpscope.analysis.runs.variant_savings import variant_findings
from dpscope.analysis.text.units import show_share
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.training.findings import training_findings
from dpscope.profiling.records.finding import Finding, grouped
from dpscope.profiling.records.learning_codes import LearningCode
from dpscope.profiling.records.plan_codes import PlanCode
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.strategies import any_reducer
from dpscope.profiling.records.trace_codes import TraceCode

THROUGHPUT_APART = 0.05  # of the median step's

_MERGED = {
    code.code for codes in (RunCode, TraceCode) for code in codes if code.value.of_many_cells
}


def conclusions(run: RunData, comparison: Comparison) -> list[Finding]:
    """All findings about a run, or about traces alone, errors first, without duplicates.

    Those that are equal but for the cell are one, and so are those of _MERGED.
    """
    findings = _of_traces(run, comparison)
    if run.recorded is not None:
        findings = _of_run(run, comparison)
    in_a_script = not comparison.knows_options
    advised = dict.fromkeys(finding.advised(in_a_script) for finding in findings)
    alike = grouped(
        ((finding.severity, finding.code, finding.next_step), finding) for finding in advised
    )
    merged = chain.from_iterable(map(_merged, alike.values()))
    return sorted(merged, key=lambda finding: ("error", "warning", "info").index(finding.severity))


def _merged(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Findings of one code and next step; those that state the same of several cells as one that
    names them all.
    """
    if findings[0].code in _MERGED:
        by_cell = grouped((finding.about, finding.observation) for finding in findings)
        messages = []
        for about, observations in by_cell.items():
            message = ", ".join(observations)
            if about:
                message = f"{about}: {message}"
            messages.append(message)
        yield msgspec.structs.replace(findings[0], message="; ".join(messages), about="")
        return
    by_observation = grouped((finding.observation, finding) for finding in findings)
    for observation, same in by_observation.items():
        about = ", ".join(finding.about for finding in same if finding.about)
        message = f"{about}: {observation}" if about else observation
        yield msgspec.structs.replace(same[0], message=message, about=about)


def _of_traces(run: RunData, comparison: Comparison) -> Iterator[Finding]:
    yield from recorded_findings(run)
    yield from _above_peak(comparison)
    yield from prediction_findings(comparison, shared_cores=run.device_type == "cpu")
    yield from chain.from_iterable(map(waiting_findings, run.measured))


def recorded_findings(run: RunData) -> Iterator[Finding]:
    """What is known of a run, or of traces alone, before its cells are compared; first of the cell
    whose repeats differ most.
    """
    yield from run.recorded.findings if run.recorded is not None else ()

    def apart(cell: tuple[str, Job]) -> float:
        return repeats_apart(cell[1].step_samples())

    for name, data in sorted(run.cells.items(), key=apart, reverse=True):
        yield from data.findings
        yield from _not_measured(name, data)


def _of_run(run: RunData, comparison: Comparison) -> Iterator[Finding]:
    yield from recorded_findings(run)
    yield from repeat_findings(run)
    yield from round_drift(run)
    # What cells on shared cores lack is cores: plan_findings states it, once.
    conclusive = {data.name for data in run.measured if not data.no_scaling}
    yield from _of_strategies(comparison, conclusive)
    for row in comparison.rows.values():
        if row.cell in conclusive:
            yield from _of_times(row)
    yield from _above_peak(comparison)
    yield from prediction_findings(comparison, shared_cores=run.manifest.device_type == "cpu")
    yield from scaling_findings(comparison)
    yield from variant_findings(run)
    for data in run.measured:
        if data.name not in conclusive:
            continue
        yield from straggler_finding(data)
        if slowed_by_tracing(comparison.rows[data.name]) is None:
            yield from no_overlap_finding(data)
    yield from no_baseline(run, comparison)
    yield from _setting(run)
    yield from training_findings(run.training) if run.training else ()
    if run.untrained:
        yield LearningCode.TRAINING_INCOMPLETE.finding(run.untrained, severity="warning")


def _of_strategies(comparison: Comparison, conclusive: Collection[str]) -> Iterator[Finding]:
    """What pairs of cells show of their strategies."""
    for gap in comparison.gaps:
        if gap.ratio.value is not None and gap.ddp in conclusive:
            yield gap_finding(gap)
    for cost in comparison.costs:
        if cost.ratio.value is not None and cost.cell in conclusive:
            yield strategy_cost_finding(cost)


def _not_measured(name: str, data: Job) -> Iterator[Finding]:
    failed = [result for result in data.results if result.status not in ("ok", "skipped")]
    for result in failed:
        log = f"cells/{name}/repeat{result.repeat}/log.txt"
        action = f"read {log}, fix the cause, and run again to retry it"
        if result.status == "interrupted":  # by the user
            action = "run the same command again to measure it"
        status = result.status.replace("_", " ")
        about = f"{name}, repeat {result.repeat}"
        yield RunCode.CELL_FAILED.finding(f"{status}: {result.message}", action, about=about)
    if data.skip_reason and not data.measured:
        yield RunCode.CELL_SKIPPED.finding(f"left out: {data.skip_reason}", about=name)


def _above_peak(comparison: Comparison) -> Iterator[Finding]:
    for row in comparison.rows.values():
        yield from above_peak(row)


def above_peak(row: CellRow) -> Iterator[Finding]:
    """That a cell's FLOPs need more than its device has, over the time in which a GPU computes."""
    shares = {
        "specified peak of its GPU while it computes": _share_while_computing(row),
        "measured CPU matmul peak": row.cpu_peak_share,
    }
    for peak, share in shares.items():
        if share is not None and share > 1:
            text = f"reaches {show_share(share)} of the {peak}"
            yield RunCode.ABOVE_PEAK.finding(text, about=row.cell)


def _share_while_computing(row: CellRow) -> float | None:
    """Of a GPU's peak; over the whole step where its compute is not known."""
    if row.mfu is None or row.used_points is None or not row.compute_us:
        return row.mfu
    step_us = row.traced_step_us or 0.0
    return max(row.mfu, row.used_points / 100 * step_us / row.compute_us)


def _of_times(row: CellRow) -> Iterator[Finding]:
    median = row.samples_per_s
    average = row.block_samples_per_s
    if median and average:
        apart = average / median - 1
        if abs(apart) > THROUGHPUT_APART:
            rate = f"{average:,.0f} samples/s over all steps"
            text = f"{rate}, {apart:+.0%} from the median step's {median:,.0f}"
            yield RunCode.WIDE_SPREAD.finding(text, about=row.cell)
    yield from tracing_findings(row)


def _setting(run: RunData) -> Iterator[Finding]:
    """Conditions that matter for interpreting this run's numbers."""
    manifest = run.manifest
    workload = manifest.config.workload
    strategies = {data.strategy for data in run.measured}
    several = any_reducer(strategies) and len(strategies) > 1
    if workload.data != "synthetic" and workload.workers_total is None and several:
        yield PlanCode.LOADER_WORKERS.finding(
            f"each process has {workload.workers} loader workers, so a DDP cell on N devices has N times as many as a DP one",
            "use --workers-total to keep the total equal",
        )
    if manifest.device_type == "cpu" and manifest.script is not None:
        yield from _threads(run.measured)


def _threads(cells: Sequence[Job]) -> Iterator[Finding]:
    """Equal for all cells of `dpscope run`; for a script, set by its environment."""
    by_cell = {
        data.name: min(rank.threads for _, rank in data.ranks) for data in cells if data.ranks
    }
    if len(set(by_cell.values())) > 1:
        each = ", ".join(f"{name} {threads}" for name, threads in by_cell.items())
        yield RunCode.THREADS_DIFFER.finding(f"threads of each process: {each}")
