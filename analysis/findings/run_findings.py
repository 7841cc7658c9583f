"""Conclusions and warnings about a run: observation, meaning, next step."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

import msgspec

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.estimated import FORMULAS
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.findings.comparisons import (
    gap_finding,
    scaling_findings,
    strategy_cost_finding,
)
from dpscope.analysis.findings.ledger_text import slowed_by_tracing, slowed_text
from dpscope.analysis.findings.no_overlap import (
    no_overlap_finding,
    straggler_finding,
    waiting_findings,
)
from dpscope.analysis.findings.predictions import prediction_findings, reasons
from dpscope.analysis.runs.cell_findings import no_single_device
from dpscope.analysis.runs.run_data import RunData, repeat_findings
from dpscope.analysis.runs.variant_savings import single_device_baselines, variant_findings
from dpscope.analysis.text.units import show_change, show_time
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.training.findings import training_findings
from dpscope.profiling.records.attach_codes import WITHOUT_TORCHRUN
from dpscope.profiling.records.finding import Finding, counted, grouped
from dpscope.profiling.records.learning_codes import LearningCode
from dpscope.profiling.records.run import CellStatus
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.strategies import any_reducer, traits_of
from dpscope.profiling.records.trace_codes import TraceCode

TRACER_COST = 1.15
THROUGHPUT_APART = 0.05  # of the median step's

_IN_TABLES = RunCode.with_trait("in_tables")
_MERGED = RunCode.with_trait("of_many_cells") | TraceCode.with_trait("of_many_cells")
_CODE_OF_STATUS: dict[CellStatus, RunCode] = {
    "out_of_memory": RunCode.CELL_OUT_OF_MEMORY,
    "crashed": RunCode.CELL_CRASHED,
    "timed_out": RunCode.CELL_TIMED_OUT,
}


def conclusions(run: RunData, comparison: Comparison) -> list[Finding]:
    """All findings about a run, or about traces alone, errors first, without duplicates.

    Those that are equal but for the cell are one, and so are those of _MERGED.
    """
    found = _of_run(run, comparison) if run.recorded is not None else _of_traces(run, comparison)
    alike = grouped(((one.severity, one.code, one.next_step), one) for one in dict.fromkeys(found))
    merged = chain.from_iterable(_merged(findings, run.cells) for findings in alike.values())
    return sorted(merged, key=lambda finding: ("error", "warning", "info").index(finding.severity))


def beyond_tables(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings that people are shown next to the tables: without those that only repeat a table
    in words.
    """
    return tuple(one for one in findings if one.code not in _IN_TABLES)


def _merged(findings: Sequence[Finding], cells: Collection[str]) -> Iterator[Finding]:
    """Findings of one code and next step; those that state the same of several cells as one that
    names them all.
    """
    if findings[0].code in _MERGED:
        yield msgspec.structs.replace(
            findings[0], message="; ".join(one.message for one in findings)
        )
        return
    for (subject, what), same in grouped(
        (_of_cell(one.message, cells), one) for one in findings
    ).items():
        named = [one.message.removesuffix(what).removesuffix(": ") for one in same]
        message = f"{', '.join(named)}: {what}" if subject else what
        yield msgspec.structs.replace(same[0], message=message)


def _of_cell(message: str, cells: Collection[str]) -> tuple[bool, str]:
    """Whether a message begins with a cell, and of which repeat, and what it states of it."""
    subject, _, what = message.partition(": ")
    of_cell = subject.partition(",")[0] in cells
    return of_cell, what if of_cell else message


def _of_traces(run: RunData, comparison: Comparison) -> Iterator[Finding]:
    yield from chain.from_iterable(cell.findings for cell in run.cells.values())
    yield from _above_peak(comparison)
    yield from prediction_findings(comparison, shared_cores=run.device_type == "cpu")
    yield from chain.from_iterable(map(waiting_findings, run.measured))


