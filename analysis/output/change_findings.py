"""The answer of `dpscope compare` in one line, and the findings about what limits it."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from dpscope.analysis.findings.run_findings import recorded_findings
from dpscope.analysis.runs.compare import TRACED_STEP, Change, Outcome, parts_of_one
from dpscope.analysis.runs.run_data import RunData, measured_repeats, missing_repeats
from dpscope.analysis.runs.traffic_check import MEASURE_AGAIN
from dpscope.analysis.text.units import show_share
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.machine.conditions import (
    SETTINGS,
    ConditionDifference,
    difference_findings,
    setting_differences,
)
from dpscope.profiling.records.finding import Finding, counted, grouped, listed
from dpscope.profiling.records.plan_codes import PlanCode
from dpscope.profiling.records.run import Manifest
from dpscope.profiling.records.run_codes import RunCode

_MOST_NAMED = 3  # cells in the first line
_ORDER: tuple[Outcome, ...] = ("slower", "faster", "not judged", "same")  # of it


def headline(changes: Sequence[Change], reasons: Sequence[Finding] = ()) -> str:
    """The answer in one line: why nothing is judged (`reasons`), then what got slower or faster and
    by how much, then which cells are not judged or the same.
    """
    steps = [change for change in changes if change.is_step]
    steps.sort(key=_size, reverse=True)
    by_outcome = grouped((change.outcome, change) for change in steps)
    first, *others = (outcome for outcome in _ORDER if outcome in by_outcome)
    answer = _named(by_outcome[first], first)
    for outcome in others:
        cells = [change.cell for change in by_outcome[outcome]]
        names = listed(cells, _MOST_NAMED)
        answer += f"; {outcome}: {len(cells)} of {len(steps)} ({names})"
    if not reasons:
        return f"{first.capitalize()}: {answer}."
    why = "; ".join(reason.message for reason in reasons)
    if first == "not judged":
        return f"Not judged: {why}; {answer}."
    return f"Not judged: {why}. {first.capitalize()}: {answer}."


def _named(cells: Sequence[Change], outcome: Outcome) -> str:
    """Cells of one outcome, and how a slowdown that is no regression relates to --fail-over."""
    answer = listed(cells, _MOST_NAMED)
    if outcome != "slower" or any(change.is_regression for change in cells):
        return answer
    limit = cells[0].fail_over
    share = show_share(limit)
    for change in cells:
        largest = change.ratio.high or 1.0
        if largest > 1 + limit:
            return f"{answer}, not shown to exceed --fail-over {share}"
    return f"{answer}, by less than --fail-over {share}"


def _size(change: Change) -> float:
    """How far a ratio is from 1, either way."""
    ratio = change.ratio.value or 1.0
    return abs(ratio - 1)


def undecided_findings(changes: Sequence[Change]) -> Iterator[Finding]:
    """Warnings where a step has no interval, and where the slowdown to be judged is not detectable."""
    steps = [change for change in changes if change.is_step]
    without = [change.cell for change in steps if change.verdict == "too_few_samples"]
    if without:
        names = ", ".join(without)
        advice = _MORE_STEPS
        if steps[0].quantity == TRACED_STEP:
            advice = _MORE_JOBS
        yield RunCode.NOT_COMPARED.finding(
            f"{names} cannot be judged: no interval, as repeats or steps are too few or repeats lie too far apart",
            advice,
        )
    hidden = [change for change in steps if change.hides_slowdown]
    if hidden:
        cells = listed([missed.cell for missed in hidden], _MOST_NAMED)
        slowdown = show_share(hidden[0].fail_over)
        hidden.sort(key=lambda missed: missed.detectable or 0.0)
        quietest = hidden[0]
        noisiest = hidden[-1]
        least = show_share(quietest.detectable)
        most = show_share(noisiest.detectable)
        ends = (least, most)
        shares = " to ".join(dict.fromkeys(ends))
        repeats = _repeats(quietest)
        message = f"{cells} not judged: these {repeats} can detect {shares}, not {slowdown}"
        advice = _more_repeats(noisiest, len(hidden))
        yield RunCode.NOT_COMPARED.finding(message, advice)


_MORE_STEPS = "time 5 repeats or more in both runs (--repeats), of 5 steps in all or more (--steps)"
_MORE_JOBS = (
    "one traced job per side does not show how much identical jobs differ: trace the same job three times per side, each "
    "into a separate folder, and name the two parent folders; or measure with dpscope run --repeats 3"
)


def _more_repeats(noisiest: Change, cells: int) -> str:
    """More repeats than the noisiest of so many cells has, if they detect the slowdown that it is
    judged by.
    """
    repeats, detectable = noisiest.with_more_repeats()
    sides = f"{repeats} {_repeats(noisiest)} per side"
    where = ""
    if cells > 1:
        where = " in the noisiest cell"
    then = f"{100 * detectable:g}%"
    detects = f"detect about {then}{where}"
    raised = "raise --fail-over"
    if noisiest.detectable is not None:
        next_percent = math.ceil(100 * noisiest.detectable)
        raised += f" to {next_percent}%"
    if detectable > noisiest.fail_over:
        advice = f"{sides} would {detects}: {raised}, or make the machine quieter"
    else:
        advice = f"measure {sides}, which would {detects}, or {raised}"
    return advice


def _repeats(change: Change) -> str:
    """What repeats a measured or a traced step."""
    return "jobs" if change.quantity == TRACED_STEP else "repeats"


def lost_findings(before: RunData, after: RunData, reported: Collection[str]) -> Iterator[Finding]:
    """A warning about cells that were measured before and are not now: they cannot be judged.
    `reported` are cells whose missing repeats have a finding.
    """
    there = {data.name for data in after.measured} | set(reported)
    lost = [data.name for data in before.measured if data.name not in there]
    if not lost:
        return
    names = ", ".join(lost)
    yield RunCode.NOT_COMPARED.finding(
        f"{names} not measured in {after.path}",
        "measure the same cells in both runs, or find out why they failed in the second",
    )


def lost_repeats(run: RunData, other: RunData) -> dict[str, list[Finding]]:
    """Of the cells that the other run measured those that have fewer repeats or timed steps than
    the run's manifest plans, and what they lack; traces alone have no plan.
    """
    if run.recorded is None:
        return {}
    cells = {data.name for data in other.measured}
    missing = missing_repeats(run)
    lost = {}
    for name in measured_repeats(run):
        if name not in cells:
            continue
        job = run.cells[name]
        lacking = [
            finding for finding in job.findings if finding.code == RunCode.REPEATS_MISSING.code
        ]
        if not lacking:
            lacking = list(_fewer_than_planned(run.recorded, job, missing.get(name)))
        if lacking:
            lost[name] = lacking
    return lost


def _fewer_than_planned(manifest: Manifest, job: Job, repeats: str | None) -> Iterator[Finding]:
    measurement = manifest.config.measurement
    if repeats is not None:
        yield RunCode.REPEATS_MISSING.finding(f"{repeats} measured", about=job.name)
    timed = job.tables.samples.having("measuring_pass", "timed")
    if measurement.steps is None or not len(timed) or job.rank.attached is not None:
        return
    counts = timed.group("repeat", "rank").sizes
    fewest = int(counts.min())
    if fewest < measurement.steps:
        planned_steps = counted(measurement.steps, "timed step")
        message = f"a repeat has {fewest} of {planned_steps}"
        yield RunCode.REPEATS_MISSING.finding(message, MEASURE_AGAIN, about=job.name)


def error_findings(run: RunData) -> list[Finding]:
    """The errors for which `analyze` ends with status 1."""
    return [finding for finding in recorded_findings(run) if finding.severity == "error"]


def by_kind(run: RunData, findings: Iterable[Finding]) -> Iterator[Finding]:
    """A run's findings, those of one code and next step as one that names the run, which is one of
    two, in both.
    """
    kinds = grouped(((finding.code, finding.next_step), finding) for finding in findings)
    for alike in kinds.values():
        observations = list(_observations(alike))
        named = listed(observations, _MOST_NAMED)
        message = f"{run.path}: {named}"
        first = alike[0]
        advice = f"for {run.path}, {first.next_step}"
        yield msgspec.structs.replace(first, message=message, next_step=advice, about="")


def _observations(findings: Sequence[Finding]) -> Iterator[str]:
    """Each observation once, after the cells that it is about."""
    by_observation = grouped((finding.observation, finding.about) for finding in findings)
    for observation, abouts in by_observation.items():
        cells = [about for about in dict.fromkeys(abouts) if about]
        if not cells:
            yield observation
            continue
        names = listed(cells, _MOST_NAMED)
        yield f"{names}: {observation}"


def or_forced(differ: Sequence[Finding]) -> list[Finding]:
    """Findings about other settings, with the option that judges in spite of them."""
    forced = []
    for finding in differ:
        advice = f"{finding.next_step}; or judge with --force"
        forced.append(msgspec.structs.replace(finding, next_step=advice))
    return forced


def unlike_findings(
    before: RunData, after: RunData, changes: Sequence[Change]
) -> Iterator[Finding]:
    """Other numbers of repeats, and parts of traced steps that one run lacks."""
    steps = [change for change in changes if change.is_step]
    yield from _other_repeats(steps)
    lacking: dict[str, list[str]] = {}
    for change in steps:
        earlier = before.cells[change.cell]
        later = after.cells[change.cell]
        parts = ", ".join(parts_of_one(earlier, later))
        lacking.setdefault(parts, []).append(change.cell)
    for parts, cells in lacking.items():
        if not parts:
            continue
        yield RunCode.NOT_COMPARED.finding(
            f"{parts} of the traced step known in one run alone, so not compared",
            "trace the same cells in both runs",
            about=", ".join(cells),
        )


def _other_repeats(steps: Sequence[Change]) -> Iterator[Finding]:
    """Other numbers of repeats on the two sides."""
    counts: dict[tuple[int, int], list[str]] = {}
    for change in steps:
        if change.noises is None:
            continue
        before, after = change.noises
        counts.setdefault((before.repeats, after.repeats), []).append(change.cell)
    for (earlier, later), cells in counts.items():
        if earlier == later:
            continue
        kind = "job" if steps[0].quantity == TRACED_STEP else "repeat"
        yield PlanCode.SETTINGS_DIFFER.finding(
            f"{counted(earlier, kind)} before, {later} after",
            about=", ".join(cells),
            severity="info",
        )


def setting_findings(before: RunData, after: RunData) -> list[Finding]:
    """Settings and machines that differ: a change may come from them."""
    first, second = before.recorded, after.recorded
    if first is None or second is None:
        return []
    models = model_differences(before, after)
    names = [name for name in SETTINGS if models or name != "model"]
    settings = setting_differences(first.config, second.config, names)
    return difference_findings(first, second, [*models, *settings])


def model_differences(before: RunData, after: RunData) -> list[ConditionDifference]:
    """Differences in what the common cells trained: a model may have two import names, and a name
    two models.
    """
    later = {data.name: data for data in after.measured}
    differences = []
    for earlier in before.measured:
        changed = later.get(earlier.name)
        if changed is None:
            continue
        then = earlier.rank.model
        now = changed.rank.model
        differences += [
            ConditionDifference("parameter count", then.parameter_count, now.parameter_count),
            ConditionDifference("parameter bytes", then.parameter_bytes, now.parameter_bytes),
            ConditionDifference("gradient bytes", then.gradient_bytes, now.gradient_bytes),
        ]
    unequal = [difference for difference in differences if difference.then != difference.now]
    return list(dict.fromkeys(unequal))
