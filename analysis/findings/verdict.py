"""The verdict on a run or on traces: which strategy, the cost of communication, the shortcuts'
estimates, what to do next.

It is computed once from ledgers, comparisons and findings; every output only prints it. It covers
one case: the largest number of devices measured and, among their cells, the largest batch per
device at which the strategies were compared.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from dpscope.analysis.cells.comparison import Comparison, StrategyGap
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.cells.scaling import devices_text
from dpscope.analysis.findings.actions import RUN_AGAIN, Situation, next_fact
from dpscope.analysis.findings.cost import cost_fact, device_use, late_facts, traced_length
from dpscope.analysis.findings.facts import (
    Fact,
    Scale,
    Verdict,
    basis_of,
    capital,
    compared,
    ends,
    percent,
)
from dpscope.analysis.findings.gains import Gain, gain_of, no_baseline
from dpscope.analysis.findings.ledger_text import slowed_by_tracing, without_interval
from dpscope.analysis.findings.limits import MISSING, NOISY, limits, on_shared_cores, timed_rows
from dpscope.analysis.findings.shortcuts import shortcuts_fact
from dpscope.analysis.findings.trace_limits import NAMED_FILES, limits_of_traces
from dpscope.analysis.runs.cell_findings import more_samples
from dpscope.analysis.runs.run_data import CPU_RUN, RunData, repeats_text
from dpscope.analysis.stats.samples import verdict
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.lateness import LateRank
from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.analysis.traces.ranks.parallelism import NO_BACKWARD, parallelism_name
from dpscope.profiling.records.finding import Finding, counted, grouped, listed
from dpscope.profiling.records.plan_codes import PlanCode
from dpscope.profiling.records.strategies import traits_of
from dpscope.profiling.records.trace_codes import TraceCode

_DECIDING_REPEATS = 5
STAND_IN = f"{CPU_RUN} dp-host stands in for DataParallel."
CPU_TRACES = "CPU traces: compute and communication shared the cores; not valid for GPUs."
_LOST = (
    TraceCode.NO_KERNELS.code,
    TraceCode.TRACE_INCOMPLETE.code,
    TraceCode.DEVICE_NOT_READ.code,
    TraceCode.CUDA_GRAPHS.code,
)
_TRACE_MORE = "Trace every rank of a job on several devices"
_ONE_STEP = "shows what happened once, not what is typical"


def traces_verdict(data: Job, row: CellRow | None = None) -> Verdict:
    """The verdict on a job of foreign traces; `row` is its row of the comparison with models, None
    without models.
    """
    verdict_on_read = _verdict_on_read(data, row)
    if not data.cut_short:
        return verdict_on_read
    # a whole copy may answer what the files that were read leave open
    files = listed(data.cut_short, NAMED_FILES)
    again = _next(f"Copy {files} again, or trace again if the original is cut too")
    *facts, _ = verdict_on_read.facts
    return replace(verdict_on_read, facts=(*facts, again), part=None, saves_at_most_us=None)


def _verdict_on_read(data: Job, row: CellRow | None) -> Verdict:
    """As `traces_verdict`, as if the files were whole."""
    ledger = data.ledger
    setting = _traces_setting(data)
    limits = limits_of_traces(data, row)
    moved = len(data.tables.collectives) > 0 or bool(ledger is not None and ledger.exposed_us)
    known_row = row or CellRow(cell=data.name, strategy=data.strategy, devices=data.devices)
    situation = Situation(
        replace(known_row, ledger=ledger),
        late=_notable_late(data, ledger),
        on_device=data.on_device,
        messages=data.messages,
        last=data.last_rank,
        knows_options=False,
        not_split=data.not_split,
    )
    if data.communication_known and not moved:
        following = _next_without_communication(data, situation)
        return Verdict(setting, limits, (_no_communication(data), following))
    if ledger is None:
        unknown = Fact("cost", "COST", ("not measured: the traces do not show it",))
        lost, again = _lost(data), _TRACE_MORE
        if lost is not None:
            again = capital(lost.next_step)
        return Verdict(setting, limits, (unknown, _next(again)))
    return _about(
        Verdict(setting, limits, strategy=_traced_strategy(data), cells=(data.name,)),
        data,
        situation,
        rows=[],
        with_shortcuts=row is not None and row.ring_us is not None,
    )


def _lost(data: Job) -> Finding | None:
    """The error for which the traces do not show the device."""
    for finding in data.findings:
        if finding.severity == "error" and finding.code in _LOST:
            return finding
    return None


def _no_communication(data: Job) -> Fact:
    lines = ["none: there is no collective in the traces"]
    ledger = data.ledger
    if data.on_device and ledger is not None:
        scale = Scale([ledger.traced_step_us])
        of_step = traced_length(ledger, data, scale)
        lines.append(f"of {of_step} {device_use(ledger, scale)}")
    return Fact("cost", "COST", tuple(lines))


def _next_without_communication(data: Job, situation: Situation) -> Fact:
    """To trace the rest of the job; else, by its ledger, what takes time on all of its devices."""
    if data.devices < 2 or len(data.summaries) < data.processes:
        return _next(_TRACE_MORE)
    alone = replace(situation, not_split=None)
    return next_fact([], alone).fact


def _next(line: str) -> Fact:
    return Fact("next", "NEXT", (line,))


def _traces_setting(data: Job) -> str:
    """Ranks, strategy and traced steps of a job of which nothing else is known, and what they are
    not valid for.
    """
    on = f" on {data.traced_devices}" if data.traced_devices else ""
    setting = f"{_ranks_read(data)}{on}, {_parallelism(data)}"
    if data.foreign_format is not None:
        setting = f"{data.foreign_format}: {setting}"
    if data.ledger is not None:
        steps = data.ledger.steps
        setting = f"{setting}, {counted(steps, 'traced step')}"
        if steps == 1:
            setting = f"{setting}: {_ONE_STEP}"
    return f"{setting}." if data.on_device or _lost(data) else f"{setting}. {CPU_TRACES}"


def _ranks_read(data: Job) -> str:
    """How many ranks were read, and of how many."""
    read = len(data.summaries)
    if data.has_unknown_size:
        return f"{counted(read, 'rank')} of an unknown number"
    return f"{read} of {counted(data.processes, 'rank')}"


def _traced_strategy(data: Job) -> str:
    """Its name if it is one of dpscope's, else what the first line states."""
    return data.strategy if traits_of(data.strategy).identified else _parallelism(data)