def _of_run(run: RunData, comparison: Comparison) -> Iterator[Finding]:
    yield from run.manifest.findings
    yield from chain.from_iterable(cell.findings for cell in run.cells.values())
    for name, data in run.cells.items():
        yield from _not_measured(name, data)
    yield from repeat_findings(run)
    # What cells on shared cores lack is cores: plan_findings states it, once.
    conclusive = {data.name for data in run.measured if not data.no_scaling}
    yield from (
        gap_finding(gap)
        for gap in comparison.gaps
        if gap.ratio.value is not None and gap.ddp in conclusive
    )
    costs = (
        cost
        for cost in comparison.costs
        if cost.ratio.value is not None and cost.cell in conclusive
    )
    yield from (strategy_cost_finding(cost, comparison.knows_options) for cost in costs)
    for row in comparison.rows.values():
        yield from _communication(row)
        yield from _estimates(row)
        if row.cell in conclusive:
            yield from _of_times(row)
    yield from _above_peak(comparison)
    yield from prediction_findings(comparison, shared_cores=run.manifest.device_type == "cpu")
    yield from scaling_findings(comparison)
    yield from variant_findings(run)
    judged = [data for data in run.measured if data.name in conclusive]
    yield from chain.from_iterable(map(straggler_finding, judged))
    for data in judged:
        if slowed_by_tracing(comparison.rows[data.name]) is None:
            yield from no_overlap_finding(data)
    without_single = [
        data.name
        for data in run.measured
        if data.devices > 1
        and data.knows_samples
        and not data.trained_alone
        and {data.cell.batch_size, data.global_batch_size}.isdisjoint(
            single_device_baselines(run, data.cell)
        )
    ]
    # else its finding says why there is no efficiency
    if WITHOUT_TORCHRUN not in comparison.unmeasured_jobs:
        yield from no_single_device(run.manifest, without_single, str(run.path))
    yield from _setting(run)
    yield from training_findings(run.training) if run.training else ()
    yield from [LearningCode.NO_EPOCH.finding(f"{run.untrained}.")] if run.untrained else ()


def _not_measured(name: str, data: Job) -> Iterator[Finding]:
    for result in data.results:
        where, status = f"{name}, repeat {result.repeat}", result.status.replace("_", " ")
        if result.status == "interrupted":  # by the user; the message includes the next step
            yield RunCode.CELL_INTERRUPTED.finding(f"{where}: {result.message}")
        elif result.status not in ("ok", "skipped"):
            retry = f"read cells/{name}/repeat{result.repeat}/log.txt, fix the cause, and run again to retry it"
            yield _CODE_OF_STATUS[result.status].finding(
                f"{where}: {status}: {result.message}", retry
            )
    if data.skip_reason and not data.measured:
        yield RunCode.CELL_SKIPPED.finding(f"{name} was left out: {data.skip_reason}")


def _above_peak(comparison: Comparison) -> Iterator[Finding]:
    for name, row in comparison.rows.items():
        for share, peak in (
            (row.mfu, "specified peak of its GPU"),
            (row.cpu_peak_share, "measured CPU matmul peak"),
        ):
            if share is not None and share > 1:
                yield RunCode.ABOVE_PEAK.finding(f"{name} reaches {share:.0%} of the {peak}")


def _of_times(row: CellRow) -> Iterator[Finding]:
    steps, blocks = row.samples_per_s, row.block_samples_per_s
    if steps and blocks and abs(apart := blocks / steps - 1) > THROUGHPUT_APART:
        rates = f"{blocks:,.0f} samples/s from one synchronisation to the next, {steps:,.0f} by the median step ({apart:+.0%})"
        yield RunCode.THROUGHPUT_DIFFERS.finding(f"{row.cell}: {rates}")
    if row.tracer_cost is not None and row.tracer_cost > TRACER_COST:
        slower = f"a traced step takes {row.tracer_cost:.2f}x as long as an untraced one"
        yield RunCode.TRACER_COST.finding(f"{row.cell}: {slower}")


def _estimates(row: CellRow) -> Iterator[Finding]:
    """The subtraction estimates of a cell compared with the measured values."""
    exposed, total = row.exposed_us, row.communication_us
    if exposed is None or total is None:
        return
    results = []
    for method, formula in FORMULAS.items():
        if (value := row.number(f"{method}_us")) is not None:
            negative = ", a negative time" if value < 0 else ""
            apart = f"{show_change(value - exposed)} from exposed, {show_change(value - total)} from all{negative}"
            results.append(f"{method}, {formula}, gives {show_time(value)} ({apart})")
    if results:
        why = "; ".join(reason.text for reason in reasons(row))
        yield RunCode.ESTIMATES.finding(
            f"{row.cell}: measured {show_time(exposed)} exposed of {show_time(total)}; {'; '.join(results)}"
            f"{f'. Measured reasons: {why}' if why else ''}"
        )


