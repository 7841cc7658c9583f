"""Findings about a script by what one of its processes observed, one function each."""

from dpscope.profiling.attached.settings import advice_for
from dpscope.profiling.attached.stages import Observed
from dpscope.profiling.records.attach_codes import AttachCode
from dpscope.profiling.records.finding import Finding


def script_findings(observed: Observed, cell: str) -> list[Finding]:
    """`cell` is named where several cells may have the finding."""
    findings = (
        _script_profiles(observed),
        _ended_early(observed, cell),
        _traced_other_work(observed),
    )
    return [finding for finding in findings if finding is not None]


def _script_profiles(observed: Observed) -> Finding | None:
    calls = observed.timed.calls
    profiled = sum(step.profiled for step in calls)
    if observed.profiler_watch.seen and not observed.is_traced:
        return AttachCode.SCRIPT_PROFILES.finding("the script uses torch.profiler: no trace")
    if 2 * profiled > len(calls):
        return AttachCode.SCRIPT_PROFILES.finding(
            f"the script's torch.profiler was on in {profiled} of {len(calls)} timed steps"
        )
    return None


def _ended_early(observed: Observed, cell: str) -> Finding | None:
    how = observed.ended_early
    if how is None:
        return None
    advice = advice_for(how, observed.steps, observed.settings)
    return AttachCode.SCRIPT_ENDED_EARLY.finding(
        f"{how}: {observed.early_text()}", advice, about=cell
    )


def _traced_other_work(observed: Observed) -> Finding | None:
    if observed.traced is None or not observed.traced.interrupted_steps:
        return None
    return AttachCode.TRACED_BESIDE_OTHER_WORK.finding(
        f"in {observed.traced.interrupted_steps} traced steps the model was called in evaluation mode"
    )


def counters_missing(observed: Observed) -> str | None:
    """Why DDP's counters were not read; None if they were, or there is no DDP model."""
    models = len(observed.detected.ddp)
    if not models or (observed.counted is not None and observed.counted.counters):
        return None
    if models > 1:
        return f"they describe one DDP model, and the script has {models}"
    if observed.ended_early is not None:
        return "the script ended before that"
    return "the script uses a profiler" if observed.profiler_watch.seen else None