def _parallelism(data: Job) -> str:
    """The strategy; where the traces do not show it, the kinds of their collectives."""
    traits = traits_of(data.strategy)
    if traits.identified:
        return traits.label
    if not data.communication_known:
        return "communication not known"
    evidence = [summary.parallelism for summary in data.summaries]
    name = parallelism_name(evidence, data.tables.collectives) or "no collectives"
    return "strategy not shown" if name == NO_BACKWARD else name


def _about(
    begun: Verdict, data: Job, situation: Situation, rows: Sequence[CellRow], with_shortcuts: bool
) -> Verdict:
    """The verdict with the facts about one cell: cost, shortcuts, the late rank, what to do."""
    chosen = situation.chosen
    late = situation.late
    facts = [*begun.facts, cost_fact(chosen, data, situation.on_device)]
    if with_shortcuts:
        facts.append(shortcuts_fact(chosen, data))
    if late is not None and chosen.ledger is not None:
        facts.extend(late_facts(late, chosen.ledger))
    following = next_fact(rows, situation)
    return replace(
        begun,
        facts=(*facts, following.fact),
        cell=data.name,
        ledger=chosen.ledger,
        late=late,
        part=following.part,
        saves_at_most_us=following.saves_at_most_us,
    )


def run_verdict(run: RunData, comparison: Comparison) -> Verdict:
    """The verdict on a run, or on traces with their comparison."""
    if run.recorded is None:
        (data,) = run.cells.values()
        row = comparison.rows[data.name]
        known = row.traced_step_us is not None and row.ledger is not None
        return traces_verdict(data, row if known else None)
    case = _largest_case(comparison)
    if not case:
        return _nothing_parallel(run, comparison)
    chosen, gap = _chosen(comparison, case)
    data = run.cells[chosen.cell]
    gain = gain_of(run, comparison, chosen.cell)
    which, strategy = _which(comparison, chosen, gap, gain)
    limiting = tuple(limits(run, comparison, case))
    labels = {limit.label for limit in limiting}
    situation = _situation(run, comparison, chosen, gain, labels)
    begun = Verdict(
        _setting(run, comparison, data),
        limiting,
        (which,),
        strategy=strategy,
        cells=tuple(row.cell for row in case),
    )
    return _about(begun, data, situation, _alike(comparison, chosen), with_shortcuts=True)


