"""The verdict on a run or on traces: which strategy, what communication costs, what shortcuts would have said, what to do.

Worked out once from ledgers, comparisons and findings; every surface prints it and computes nothing. It speaks of one case: the
most devices that were measured and, there, the batch per device at which the strategies were compared, the largest such batch.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from dpscope.analysis.cells.comparison import Comparison, StrategyGap
from dpscope.analysis.cells.row import CellValues, number
from dpscope.analysis.cells.scaling import devices_text
from dpscope.analysis.findings.actions import Action, Confidence, Situation, best_action
from dpscope.analysis.findings.answers import (
    NO_SHORTCUT,
    NO_SINGLE_DEVICE,
    Answer,
    TracedFacts,
    Verdict,
    cost_answer,
    strategy_name,
    traces_verdict,
)
from dpscope.analysis.findings.late_rank import LateRank, late_rank
from dpscope.analysis.findings.shortcuts import shortcuts_text
from dpscope.analysis.findings.slow_tracing import slowed_by_tracing
from dpscope.analysis.findings.strategy_gaps import gap_sentence, range_said
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.runs.traced_job import TracedJob
from dpscope.analysis.stats.samples import Estimate, verdict
from dpscope.analysis.text.units import choose_unit, show
from dpscope.analysis.traces.ranks.contention import contentions, with_contention
from dpscope.analysis.traces.ranks.ledger import Ledger, ledger_of
from dpscope.analysis.traces.reading.table import as_table
from dpscope.profiling.records.strategies import traits_of
from dpscope.profiling.records.trace_codes import TraceCode

REPEATS_APART = 1.3  # largest median of a repeat over the smallest: from here on they are shown before any conclusion
_MOST_LISTED = 3  # repeats whose medians are listed; of more the smallest and the largest
_DECIDING_REPEATS = 5
_GAIN = "The gain over one device"
STAND_IN = "CPU stand-in (dp-host for nn.DataParallel): it says nothing about GPUs."
CPU_RUN = "CPU run: it says nothing about GPUs."
SCRIPT_ON_CPU = (
    "The script ran on a CPU: compute and communication shared its cores, and its times say nothing about GPUs."
)
NOT_COMPARED = "No strategy on several devices was compared with one device, so none can be recommended."


def run_verdict(run: RunData, comparison: Comparison) -> Verdict:
    """The verdict on a run, or on traces with their comparison."""
    if comparison.of_traces:
        (data,) = run.cells.values()
        ledger = comparison.ledgers.get(data.cell.name)
        return traces_verdict(cell_facts(data, ledger), _shortcuts_of_traces(data, ledger, comparison))
    case = _largest_case(comparison)
    which, chosen, strategy = _which(comparison, case)
    caveat = _caveat(run, comparison)
    if chosen is None:
        return _nothing_parallel(which, caveat, comparison)
    data = run.cells[str(chosen["cell"])]
    ledger = comparison.ledgers.get(data.cell.name)
    late = (
        late_rank(as_table(data.whole_windows), data.straggler, ledger) if slowed_by_tracing(chosen) is None else None
    )
    decided, action = _action(comparison, chosen, ledger, late, run)
    return Verdict(
        which=which,
        cost=cost_answer(chosen, ledger, late, is_launch_bound(data)),
        shortcuts=Answer(
            shortcuts_text(
                chosen, ledger, data, _reasons(comparison, data), comparison.ring_rates.get(data.cell.devices)
            ),
            "traced_means" if ledger else "not_measured",
        ),
        action=action,
        caveat=caveat,
        unsteady=_unsteady(run, comparison, case),
        strategy=strategy,
        cell=data.cell.name,
        ledger=ledger,
        late=late,
        part=decided.part,
        saves_us=decided.saves_us,
        cells=tuple(str(row["cell"]) for row in case),
    )


def cell_facts(data: CellData, ledger: Ledger | None) -> TracedFacts:
    """The facts of a cell that stands for the traces of a job."""
    assert isinstance(data.cell, TracedJob)
    return TracedFacts(
        job=data.cell,
        ledger=ledger,
        late=late_rank(as_table(data.whole_windows), data.straggler, ledger),
        on_device=data.on_device,
        has_collectives=not data.collectives.empty,
        communication_known=data.communication_known,
        not_split=data.not_split,
    )


def verdict_without_models(data: CellData) -> Verdict:
    """The verdict on a job of foreign traces: what `run_verdict` gives of them but for the ring formula."""
    ledger = ledger_of(as_table(data.whole_windows), as_table(data.exposed_parts))
    if ledger is not None:
        kernels = as_table(data.kernels)
        ledger = with_contention(ledger, contentions(kernels)) if data.communication_known else None
    return traces_verdict(cell_facts(data, ledger))


def _shortcuts_of_traces(data: CellData, ledger: Ledger | None, comparison: Comparison) -> str | None:
    row = next(iter(_rows(comparison)), None)
    if row is None or ledger is None:
        return None
    if number(row, "ring_us") is None:
        return NO_SINGLE_DEVICE
    alone = {"same_local_batch_us": "traces of one job hold no step on one device"}
    reasons = {**_reasons(comparison, data), **alone}
    return shortcuts_text(row, ledger, data, reasons, comparison.ring_rates.get(data.cell.devices))


def _nothing_parallel(which: Answer, caveat: str | None, comparison: Comparison) -> Verdict:
    more = "Measure two or more devices: dpscope run --devices 1,2."
    if comparison.of_script:  # which may have trained alone on each of them
        more = "Measure two or more devices that train together, with DDP or FSDP: dpscope attach --devices 1,2."
    if jobs := comparison.unmeasured_jobs:
        more = f"Fix what ended the job on {' and '.join(jobs)}, as it printed, and attach again."
    nothing = Answer("Nothing was measured on several devices.", "not_measured")
    return Verdict(which, nothing, Answer(NO_SHORTCUT, "not_measured"), Answer(more, "not_measured"), caveat)


def _caveat(run: RunData, comparison: Comparison) -> str | None:
    on_cpu = run.device_type == "cpu"
    if not comparison.of_script:
        with_stand_in = any(traits_of(one).host_copies for one in comparison.table["strategy"])
        return (STAND_IN if with_stand_in else CPU_RUN) if on_cpu else None
    said = [SCRIPT_ON_CPU] if on_cpu else []
    if batches := comparison.batches_seen:
        said.append(f"Batch per device, as the model's calls show it: {', '.join(batches)} (--batch-size corrects it).")
    return " ".join(said) or None


def _reasons(comparison: Comparison, data: CellData) -> dict[str, str]:
    return {column: why for (cell, column), why in comparison.reasons.items() if cell == data.cell.name}


def _unsteady(run: RunData, comparison: Comparison, case: Sequence[CellValues]) -> str | None:
    """The repeats' medians of the case's cells and their single devices, if those of one differ too much."""
    batches = {row["batch_size"] for row in case}
    cells = [
        str(row["cell"])
        for row in _rows(comparison)
        if traits_of(str(row["strategy"])).baseline and row["batch_size"] in batches
    ]
    told = []
    for name in (*cells, *(str(row["cell"]) for row in case)):
        medians = (
            [float(np.median(steps)) for steps in run.cells[name].step_samples() if len(steps)]
            if name in run.cells
            else []
        )
        if medians and max(medians) > REPEATS_APART * min(medians):
            told.append(f"{name} {_listed(medians)}")
    return f"Repeats' medians differ by more than {REPEATS_APART - 1:.0%}: {'; '.join(told)}." if told else None


def _listed(medians: Sequence[float]) -> str:
    unit = choose_unit("time", medians)
    if len(medians) > _MOST_LISTED:
        return f"{show(min(medians), unit)} to {show(max(medians), unit)} {unit.label}"
    return f"{', '.join(show(one, unit) for one in medians)} {unit.label}"


def _rows(comparison: Comparison) -> list[CellValues]:
    """The measured cells' values, None where missing."""
    table = comparison.table
    kept = table[table["traced_step_us" if comparison.of_traces else "step_us"].notna()]
    return [
        {str(name): None if pd.isna(value) else value for name, value in row.items()} for row in kept.to_dict("records")
    ]