def _setting(run: RunData) -> Iterator[Finding]:
    """Conditions that matter for interpreting this run's numbers."""
    strategies, manifest = {data.strategy for data in run.measured}, run.manifest
    if manifest.device_type == "cpu":
        shared = "hidden communication ran at the same time and slowed both"
        yield RunCode.CPU_CONCURRENCY.finding(
            f"on a CPU, compute and communication share the cores: {shared}"
        )
    if any(traits_of(one).host_copies for one in strategies):
        yield RunCode.DP_HOST_STAND_IN.finding(
            "dp-host is not nn.DataParallel, which does nothing without a GPU, but dpscope's stand-in, which runs the same four "
            "phases on CPU threads; its communication is copying within one process"
        )
    workload = manifest.config.workload
    synthetic, several = (
        workload.data == "synthetic",
        any_reducer(strategies) and len(strategies) > 1,
    )
    if not synthetic and workload.workers_total is None and several:
        yield RunCode.LOADER_WORKERS.finding(
            f"each process has {workload.workers} loader workers, so a DDP cell on N devices has N times as many as a DP one"
        )
    if synthetic and manifest.config.measurement.epochs is not None:
        yield from _synthetic_epochs(run.measured, workload.samples)
    if manifest.device_type != "cpu":
        return
    # Equal for all cells of `dpscope run`; for a script, set by its environment.
    by_cell = {
        data.name: min(rank.threads for _, rank in data.ranks)
        for data in run.measured
        if data.ranks
    }
    if len(set(by_cell.values())) > 1 and manifest.script is not None:
        each = ", ".join(
            f"{name} with {counted(threads, 'thread')}" for name, threads in by_cell.items()
        )
        yield RunCode.THREADS_DIFFER.finding(f"processes use different numbers of threads: {each}")
        return
    threads, cores = manifest.threads_per_process, manifest.environment.cpu_count
    yield RunCode.THREADS.finding(
        f"every process (dp-host: every replica) computes with {counted(threads, 'thread')} on {counted(cores, 'core')}"
    )


def _synthetic_epochs(cells: list[Job], samples: int) -> Iterator[Finding]:
    """Synthetic batches are always whole, so an epoch may train on more samples than the data set
    has.
    """
    steps = {data.name: data.ranks[0][1].steps_per_epoch or 0 for data in cells}
    most = max(cells, key=lambda data: steps[data.name] * data.cell.global_batch_size)
    name, size = most.name, most.cell.global_batch_size
    more = steps[name] * size / samples - 1
    if more > 0:
        yield RunCode.SYNTHETIC_EPOCHS.finding(
            f"synthetic data have no short last batch: an epoch of {counted(samples, 'sample')} is timed as whole batches, in "
            f"{name} as {steps[name]} of {size}, {more:.2%} more than the data set (the largest excess of all cells)"
        )


def _communication(row: CellRow) -> Iterator[Finding]:
    """The finding about one cell; none if communication is unknown."""
    total, hidden, exposed = row.communication_us, row.hidden_us, row.exposed_us
    if total is None or hidden is None or exposed is None or not total:
        return
    if (slowed := slowed_by_tracing(row)) is not None:
        yield RunCode.COMMUNICATION_MEASURED.finding(
            f"{row.cell}: {slowed_text(row, slowed)}",
            "measure a larger batch or model, whose operations take longer",
        )
        return
    traits, wait = traits_of(row.strategy), row.exposed_wait_us
    waiting = f", {show_time(wait)} of that waiting for a late rank" if wait is not None else ""
    takes = f"{traits.communication} {'take' if traits.host_copies else 'takes'} {show_time(total)} a step"
    behind = (
        f"{hidden / total:.0%} of it hidden behind compute, {show_time(exposed)} exposed{waiting}"
    )
    advice = "at most the exposed time can be saved, and a faster link does not shorten the waiting in it"
    if traits.host_copies:
        advice = "copying within one process: no link is involved"
    yield RunCode.COMMUNICATION_MEASURED.finding(f"{row.cell}: {takes}, {behind}", advice)
