"""Two runs compared: what got faster or slower beyond noise, per cell and per part of its step."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.stats import samples as stats
from dpscope.analysis.stats.detection import detectable_change, with_repeats
from dpscope.analysis.text.units import show_share
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.records.finding import listed
from dpscope.profiling.store.errors import DpscopeError, NotComparableError

Outcome = Literal["slower", "faster", "same", "not judged", "not significant", "no interval"]

DEFAULT_SHARE = 0.05  # --fail-over
_NAMED = 4  # cells of a run, in a message
STEP = "step"
TRACED_STEP = "traced step"  # of jobs known by their traces alone, whose steps nothing else timed
JUDGED = (STEP, TRACED_STEP)
EXPOSED = "exposed comm."
COMPONENTS = {"compute": "compute_us", EXPOSED: "exposed_us", "idle": "idle_us"}
_NOTHING_US = 1e-3  # what sums of whole nanoseconds leave
_QUANTITIES = (STEP, TRACED_STEP, *COMPONENTS)


@dataclass(frozen=True)
class Change:
    """One quantity of one cell in both runs, in microseconds, `ratio` after / before with its 95%
    interval.

    Of the untraced step the median, of what traces show the mean, as `analyze` gives them.
    `fail_over` is the slowdown that a step is judged by: 0.05 is 5%.
    """

    cell: str
    quantity: str
    before_us: float | None
    after_us: float | None
    ratio: stats.Estimate
    # of both runs' repeats; None where they are unknown
    noises: tuple[stats.Noise, stats.Noise] | None = None
    fail_over: float = DEFAULT_SHARE

    @property
    def is_step(self) -> bool:
        return self.quantity in JUDGED

    @property
    def chance_slower(self) -> float | None:
        """How likely it is that it got slower, however little: 0 to 1, None without an interval."""
        return stats.chance_above(self.ratio)

    @property
    def detectable(self) -> float | None:
        """The smallest slowdown that these runs detect in 80% of cases: 0.05 is 5%; None
        without an interval.
        """
        if self.noises is None or self.ratio.low is None:
            return None
        return detectable_change(*self.noises)

    def with_more_repeats(self) -> tuple[int, float]:
        """Twice as many repeats and no fewer than five, and what they would detect, in whole
        percent upwards: a spread of few repeats shows no more.
        """
        assert self.noises is not None
        first, second = self.noises
        repeats = max(5, 2 * first.repeats, 2 * second.repeats)
        more = with_repeats(first, repeats), with_repeats(second, repeats)
        detectable_percent = 100 * detectable_change(*more)
        return repeats, math.ceil(detectable_percent) / 100

    @property
    def verdict(self) -> stats.Verdict:
        """Below is faster, above slower: only if the interval of the ratio leaves 1 out."""
        if self.ratio.count < stats.FEWEST_SAMPLES:
            return "too_few_samples"
        return stats.verdict(self.ratio)

    @property
    def hides_slowdown(self) -> bool:
        """Whether a slowdown of the step by `fail_over` can be neither detected nor ruled out by
        the interval.
        """
        if not self.is_step or self.verdict != "no_difference_shown":
            return False
        detectable = self.detectable or 0.0
        possible = (self.ratio.high or 1.0) - 1
        return min(detectable, possible) > self.fail_over

    @property
    def not_judged(self) -> str:
        """Why a step could not be judged; empty if it was."""
        if self.is_step and self.verdict == "too_few_samples":
            return "no interval: too few steps or repeats"
        if self.hides_slowdown:
            return (
                f"a slowdown of {show_share(self.fail_over)} is not detectable, "
                f"only one of {show_share(self.detectable)}"
            )
        return ""

    @property
    def outcome(self) -> Outcome:
        """The verdict in words."""
        if self.not_judged:
            return "not judged"
        words: dict[stats.Verdict, Outcome] = {
            "above": "slower",
            "below": "faster",
            "no_difference_shown": "same" if self.is_step else "not significant",
            "too_few_samples": "no interval",
        }
        return words[self.verdict]

    @property
    def is_regression(self) -> bool:
        """Whether a step is slower beyond noise and by more than `fail_over`."""
        is_slower = self.is_step and self.outcome == "slower"
        return is_slower and (self.ratio.value or 1.0) > 1 + self.fail_over

    def __str__(self) -> str:
        """Such as ``ddp-d2-b32 +12% (+3.1% to +22%)``."""
        ratio = self.ratio
        interval = "no interval"
        if ratio.low is not None:
            interval = f"{_percent(ratio.low)} to {_percent(ratio.high)}"
        return f"{self.cell} {_percent(ratio.value)} ({interval})"


def _percent(ratio: float | None) -> str:
    """A ratio as a signed change, such as ``+12%`` or ``-3.1%``."""
    change = (ratio or 1.0) - 1
    sign = "-" if change < 0 else "+"
    return sign + show_share(abs(change))


def compare_runs(before: RunData, after: RunData, fail_over: float = DEFAULT_SHARE) -> list[Change]:
    """Changes of every cell measured in both runs: the untraced step, then the components of the
    traced windows.

    The intervals know the spread between repeats from all of these cells in both runs, each
    quantity from its own; of exposed communication, as in `run_spreads`, from the cell alone.
    Raises DpscopeError when the runs have no measured cell in common.
    """
    later = {data.name: data for data in after.measured}
    earlier = [data for data in before.measured if data.name in later]
    if not earlier:
        sides = []
        for run in (before, after):
            names = [data.name for data in run.measured]
            cells = listed(names, _NAMED) or "none"
            sides.append(f"{run.path} has {cells}")
        both = ", ".join(sides)
        raise DpscopeError(
            f"no measured cell in common: {both}; compare runs of the same strategies, devices and batches"
        )
    pairs = [(data, later[data.name]) for data in earlier]
    found: list[Change] = []
    for quantity in _QUANTITIES:
        found += _changes(pairs, quantity, fail_over)
    if not any(change.is_step for change in found):
        raise NotComparableError(f"{before.path} and {after.path} have no step to compare")
    names = [data.name for data in earlier]
    return sorted(found, key=lambda change: names.index(change.cell))


def _changes(pairs: Iterable[tuple[Job, Job]], quantity: str, fail_over: float) -> Iterator[Change]:
    """One quantity of the cells of which both sides have samples of it."""
    centre = np.median if quantity == STEP else np.mean
    sampled = []
    sides = []
    for before, after in pairs:
        earlier = _samples(before, quantity)
        later = _samples(after, quantity)
        if earlier and later:
            sampled.append((before, after, earlier, later))
            sides += [earlier, later]
    spread = stats.ALONE if quantity == EXPOSED else stats.pooled_spread(sides, centre)
    for before, after, earlier, later in sampled:
        first = stats.centre_noise(earlier, spread, centre)
        second = stats.centre_noise(later, spread, centre)
        ratio = stats.ratio_estimate(later, earlier, spread, centre)
        before_us = _value_us(before, quantity)
        after_us = _value_us(after, quantity)
        # a mean over windows weights ranks that lack some of them less
        if before_us and after_us and ratio.value:
            ratio = ratio.times(after_us / before_us / ratio.value)
        noises = (first, second) if first and second else None
        yield Change(before.name, quantity, before_us, after_us, ratio, noises, fail_over)


def parts_of_one(before: Job, after: Job) -> list[str]:
    """The parts of the traced step that are known of one of the two jobs alone."""
    return [
        part for part in COMPONENTS if bool(_samples(before, part)) != bool(_samples(after, part))
    ]


def _value_us(data: Job, quantity: str) -> float | None:
    """As `analyze` shows it: the median of the untraced steps, else the ledger's mean over
    windows.
    """
    if quantity == STEP:
        return stats.pooled_median(data.step_samples())
    name = COMPONENTS.get(quantity, "traced_step_us")
    value: float | None = getattr(data.traced_ledger, name, None)
    return value


def _samples(data: Job, quantity: str) -> list[stats.Samples]:
    """One array per repeat: untraced steps, or a part's mean over ranks for every whole traced
    step.
    """
    if quantity == STEP:
        return data.step_samples()
    if quantity == TRACED_STEP and data.ranks:
        return []
    known = data.devices == 1 or data.communication_known
    if not known and quantity not in (TRACED_STEP, "compute"):
        return []
    windows = data.critical_windows
    column = COMPONENTS.get(quantity, "step_us")
    if not len(windows):
        return []
    windows = windows.take(windows.known(column))
    steps = windows.group("repeat", "step", in_order=True)
    means = steps.means(windows[column])
    repeats = windows["repeat"][steps.first]
    # a part that no step has, such as the communication of one device, is no quantity to compare
    if not (means > _NOTHING_US).any():
        return []
    return [means[repeats == repeat] for repeat in np.unique(repeats)]