def _situation(
    run: RunData,
    comparison: Comparison,
    chosen: CellRow,
    gain: Gain | None,
    limit_labels: Collection[str],
) -> Situation:
    """What the next step after a run depends on."""
    data = run.cells[chosen.cell]
    noisy = NOISY in limit_labels
    late = None
    if slowed_by_tracing(chosen) is None:
        late = _notable_late(data, chosen.ledger)
    shown = None if gain is None else _direction(gain)
    undecided = gain is not None and shown not in ("above", "below")
    not_judged = without_interval(chosen.ledger)
    return Situation(
        chosen,
        late,
        run.device_type != "cpu",
        data.messages,
        data.last_rank,
        comparison.knows_options,
        slower=shown == "below",
        more_repeats=_more_repeats(run) if undecided or noisy or not_judged else None,
        noisy=noisy,
        repair=_repair(run),
        incomplete=MISSING in limit_labels,
        without_interval=not_judged,
        launch_bound=any(finding.code == TraceCode.LAUNCH_BOUND.code for finding in data.findings),
        late_samples=more_samples(data, late.rank) if late is not None else None,
        add_baseline=_add_baseline(run, comparison, chosen) if gain is None else None,
    )


def _repair(run: RunData) -> str | None:
    """What to do about the first repeat without whole traces."""
    for data in run.measured:
        for left_out in data.left_out:
            return capital(left_out.next_step)
    return None


def _notable_late(data: Job, ledger: Ledger | None) -> LateRank | None:
    """The late rank, if the others lose as much to it as to a straggler."""
    late = data.late
    if late is None or ledger is None or not late.is_notable(ledger.traced_step_us):
        return None
    return late


def _add_baseline(run: RunData, comparison: Comparison, chosen: CellRow) -> str | None:
    """How to measure one device, by the finding that it is missing, else by the options of a
    run.
    """
    findings = (*run.manifest.findings, *no_baseline(run, comparison))
    missing = (finding for finding in findings if finding.code == PlanCode.NO_BASELINE.code)
    by_options = None
    if comparison.knows_options:
        devices = f"--devices 1,{chosen.devices}"
        by_options = f"measure one device, too: --strategy single,{chosen.strategy} {devices}"
    return next((evidence.next_step for evidence in missing), by_options)


def _more_repeats(run: RunData) -> int:
    """With which a run that did not decide may do so: twice as many, at least five."""
    repeats = [len(data.results) for data in run.measured]
    return max(_DECIDING_REPEATS, 2 * max(repeats, default=1))


def _setting(run: RunData, comparison: Comparison, data: Job | None) -> str:
    """What was measured and where in one line, and what that is not valid for."""
    batch = "" if data is None else f"batch {data.batch_text} per device"
    return f"{measured_where(run, batch)}. {validity(run, comparison)}".strip()


