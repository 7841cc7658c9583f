"""Two runs side by side: what got faster or slower beyond noise, per cell and per component."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.stats import samples as stats
from dpscope.analysis.stats.detection import detectable_change, with_repeats
from dpscope.analysis.text.text_table import Field, TextTable, estimate_fields, table_of
from dpscope.analysis.text.units import Unit, show_share
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.machine.conditions import SETTINGS, difference_findings, setting_differences
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.store.errors import DpscopeError, NotComparableError

_VERDICTS: dict[stats.Verdict, str] = {  # of a ratio of times, as they are shown
    "below": "faster",
    "above": "slower",
    "no_difference_shown": "none shown",
    "too_few_samples": "no interval",
}

STEP = "step"
_MORE_REPEATS = 5  # repeats to measure if a comparison has too few, or twice as many as it has
TRACED_STEP = "traced step"  # of jobs known by their traces alone, whose steps nothing else timed
JUDGED = (STEP, TRACED_STEP)
COMPONENTS = {"compute": "compute_us", "exposed comm.": "exposed_us", "idle": "idle_us"}


@dataclass(frozen=True)
class Change:
    """One quantity of one cell in both runs, in microseconds, `ratio` after / before with its 95%
    interval.

    Of the untraced step the median, of what traces show the mean, as `analyze` gives them.
    """

    cell: str
    quantity: str
    before_us: float | None
    after_us: float | None
    ratio: stats.Estimate
    # of both runs' repeats; None where they are unknown
    noises: tuple[stats.Noise, stats.Noise] | None = None
    # the slowdown that was to be judged and would not show here: 0.05 is 5%
    unseen_share: float | None = None

    @property
    def chance_slower(self) -> float | None:
        """How likely it is that it got slower, however little: 0 to 1, None without an interval."""
        return stats.chance_above(self.ratio)

    @property
    def detectable(self) -> float | None:
        """The smallest slowdown that these runs would show in 80% of cases: 0.05 is 5%; None
        without an interval.
        """
        return (
            detectable_change(*self.noises) if self.noises and self.ratio.low is not None else None
        )

    @property
    def verdict(self) -> stats.Verdict:
        """Below is faster, above slower: only if the interval of the ratio leaves 1 out."""
        return (
            "too_few_samples"
            if self.ratio.count < stats.FEWEST_SAMPLES
            else stats.verdict(self.ratio)
        )

    @property
    def not_judged(self) -> str:
        """Why a step could not be judged; empty if it was."""
        if self.quantity not in JUDGED:
            return ""
        if self.verdict == "too_few_samples":
            return "no interval: too few steps or repeats"
        if self.unseen_share is not None:
            return f"a slowdown of {show_share(self.unseen_share)} would not show, only one of {show_share(self.detectable)}"
        return ""


def compare_runs(before: RunData, after: RunData) -> list[Change]:
    """Changes of every cell measured in both runs: the untraced step, then the components of the
    traced windows.

    The intervals know the spread between repeats from all of these cells in both runs, each
    quantity from its own. Raises NotComparableError when the runs have no measured cell in common.
    """
    other = {data.name: data for data in after.measured}
    pairs = [(data, other[data.name]) for data in before.measured if data.name in other]
    if not pairs:
        raise NotComparableError(
            f"{before.path} and {after.path} have no measured cell in common: compare runs of the same "
            "strategies, devices and batches"
        )
    quantities = (STEP, TRACED_STEP, *COMPONENTS)
    sampled = [
        ((first, second), quantity, sides)
        for first, second in pairs
        for quantity in quantities
        if all(sides := (_samples(first, quantity), _samples(second, quantity)))
    ]
    spreads = {
        quantity: stats.pooled_spread(
            (side for _, one, sides in sampled if one == quantity for side in sides),
            _centre(quantity),
        )
        for quantity in quantities
    }
    changes = []
    for pair, quantity, (earlier, later) in sampled:
        spread, centre = spreads[quantity], _centre(quantity)
        first, second = (
            stats.centre_noise(earlier, spread, centre),
            stats.centre_noise(later, spread, centre),
        )
        noises, ratio = (
            (first, second) if first and second else None,
            stats.ratio_estimate(later, earlier, spread, centre),
        )
        before_us, after_us = (_value_us(one, quantity) for one in pair)
        # a mean over windows weights ranks that lack some of them less
        if before_us and after_us and ratio.value:
            ratio = ratio.times(after_us / before_us / ratio.value)
        changes.append(Change(pair[0].name, quantity, before_us, after_us, ratio, noises))
    return changes


def _centre(quantity: str) -> stats.Centre:
    return np.median if quantity == STEP else np.mean


def _value_us(data: Job, quantity: str) -> float | None:
    """As `analyze` shows it: the median of the untraced steps, else the ledger's mean over
    windows.
    """
    if quantity == STEP:
        return stats.pooled_median(data.step_samples())
    value: float | None = getattr(
        data.traced_ledger, COMPONENTS.get(quantity, "traced_step_us"), None
    )
    return value


def _samples(data: Job, quantity: str) -> list[stats.Samples]:
    """One array per repeat: untraced steps, or a part's mean over ranks for every whole traced
    step.
    """
    if quantity == STEP:
        return data.step_samples()
    windows, known = data.critical_windows, data.devices == 1 or data.communication_known
    if not len(windows) or (quantity == TRACED_STEP and data.ranks):
        return []
    if not known and quantity not in (TRACED_STEP, "compute"):
        return []
    column = COMPONENTS.get(quantity, "step_us")
    windows = windows.take(windows.known(column) & windows.known("step"))
    steps = windows.group("repeat", "step", in_order=True)
    means, repeats = steps.means(windows[column]), windows["repeat"][steps.first]
    arrays = [means[repeats == repeat] for repeat in np.unique(repeats)]
    return arrays if any((array > 0).any() for array in arrays) else []


def mark_unseen(changes: Sequence[Change], fail_over: float) -> list[Change]:
    """The changes, with steps marked in which a slowdown by `fail_over` (0.05 is 5%) can be neither
    detected nor ruled out.

    A slowdown is ruled out if the interval of the ratio ends below it; a step that is significantly
    faster or slower is judged.
    """

    return [
        replace(one, unseen_share=fail_over)
        if one.quantity in JUDGED
        and one.verdict == "no_difference_shown"
        and (one.detectable or 0.0) > fail_over
        and (one.ratio.high or 0.0) > 1 + fail_over
        else one
        for one in changes
    ]


def regressions(changes: Sequence[Change], fail_over: float) -> list[Change]:
    """Cells whose untraced step got slower beyond noise and by more than `fail_over` (0.05 is
    5%).
    """
    slower = [one for one in changes if one.quantity in JUDGED and one.verdict == "above"]
    return [one for one in slower if (one.ratio.value or 0.0) > 1 + fail_over]


def detection_text(changes: Iterable[Change]) -> str | None:
    """What the steps' comparison could have seen, and what more repeats would; None where no step
    has an interval.
    """
    seen = [
        (one.detectable, one)
        for one in changes
        if one.quantity in JUDGED and one.detectable is not None
    ]
    if not seen:
        return None
    largest, widest = max(seen, key=lambda one: one[0])
    assert widest.noises is not None
    more = _more_repeats(widest.noises)
    with_more = detectable_change(*(with_repeats(noise, more) for noise in widest.noises))
    measured = _measured(more, widest.quantity)
    return f"A change under {show_share(largest)} would not show in {widest.cell}; {measured} would show {show_share(with_more)}."


def _more_repeats(noises: Sequence[stats.Noise]) -> int:
    return max(_MORE_REPEATS, 2 * max(noise.repeats for noise in noises))


def _measured(repeats: int, quantity: str) -> str:
    return (
        f"{repeats} jobs per side"
        if quantity == TRACED_STEP
        else f"--repeats {repeats} in both runs"
    )


def undecided_findings(changes: Sequence[Change]) -> Iterator[Finding]:
    """Warnings where a step has no interval, and where the slowdown to be judged would not show
    (`mark_unseen`).
    """
    steps = [change for change in changes if change.quantity in JUDGED]
    without = [change.cell for change in steps if change.verdict == "too_few_samples"]
    next_step = _how_to_decide(steps)
    if len(without) == len(steps):
        nothing = "no step has an interval, so none can be called slower or faster"
        yield RunCode.NOTHING_COMPARED.finding(nothing, next_step)
    elif without:
        yield RunCode.PARTLY_COMPARED.finding(
            f"{', '.join(without)} cannot be judged: no interval", next_step
        )
    if hidden := [change for change in changes if change.unseen_share is not None]:
        cells = ", ".join(
            f"{change.cell} (only {show_share(change.detectable)} would)" for change in hidden
        )
        slowdown = show_share(hidden[0].unseen_share)
        yield RunCode.CHANGE_NOT_VISIBLE.finding(
            f"not judged, because a slowdown of {slowdown} would not show: {cells}"
        )


def _how_to_decide(steps: Sequence[Change]) -> str:
    """What gives an interval to the steps that have none."""
    for one in steps:
        if one.verdict == "too_few_samples" and one.noises:  # beyond stats.WIDEST
            more = _measured(_more_repeats(one.noises), one.quantity)
            return f"the repeats lie too far apart for an interval: measure {more} or more"
    if any(change.quantity == TRACED_STEP for change in steps):
        return (
            "one traced job per side does not show how much identical jobs differ: trace the same job three times per side, each "
            "into a separate folder, and name the two parent folders; or measure with dpscope run --repeats 3"
        )
    return f"time two repeats or more in both runs (--repeats), of {stats.FEWEST_SAMPLES} steps in all or more (--steps)"


def lost_findings(before: RunData, after: RunData) -> Iterator[Finding]:
    """A warning about cells that were measured before and are not now: they cannot be judged."""
    measured = {data.name for data in after.measured}
    if lost := [data.name for data in before.measured if data.name not in measured]:
        yield RunCode.CELLS_LOST.finding(
            f"{', '.join(lost)} cannot be judged: not measured in {after.path}"
        )


def parse_share(text: str) -> float:
    """``5%`` or ``0.05`` as 0.05; more than 100% takes the sign, since ``5`` is meant as 5%; raises
    DpscopeError.
    """
    percent = text.endswith("%")
    try:
        value = float(text.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise DpscopeError(f"--fail-over {text}: not a share; write it as 5% or 0.05")
    if value > 1 and not percent:
        raise DpscopeError(
            f"--fail-over {text}: without a unit that is {value:.0%}; write {text}% or {value:.0%}"
        )
    return value


def setting_findings(before: RunData, after: RunData) -> list[Finding]:
    """Settings and machines that differ: a change may come from them."""
    first, second = before.recorded, after.recorded
    if first is None or second is None:
        return []
    return difference_findings(
        first, second, setting_differences(first.config, second.config, SETTINGS)
    )


_RATIO = Unit("", 1.0, 3)
_FIELDS = {
    field.heading: field
    for field in (
        Field("cell", "cell"),
        Field("quantity", "quantity"),
        Field("before", "before_us", "time"),
        Field("after", "after_us", "time"),
        *estimate_fields("ratio", _RATIO),
        Field("n", "ratio.count"),
        Field("likely slower", lambda one: show_share(one.chance_slower)),
        Field("would show", lambda one: show_share(one.detectable)),
        Field("change", lambda one: "not judged" if one.not_judged else _VERDICTS[one.verdict]),
    )
}


def change_table(changes: Sequence[Change]) -> TextTable:
    """The changes, a row each."""
    notes = (
        "step: median of the untraced steps; traced step and its components: means over all traced windows",
        "low, high: from the spread between repeats; with two repeats they are wide, with five much narrower",
        "likely slower: the probability that it got slower at all; would show: the smallest slowdown that these repeats would "
        "show in 4 of 5 cases",
    )
    times = [one.before_us for one in changes]
    return table_of(
        "What changed (after / before, 95% intervals)",
        _FIELDS.values(),
        changes,
        notes,
        times=times,
    )


def verdict_table(changes: Sequence[Change]) -> TextTable:
    """A row per cell, within 80 columns: the verdict on its step first, the ratio with its interval
    after.
    """
    judged = [one for one in changes if one.quantity in JUDGED]
    fields = [
        _FIELDS[name] for name in ("cell", "change", "before", "after", "ratio", "low", "high")
    ]
    title = "Verdict on each cell's step (after / before, 95% interval)"
    return table_of(title, fields, judged, times=[one.before_us for one in judged])
