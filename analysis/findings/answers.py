"""The three answers a run gives first: which strategy, what communication costs, what to do next.

Each is one or two plain sentences with the number it rests on and how sure it is. They speak of one case: the most devices
that were measured and, there, the batch per device at which the strategies were compared, the largest such batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from dpscope.analysis.comparison.compare import Comparison, StrategyGap
from dpscope.analysis.comparison.row import CellValues, interval_of, number
from dpscope.analysis.comparison.scaling import STRATEGY_NAMES, devices_text
from dpscope.analysis.findings.actions import Confidence, best_action, split_exposed
from dpscope.analysis.findings.slow_tracing import slowed_by_tracing, slowed_text
from dpscope.analysis.findings.strategy_gaps import gap_sentence, range_said
from dpscope.analysis.stats.samples import CONFIDENCE, Estimate, verdict
from dpscope.analysis.text.units import sentence, show_time

_DECIDING_REPEATS = 5
_GAIN = "The gain over one device"

STAND_IN = (
    "This is a stand-in run on a CPU: it shows how the strategies work and says nothing about GPUs "
    "(dp-host stands in for nn.DataParallel)."
)
ON_CPU = "These traces are of a CPU: compute and communication shared its cores, and they say nothing about GPUs."
SCRIPT_ON_CPU = (
    "The script ran on a CPU: compute and communication shared its cores, and its times say nothing about GPUs."
)
NOT_COMPARED = "No strategy on several devices was measured beside one device, so none can be recommended."
ONE_JOB = (
    "Traces of one job cannot tell whether another strategy is faster: trace that one too and set them side by side with "
    "dpscope compare, or measure both with dpscope run."
)
NOT_SEVERAL = "These traces show no communication between devices."
_CONFIDENCE_WORDS: Mapping[Confidence, str] = {
    "shown": f"{CONFIDENCE:.0%} interval excludes chance",
    "not_shown": "within chance",
    "no_interval": "one repeat or fewer than five steps: no interval",
    "traced_means": "means of the traced steps, no interval",
    "timed_steps": "medians and rates of the timed steps, no interval",
    "not_measured": "not measured",
}


@dataclass(frozen=True)
class Answer:
    """`question` as people ask it, `text` the answer with its number, `confidence` what that rests on: of `about`."""

    question: str
    text: str
    confidence: Confidence
    about: str = ""

    @property
    def basis(self) -> str:
        """How sure the answer is, in words."""
        words = _CONFIDENCE_WORDS[self.confidence]
        return f"{self.about}: {words}" if self.about else words


@dataclass(frozen=True)
class Answers:
    """`caveat` comes first where the run cannot speak of GPUs; None on GPUs. `cells` are those that they speak of."""

    which: Answer
    cost: Answer
    action: Answer
    caveat: str | None
    cells: tuple[str, ...]

    @property
    def all(self) -> tuple[Answer, Answer, Answer]:
        return self.which, self.cost, self.action

    def with_advice(self, sentence: str | None) -> "Answers":
        """The same, with a sentence more on what to do."""
        if sentence is None:
            return self
        return replace(self, action=replace(self.action, text=f"{self.action.text} {sentence}"))


def answer(
    comparison: Comparison, device_type: str, stragglers: Mapping[str, str] | None = None, repeats: int = 1
) -> Answers:
    """The answers of a comparison.

    `device_type` is the run's ("cuda" or "cpu"); `stragglers` names, by cell, the rank that most waiting was for; `repeats`
    is how many of each cell were measured.
    """
    case = _largest_case(comparison)
    which, chosen = _which(comparison, case)
    straggler = (stragglers or {}).get(str(chosen["cell"])) if chosen else None
    return Answers(
        which=which,
        cost=_cost(comparison, chosen, straggler),
        action=_action(comparison, chosen, straggler, repeats, on_device=device_type != "cpu"),
        caveat=_caveat(comparison, device_type),
        cells=tuple(str(row["cell"]) for row in case),
    )


def _caveat(comparison: Comparison, device_type: str) -> str | None:
    if comparison.of_script:
        said = [SCRIPT_ON_CPU] if device_type == "cpu" else []
        if batches := comparison.batches_seen:
            said.append(
                f"Batch per device, as the model's calls show it: {', '.join(batches)} (--batch-size corrects it)."
            )
        return " ".join(said) or None
    if device_type != "cpu":
        return None
    return ON_CPU if comparison.of_traces else STAND_IN


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
    if comparison.of_traces:
        return several
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


def _which(comparison: Comparison, case: Sequence[CellValues]) -> tuple[Answer, CellValues | None]:
    question = "Which strategy?"
    if comparison.of_traces:
        return Answer(question, ONE_JOB, "not_measured"), case[0] if case else None
    if not case:
        return Answer(question, NOT_COMPARED, "not_measured"), None
    names = {str(row["cell"]): row for row in case}
    gap = next((one for one in comparison.gaps if one.dp in names and one.ddp in names), None)
    chosen = _faster_than_ddp(comparison, names, _faster(names, gap)) or min(
        case, key=lambda row: _measured(row, "step_us")
    )
    speedup = _speedup(comparison, str(chosen["cell"]))
    where = f"on {devices_text(int(_measured(chosen, 'devices')), int(number(chosen, 'nodes') or 1))}"
    if chosen.get("steps_per_s") is None:  # told instead of samples where the batch is not known
        where += f" at batch {chosen['batch_size']} per device"
    between = f" {gap_sentence(gap)}" if gap else ""
    if speedup is None or speedup.value is None:
        beside, confidence = _beside_itself(comparison, chosen)
        return Answer(question, f"{_name(chosen)} {where} {beside}{between}", confidence), chosen
    times = f"{speedup.value:.2f}x the throughput of one device by median steps{range_said(speedup)}"
    shown = verdict(speedup)
    if shown == "below":
        said = f"Do not parallelise at this size: {_name(chosen)} {where} gives {times}."
    elif shown == "above":
        said = f"Use {_recommended(gap, chosen)}: {where} it gives {times}."
    else:
        said = f"Not decided: {_name(chosen)} {where} gives {times}."
    return Answer(question, said + between, _confidence(speedup), _GAIN), chosen


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
    return f"DDP or {gap.dp_label}, whichever is simpler" if undecided and gap else _name(chosen)


def _speedup(comparison: Comparison, cell: str) -> Estimate | None:
    """Samples per second over one device's at the same batch per device."""
    points = [(series, point) for series in comparison.scaling for point in series.points if point.cell == cell]
    points.sort(key=lambda one: one[0].scaling != "weak")
    return points[0][1].speedup if points else None