def measured_where(run: RunData, batch: str = "") -> str:
    """Model, `batch` in words, machine and repeats."""
    manifest = run.manifest
    name = manifest.config.workload.model.rpartition(":")[2]
    if manifest.script:
        name = Path(manifest.script).name
    environment = manifest.environment
    if run.device_type == "cpu":
        machine = counted(environment.cpu_count, "CPU core")
    else:
        names = sorted(
            {accelerator.name or "unknown GPU" for accelerator in environment.accelerators}
        )
        machine = f"{len(environment.accelerators)} x {', '.join(names)}"
    return ", ".join(filter(None, (name, batch, machine, repeats_text(run))))


def validity(run: RunData, comparison: Comparison) -> str:
    """What a run's numbers are not valid for; empty on GPUs."""
    if run.device_type != "cpu":
        return ""
    with_stand_in = any(traits_of(row.strategy).host_copies for row in comparison.rows.values())
    return STAND_IN if with_stand_in else CPU_RUN


def _alike(comparison: Comparison, chosen: CellRow) -> list[CellRow]:
    """The measured cells with the same options on as many nodes."""
    variants = comparison.variants
    return [
        row
        for row in timed_rows(comparison)
        if (variants.get(row.cell), row.nodes) == (variants.get(chosen.cell), chosen.nodes)
    ]


def _nothing_parallel(run: RunData, comparison: Comparison) -> Verdict:
    more = "Measure two or more devices: dpscope run --devices 1,2"
    if on_shared_cores(run):
        more = "Measure two or more devices with a core each"
    if not comparison.knows_options:  # its processes may have trained independently
        more = "Measure two or more devices that train together, with DDP or FSDP: dpscope attach --devices 1,2"
    jobs = comparison.unmeasured_jobs
    if jobs:
        more = f"Attach again on {' and '.join(jobs)}: its finding gives the reason why nothing was measured"
    limiting = tuple(limits(run, comparison, ()))
    if MISSING in {limit.label for limit in limiting}:
        more = RUN_AGAIN
    none = "no strategy on several devices was compared with one device"
    facts = (Fact("which", "NO CHOICE", (none,)), _next(more))
    return Verdict(_setting(run, comparison, None), limiting, facts)


def _largest_case(comparison: Comparison) -> list[CellRow]:
    """The cells on the most devices at their largest compared batch; without variants if any cell
    has none.
    """
    compared = {(gap.devices, gap.batch_size) for gap in comparison.gaps}
    several = (
        row
        for row in timed_rows(comparison)
        if row.devices > 1 and row.cell not in comparison.no_scaling
    )

    def size(row: CellRow) -> tuple[int, bool, int]:
        """By which the largest case is chosen."""
        batch = row.batch_size or 0
        return row.devices, (row.devices, batch) in compared, batch

    cases = grouped((size(row), row) for row in several)
    case = cases[max(cases)] if cases else []
    return [row for row in case if not comparison.variants.get(row.cell)] or case


def _chosen(comparison: Comparison, case: Sequence[CellRow]) -> tuple[CellRow, StrategyGap | None]:
    """The faster of DP and DDP; DDP if the difference is not significant, because torch keeps
    developing it.

    In its place the fastest of the cells that are significantly faster than it. Without such a pair
    the fastest cell. A stand-in only where nothing else was measured: it exists only in dpscope.
    """
    names = {row.cell: row for row in case}
    gap = next(
        (
            compared
            for compared in comparison.gaps
            if compared.dp in names and compared.ddp in names
        ),
        None,
    )
    if gap is None:
        fastest = min(
            case,
            key=lambda row: (traits_of(row.strategy).stands_for is not None, row.step_us or 0.0),
        )
        return fastest, None
    dp_wins = verdict(gap.ratio) == "below" and not traits_of(names[gap.dp].strategy).stands_for
    chosen = names[gap.dp if dp_wins else gap.ddp]
    against = [
        cost for cost in comparison.costs if cost.against == chosen.cell and cost.cell in names
    ]
    faster = [slower for slower in against if verdict(slower.ratio) == "below"]
    # such as DDP with another option
    if faster:
        chosen = names[min(faster, key=lambda quicker: quicker.ratio.value or 1.0).cell]
    return chosen, gap