def _largest_case(comparison: Comparison) -> list[CellValues]:
    """The multi-device cells of the most devices at their largest batch, plain variants where there are any."""
    several = [
        row
        for row in _rows(comparison)
        if _measured(row, "devices") > 1 and row["cell"] not in comparison.trained_alone
    ]
    compared = {(gap.devices, gap.batch_size) for gap in comparison.gaps}
    size = max(
        ((_measured(row, "devices"), _pair(row) in compared, _measured(row, "batch_size")) for row in several),
        default=None,
    )
    case = [row for row in several if size and _pair(row) == (size[0], size[2])]
    plain = [row for row in case if not comparison.variants.get(str(row["cell"]))]
    return plain or case


def _pair(row: CellValues) -> tuple[float, float]:
    return _measured(row, "devices"), _measured(row, "batch_size")


def _which(comparison: Comparison, case: Sequence[CellValues]) -> tuple[Answer, CellValues | None, str | None]:
    """The answer, the cell that it speaks of, and the strategy that it recommends."""
    if not case:
        return Answer(NOT_COMPARED, "not_measured"), None, None
    names = {str(row["cell"]): row for row in case}
    gap = next((one for one in comparison.gaps if one.dp in names and one.ddp in names), None)
    chosen = _faster_than_ddp(comparison, names, _faster(names, gap)) or min(
        case, key=lambda row: _measured(row, "step_us")
    )
    speedup = _speedup(comparison, str(chosen["cell"]))
    where = f"on {devices_text(int(_measured(chosen, 'devices')), int(number(chosen, 'nodes') or 1))}"
    if chosen.get("steps_per_s") is None:  # given instead of samples where the batch is not known
        where += f", batch {chosen['batch_size']} each"
    between = f" {gap_sentence(gap)}" if gap else ""
    if speedup is None or speedup.value is None:
        relative, confidence = _relative_to_itself(comparison, chosen)
        return Answer(f"{strategy_name(chosen)} {where} {relative}{between}", confidence), chosen, None
    times = f"{speedup.value:.2f}x one device's throughput{range_said(speedup)}"
    shown = verdict(speedup)
    strategy = None
    if shown == "below":
        text = f"Do not parallelise at this size: {strategy_name(chosen)} gives {times} {where}."
        strategy = "single"
    elif shown == "above":
        text = f"Use {_recommended(gap, chosen)}: {times} {where}."
        strategy = str(chosen["strategy"])
    else:
        text = f"Not decided between {strategy_name(chosen)} and one device: {times} {where}."
    return Answer(text + between, _confidence(speedup), _GAIN), chosen, strategy