def _beside_itself(comparison: Comparison, chosen: CellValues) -> tuple[str, Confidence]:
    """Where no single device was measured: over one device under the same strategy, as a script under torchrun has it."""
    over_itself = comparison.over_itself.get(str(chosen["cell"]))
    if over_itself is None or over_itself.value is None:
        return "was not measured beside one device, so its gain is not known.", "not_measured"
    name = _name(chosen)
    said = f"gives {over_itself.value:.2f}x the throughput of one device under {name} by median steps{range_said(over_itself)}"
    return f"{said}; a device without {name} was not measured, so its gain over that is not known.", _confidence(
        over_itself
    )


def _cost(comparison: Comparison, chosen: CellValues | None, straggler: str | None) -> Answer:
    question = "What does communication cost?"
    if chosen is None:
        nothing = NOT_SEVERAL if comparison.of_traces else "Nothing was measured on several devices."
        return Answer(question, nothing, "not_measured")
    total, exposed, step = (number(chosen, name) for name in ("communication_us", "exposed_us", "traced_step_us"))
    if total is None or exposed is None or not step:
        said = f"It was not measured: the trace of {chosen['cell']} does not show it."
        return Answer(question, said, "not_measured")
    if (slowed := slowed_by_tracing(chosen)) is not None:
        return Answer(question, sentence(slowed_text(chosen, slowed)), "not_measured")
    what = "dp-host's host copies take" if chosen["strategy"] == "dp-host" else f"{_name(chosen)}'s communication takes"
    if chosen["strategy"] == "other":
        what = "Communication takes"
    share = exposed / step
    said = (
        f"{what} {show_time(total)} of a {show_time(step)} step; {show_time(exposed)} of it ({share:.0%} of the step) is "
        "exposed, not hidden behind compute"
    )
    bounds = interval_of(chosen, "exposed_us")
    confidence: Confidence = "traced_means" if bounds is None else "shown" if bounds.low > 0 else "not_shown"
    if bounds is not None:
        low = f"{show_time(bounds.low)} to" if bounds.low > 0 else "up to"
        said += f" ({CONFIDENCE:.0%} interval over repeats {low} {show_time(bounds.high)})"
    return Answer(question, said + _waiting(chosen, exposed, straggler), confidence)


def _waiting(chosen: CellValues, exposed: float, straggler: str | None) -> str:
    """How much of the exposed part is waiting for late ranks, and for whom."""
    parts = split_exposed(chosen)
    if parts is None or not exposed:
        return "."
    waiting = parts.waiting
    broadcasts = f", {show_time(parts.broadcasts)} broadcasts of buffers" if parts.broadcasts else ""
    fault = f" {sentence(straggler)[:-1]} is the late one." if straggler and waiting + parts.broadcasts > 0 else ""
    return f": {show_time(waiting)} waiting for late ranks, {show_time(parts.transfer)} transfer{broadcasts}.{fault}"


def _action(
    comparison: Comparison, chosen: CellValues | None, straggler: str | None, repeats: int, on_device: bool
) -> Answer:
    question = "What to do?"
    if chosen is None and comparison.of_traces:
        return Answer(question, "Trace a job on several devices, every rank of it.", "not_measured")
    if chosen is None:
        if jobs := comparison.unmeasured_jobs:
            more = f"Fix what ended the job on {' and '.join(jobs)}, as it printed, and attach again."
        elif comparison.of_script:  # which may have trained alone on each of them
            more = "Measure two or more devices that train together, with DDP or FSDP: dpscope attach --devices 1,2."
        else:
            more = "Measure two or more devices: dpscope run --devices 1,2."
        return Answer(question, more, "not_measured")
    speedup = _speedup(comparison, str(chosen["cell"]))
    shown = None if speedup is None else verdict(speedup)
    not_dpscopes = comparison.of_script or comparison.of_traces
    action = best_action(_rows(comparison), chosen, shown == "below", straggler, on_device, not_dpscopes)
    if speedup is None or shown in ("above", "below"):
        return Answer(question, action.text, action.confidence)
    wanted = max(_DECIDING_REPEATS, 2 * repeats)
    more = f"Measure more repeats before deciding (--repeats {wanted})."
    return Answer(question, f"{more} {action.text}", _confidence(speedup), _GAIN)


def _confidence(estimate: Estimate) -> Confidence:
    shown = verdict(estimate)
    return "no_interval" if shown == "too_few_samples" else "not_shown" if shown == "no_difference_shown" else "shown"


def _name(row: CellValues) -> str:
    names: Mapping[str, str] = {str(key): value for key, value in STRATEGY_NAMES.items()}
    return names.get(str(row["strategy"]), str(row["strategy"]))


def _measured(row: CellValues, column: str) -> float:
    value = number(row, column)
    assert value is not None, column
    return value