def _direction(gain: Gain) -> str | None:
    """Whether the throughput is significantly above or below that of one device; None where other
    estimates contradict that.
    """
    return verdict(gain.by_median) if gain.estimators_agree else None


def _which(
    comparison: Comparison, chosen: CellRow, gap: StrategyGap | None, gain: Gain | None
) -> tuple[Fact, str | None]:
    """The fact about the strategy, and the strategy that it recommends."""
    name = traits_of(chosen.strategy).label
    where = devices_text(chosen.devices, chosen.nodes)
    between: list[str] = []
    of_gap = ""
    if gap is not None and gap.ratio.value is not None:
        between.append(compared(gap.dp_label, "DDP", gap.ratio))
        of_gap = f"; {gap.dp_label} against DDP: {basis_of(gap.ratio)}"
    if gain is None:
        line, basis = _over_itself(comparison, chosen, where)
        return Fact("which", "NO CHOICE", (line, *between), f"{basis}{of_gap}"), None
    gained = _gain_line(chosen, gain)
    basis = f"{name} against one device: {basis_of(gain.by_median)}{of_gap}"
    stand_in = traits_of(chosen.strategy).stands_for
    label = "UNDECIDED"
    strategy = None
    lines = [f"{name} on {where}: {gained}", *between]
    shown = _direction(gain)
    if shown == "below":
        label = "USE ONE"
        strategy = "single"
        lines[0] = f"{name} on {where} reaches {gained}"
    elif shown == "above" and stand_in:
        label = "NO CHOICE"
        lines.append(f"{name} stands in for {traits_of(stand_in).label} and exists only in dpscope")
    elif shown == "above":
        label = f"USE {name}"
        strategy = chosen.strategy
        lines[0] = f"{where}, not one: {gained}"
        if gap is not None and _even(comparison, chosen, gap):
            label = f"USE DDP/{gap.dp_label}"
    elif not gain.estimators_agree:
        lines.insert(1, f"estimates disagree: {gain.others_text}")
    return Fact("which", label, tuple(lines), basis), strategy


def _even(comparison: Comparison, chosen: CellRow, gap: StrategyGap) -> bool:
    """Whether neither of DP and DDP is clearly faster, so that either may be used."""
    stand_in = traits_of(comparison.rows[gap.dp].strategy).stands_for
    return not _is_clear(gap) and not stand_in and chosen.cell in (gap.dp, gap.ddp)


def _is_clear(gap: StrategyGap) -> bool:
    return verdict(gap.ratio) in ("above", "below")


def _gain_line(chosen: CellRow, gain: Gain) -> str:
    """Throughput against one device's, its ratio with interval, and the efficiency."""
    gained = gain.by_median.value or 0.0
    # the first interval on the screen, which names the level of all others
    interval = ends(gain.by_median, "95% interval ")
    efficiency = percent(gained / chosen.devices)
    gain_at = f"{gained:.2f}x one device at the same"
    if not gain.weak:
        return f"{gain_at} global batch {interval}, {efficiency} strong efficiency"
    line = f"{gain_at} batch per device {interval}, {efficiency} efficient"
    if chosen.strong_speedup is None:
        return line
    return f"{line}; {chosen.strong_speedup:.2f}x at the same global batch"


def _over_itself(comparison: Comparison, chosen: CellRow, where: str) -> tuple[str, str]:
    """The gain over one device under the same strategy, as under torchrun, where no plain single
    device was measured.
    """
    name = traits_of(chosen.strategy).label
    gained = comparison.over_itself.get(chosen.cell)
    if gained is None or gained.value is None:
        return f"{name} on {where} was not compared with one device", "not measured"
    line = f"{name} on {where}: {gained.value:.2f}x one device under {name} {ends(gained)}"
    return f"{line}; one device without {name} was not measured", basis_of(gained)
