"""The verdict on a run or on traces: which strategy, the cost of communication, the shortcuts'
estimates, what to do next.

It is computed once from ledgers, comparisons and findings; every output only prints it. It covers
one case: the largest number of devices measured and, among their cells, the largest batch per
device at which the strategies were compared.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpscope.analysis.cells.comparison import Comparison, StrategyGap
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.cells.scaling import devices_text
from dpscope.analysis.findings.answers import (
    NO_SHORTCUT,
    NO_SINGLE_DEVICE,
    Verdict,
    cost_answer,
    shortcuts_text,
    traces_verdict,
)
from dpscope.analysis.findings.comparisons import bounds, gap_sentence
from dpscope.analysis.findings.gains import Gain, gain_of
from dpscope.analysis.findings.ledger_text import (
    COMPARED,
    NOT_MEASURED,
    Answer,
    Situation,
    basis_of,
    best_action,
    slowed_by_tracing,
)
from dpscope.analysis.runs.cell_findings import more_samples
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.stats.samples import verdict
from dpscope.analysis.text.units import choose_unit, show
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.records.finding import grouped
from dpscope.profiling.records.strategies import traits_of
from dpscope.profiling.records.trace_codes import TraceCode

# largest over smallest median of a cell's repeats, above which a warning precedes all conclusions
REPEATS_APART = 1.3
_MOST_LISTED = 3  # medians listed one by one; of more repeats, only the smallest and the largest
_DECIDING_REPEATS = 5
_GAIN = "The gain over one device"
STAND_IN = "CPU stand-in (dp-host for nn.DataParallel): the results do not apply to GPUs."
CPU_RUN = "CPU run: the results do not apply to GPUs."
SCRIPT_ON_CPU = "The script ran on a CPU: compute and communication shared its cores, so the results do not apply to GPUs."
NOT_COMPARED = (
    "No strategy on several devices was compared with one device, so none can be recommended."
)


def run_verdict(run: RunData, comparison: Comparison) -> Verdict:
    """The verdict on a run, or on traces with their comparison."""
    if run.recorded is None:
        (data,) = run.cells.values()
        row, shortcuts = comparison.rows[data.name], None
        if row.traced_step_us is not None and row.ledger is not None:
            alone = {"same_local_batch_us": "traces of one job hold no step on one device"}
            row = replace(row, reasons={**row.reasons, **alone})
            shortcuts = NO_SINGLE_DEVICE if row.ring_us is None else shortcuts_text(row, data)
        return traces_verdict(data, shortcuts)
    case, caveat = _largest_case(comparison), _caveat(run, comparison)
    if not case:
        return _nothing_parallel(run, comparison, caveat)
    chosen, gap = _chosen(comparison, case)
    gain, data = gain_of(run, comparison, chosen.cell), run.cells[chosen.cell]
    speedup = None if gain is None else gain.by_median
    which, strategy = _which(comparison, chosen, gap, gain, data.batch_text)
    late = data.late if slowed_by_tracing(chosen) is None else None
    shown = None if gain is None else _direction(gain)
    launch_bound = any(one.code == TraceCode.LAUNCH_BOUND.code for one in data.findings)
    situation = Situation(
        chosen,
        late,
        run.device_type != "cpu",
        data.messages,
        data.last_rank,
        comparison.knows_options,
        slower=shown == "below",
        launch_bound=launch_bound,
        late_samples=more_samples(data, late.rank) if late is not None else None,
    )
    action = best_action(_alike(comparison, chosen), situation)
    if speedup is not None and shown not in ("above", "below"):
        repeats = max(
            _DECIDING_REPEATS, 2 * max((len(one.results) for one in run.measured), default=1)
        )
        name = traits_of(chosen.strategy).label
        more = (
            f"Measure more repeats to decide between {name} and one device (--repeats {repeats})."
        )
        action = replace(
            action, text=f"{more} {action.text}", basis=f"{_GAIN}: {basis_of(speedup)}"
        )
    shortcuts = shortcuts_text(chosen, data)
    return Verdict(
        which=which,
        cost=cost_answer(chosen, late, launch_bound),
        shortcuts=Answer(shortcuts, COMPARED if chosen.ledger else NOT_MEASURED),
        action=action,
        caveat=caveat,
        unsteady=_unsteady(run, comparison, case),
        strategy=strategy,
        cell=data.name,
        ledger=chosen.ledger,
        late=late,
        cells=tuple(row.cell for row in case),
    )


def _alike(comparison: Comparison, chosen: CellRow) -> list[CellRow]:
    """The measured cells with the same options on as many nodes."""
    variants = comparison.variants
    return [
        row
        for row in _timed(comparison)
        if (variants.get(row.cell), row.nodes) == (variants.get(chosen.cell), chosen.nodes)
    ]


def _nothing_parallel(run: RunData, comparison: Comparison, caveat: str | None) -> Verdict:
    more = "Measure two or more devices: dpscope run --devices 1,2."
    if _on_shared_cores(run):
        more = "Measure two or more devices with a core each."
    if not comparison.knows_options:  # its processes may have trained independently
        more = "Measure two or more devices that train together, with DDP or FSDP: dpscope attach --devices 1,2."
    if jobs := comparison.unmeasured_jobs:
        more = f"Attach again on {' and '.join(jobs)}: the finding about it says why nothing was measured."
    texts = (NOT_COMPARED, "Nothing was measured on several devices.", NO_SHORTCUT, more)
    which, cost, shortcuts, action = map(Answer, texts)
    return Verdict(which, cost, shortcuts, action, caveat)


def _on_shared_cores(run: RunData) -> list[Job]:
    """The measured cells whose processes have no core each."""
    return [data for data in run.measured if data.no_scaling and not data.trained_alone]


def _caveat(run: RunData, comparison: Comparison) -> str | None:
    on_cpu = run.device_type == "cpu"
    sentences, batches = [SCRIPT_ON_CPU] if on_cpu else [], ", ".join(comparison.batches_seen)
    if comparison.knows_options:
        with_stand_in = any(traits_of(row.strategy).host_copies for row in comparison.rows.values())
        sentences = [STAND_IN if with_stand_in else CPU_RUN] if on_cpu else []
    for why, known in grouped(
        (data.no_scaling, data.cores) for data in _on_shared_cores(run)
    ).items():
        cores = known[0] or 1
        remedy = f"use --devices up to {cores}" if cores > 1 else "use a machine with more cores"
        sentences.append(f"{why}, so nothing is concluded from them: {remedy}.")
    if batches:
        sentences.append(
            f"Batch per device, inferred from the model's calls: {batches} (or set --batch-size)."
        )
    if cycles := sorted({data.cycle for data in run.measured} - {1}):
        many = " and ".join(map(str, cycles))
        sentences.append(
            f"The script's steps repeat in cycles of {many}: times are means over whole cycles."
        )
    return " ".join(sentences) or None


def _unsteady(run: RunData, comparison: Comparison, case: Sequence[CellRow]) -> str | None:
    """The medians of the repeats of the case's cells and their baselines, for cells whose medians
    differ too much.
    """
    batches, unsteady = {row.batch_size for row in case}, []
    baselines = [
        row
        for row in _timed(comparison)
        if traits_of(row.strategy).baseline and row.batch_size in batches
    ]
    for name in (row.cell for row in (*baselines, *case) if row.cell in run.cells):
        medians = [
            float(np.median(steps)) for steps in run.cells[name].step_samples() if len(steps)
        ]
        if medians and max(medians) > REPEATS_APART * min(medians):
            unit = choose_unit("time", medians)
            listed = ", ".join(show(one, unit) for one in medians)
            if len(medians) > _MOST_LISTED:
                listed = f"{show(min(medians), unit)} to {show(max(medians), unit)}"
            unsteady.append(f"{name} {listed} {unit.label}")
    return (
        f"Repeats' medians differ by more than {REPEATS_APART - 1:.0%}: {'; '.join(unsteady)}."
        if unsteady
        else None
    )


def _timed(comparison: Comparison) -> list[CellRow]:
    """The measured cells."""
    return [row for row in comparison.rows.values() if row.step_us is not None]


def _largest_case(comparison: Comparison) -> list[CellRow]:
    """The cells on the most devices at their largest compared batch; without variants if any cell
    has none.
    """
    compared = {(gap.devices, gap.batch_size) for gap in comparison.gaps}
    several = (
        row
        for row in _timed(comparison)
        if row.devices > 1 and row.cell not in comparison.no_scaling
    )
    sizes = ((row.devices, row.batch_size or 0, row) for row in several)
    cases = grouped(
        ((devices, (devices, batch) in compared, batch), row) for devices, batch, row in sizes
    )
    case = cases[max(cases)] if cases else []
    return [row for row in case if not comparison.variants.get(row.cell)] or case


def _chosen(comparison: Comparison, case: Sequence[CellRow]) -> tuple[CellRow, StrategyGap | None]:
    """The faster of DP and DDP; DDP if the difference is not significant, because torch keeps
    developing it.

    In its place the fastest of the cells that are significantly faster than it. Without such a pair
    the fastest cell. A stand-in only where nothing else was measured: it exists only in dpscope.
    """
    names = {row.cell: row for row in case}
    gap = next((one for one in comparison.gaps if one.dp in names and one.ddp in names), None)
    if gap is None:
        return min(
            case,
            key=lambda row: (traits_of(row.strategy).stands_for is not None, row.step_us or 0.0),
        ), None
    dp_wins = verdict(gap.ratio) == "below" and not traits_of(names[gap.dp].strategy).stands_for
    chosen = names[gap.dp if dp_wins else gap.ddp]
    against = [one for one in comparison.costs if one.against == chosen.cell and one.cell in names]
    faster = [one for one in against if verdict(one.ratio) == "below"]
    return names[
        min(faster, key=lambda one: one.ratio.value or 1.0).cell
    ] if faster else chosen, gap


def _which(
    comparison: Comparison, chosen: CellRow, gap: StrategyGap | None, gain: Gain | None, batch: str
) -> tuple[Answer, str | None]:
    """The answer, and the strategy that it recommends."""
    name, where = (
        traits_of(chosen.strategy).label,
        f"on {devices_text(chosen.devices, chosen.nodes)}",
    )
    if chosen.steps_per_s is None:  # set instead of samples per second if the batch is unknown
        where += f", batch {batch} each"
    between = f" {gap_sentence(gap)}" if gap else ""
    if gain is None or gain.by_median.value is None:
        relative, basis = _relative_to_itself(comparison, chosen)
        return Answer(f"{name} {where} {relative}{between}", basis), None
    times = f"{_times(gain)} {where}.{_at_same_global_batch(gain)}{between}"
    shown = _direction(gain)
    undecided = "" if gain.estimators_agree else ", as the estimates disagree"
    text, strategy = f"Not decided between {name} and one device{undecided}: {times}", None
    if shown == "below":
        text, strategy = f"Do not parallelise at this size: {name} reaches {times}", "single"
    elif shown == "above" and (original := traits_of(chosen.strategy).stands_for):
        stand_in = f"{name} stands in for {traits_of(original).label} and exists only in dpscope"
        text = f"No strategy is recommended: {stand_in}; it reaches {times}"
    elif shown == "above":
        alike = (
            gap is not None
            and verdict(gap.ratio) not in ("above", "below")
            and chosen.cell in (gap.dp, gap.ddp)
        )
        if gap and alike and not traits_of(comparison.rows[gap.dp].strategy).stands_for:
            times = f"{name} reaches {times}"
            name = f"DDP or {gap.dp_label}, whichever is simpler"
        text, strategy = f"Use {name}: {times}", chosen.strategy
    return Answer(text, f"{_GAIN}: {basis_of(gain.by_median)}"), strategy


def _direction(gain: Gain) -> str | None:
    """Whether the throughput is significantly above or below that of one device; None where other
    estimates contradict that.
    """
    return verdict(gain.by_median) if gain.estimators_agree else None


def _times(gain: Gain) -> str:
    value = f"{gain.by_median.value:.2f}x one device's throughput"
    if gain.estimators_agree:
        return f"{value} ({bounds(gain.by_median)})"
    return f"{value} by the median step ({bounds(gain.by_median)}), {gain.others_text}"


def _at_same_global_batch(gain: Gain) -> str:
    split = gain.at_same_global_batch
    if split is None or split.value is None:
        return ""
    return f" At the same global batch: {split.value:.2f}x."


def _relative_to_itself(comparison: Comparison, chosen: CellRow) -> tuple[str, str]:
    """The gain over one device under the same strategy, as under torchrun, where no plain single
    device was measured.
    """
    over_itself = comparison.over_itself.get(chosen.cell)
    if over_itself is None or over_itself.value is None:
        return "was not compared with one device, so its gain is unknown.", NOT_MEASURED
    name = traits_of(chosen.strategy).label
    text = f"reaches {over_itself.value:.2f}x the throughput of one device under {name} ({bounds(over_itself)})"
    text = f"{text}; one device without {name} was not measured, so the gain over that is unknown."
    return text, basis_of(over_itself)