def _faster(names: Mapping[str, CellValues], gap: StrategyGap | None) -> CellValues | None:
    """The faster of DP and DDP, DDP where no difference is shown: it is the one that torch keeps developing."""
    if gap is None:
        return None
    return names[gap.dp] if verdict(gap.ratio) == "below" else names[gap.ddp]


def _faster_than_ddp(
    comparison: Comparison, names: Mapping[str, CellValues], chosen: CellValues | None
) -> CellValues | None:
    """The chosen cell, or of those that are shown to be faster than it, where it is DDP's, the fastest."""
    if chosen is None:
        return None
    faster = [
        one
        for one in comparison.costs
        if one.against == chosen["cell"] and one.cell in names and verdict(one.ratio) == "below"
    ]
    return names[min(faster, key=lambda one: one.ratio.value or 1.0).cell] if faster else chosen


def _recommended(gap: StrategyGap | None, chosen: CellValues) -> str:
    undecided = gap is not None and verdict(gap.ratio) not in ("above", "below") and chosen["cell"] in (gap.dp, gap.ddp)
    return f"DDP or {gap.dp_label}, whichever is simpler" if undecided and gap else strategy_name(chosen)


def _speedup(comparison: Comparison, cell: str) -> Estimate | None:
    """Samples per second over one device's at the same batch per device."""
    points = [(series, point) for series in comparison.scaling for point in series.points if point.cell == cell]
    points.sort(key=lambda one: one[0].scaling != "weak")
    return points[0][1].speedup if points else None


def _relative_to_itself(comparison: Comparison, chosen: CellValues) -> tuple[str, Confidence]:
    """Where no single device was measured: over one device under the same strategy, as a script under torchrun has it."""
    over_itself = comparison.over_itself.get(str(chosen["cell"]))
    if over_itself is None or over_itself.value is None:
        return "was not compared with one device, so its gain is not known.", "not_measured"
    name = strategy_name(chosen)
    text = f"gives {over_itself.value:.2f}x the throughput of one device under {name}{range_said(over_itself)}"
    return f"{text}; a device without {name} was not measured, so its gain over that is not known.", _confidence(
        over_itself
    )


def is_launch_bound(data: CellData) -> bool:
    """Whether the finding of that name stands for a cell: the host launches more slowly than the device runs."""
    return any(one.code == TraceCode.LAUNCH_BOUND for one in data.findings)


def _action(
    comparison: Comparison, chosen: CellValues, ledger: Ledger | None, late: LateRank | None, run: RunData
) -> tuple[Action, Answer]:
    speedup = _speedup(comparison, str(chosen["cell"]))
    shown = None if speedup is None else verdict(speedup)
    on_device, slower = run.device_type != "cpu", shown == "below"
    bound = is_launch_bound(run.cells[str(chosen["cell"])])
    situation = Situation(
        chosen, ledger, late, on_device, of_script=comparison.of_script, slower=slower, launch_bound=bound
    )
    action = best_action(_rows(comparison), situation)
    if speedup is None or shown in ("above", "below"):
        return action, Answer(action.text, action.confidence)
    repeats = max((len(data.results) for data in run.measured), default=1)
    wanted = max(_DECIDING_REPEATS, 2 * repeats)
    more = f"Measure more repeats to decide between {strategy_name(chosen)} and one device (--repeats {wanted})."
    return action, Answer(f"{more} {action.text}", _confidence(speedup), _GAIN)


def _confidence(estimate: Estimate) -> Confidence:
    shown = verdict(estimate)
    return "no_interval" if shown == "too_few_samples" else "not_shown" if shown == "no_difference_shown" else "shown"


def _measured(row: CellValues, column: str) -> float:
    value = number(row, column)
    assert value is not None, column
    return value
