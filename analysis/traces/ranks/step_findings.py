"""Findings about the steps of a job: idle devices, steps that are far longer than the others or
hold many more collectives.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dpscope.analysis.text.units import show_share, show_time
from dpscope.analysis.traces.ranks.ledger import STEP_PARTS
from dpscope.analysis.traces.ranks.whole_steps import (
    FEWEST_STEPS,
    TIMES_AS_MANY,
    far_longer,
    whole_steps,
)
from dpscope.analysis.traces.reading.table import Table
from dpscope.profiling.records.finding import Finding, counted, listed
from dpscope.profiling.records.trace_codes import TraceCode

IDLE_SHARE = 0.3  # of a device's mean step
# of idle time, below which neither the host nor the loader is what the device waits for
MOST_UNLAUNCHED = 0.5
COPY_SHARE = 0.1  # of idle time, from which host copies are named


def idle_findings(
    steps: Table,
    name: str = "",
    data_wait_us: float | None = None,
    communication_known: bool = True,
) -> Iterator[Finding]:
    """One finding about the devices that are idle for IDLE_SHARE or more, by means over whole
    windows, else over all there are.

    `steps` are rows of `step_table`, of which those of a CPU count for nothing. `name` begins the
    message. `data_wait_us` is the mean wait for the loader: what remains of the time in which
    nothing was launched is the host's. There is no finding where communication is not known: it may
    be what a device that looks idle waits for.
    """
    means = _device_means(steps) if communication_known else Table({})
    if not len(means):
        return
    shares = means["idle_us"] / means["step_us"]
    idle_count = int((shares >= IDLE_SHARE).sum())
    if not idle_count:
        return
    most = means.records()[int(np.nanargmax(shares))]
    which = _idle_shares(idle_count, len(means), most)
    waits_for = "the host or the loader"
    if len(means) > len(means.group("rank")):  # a process computes on several devices
        waits_for += ", or for another device of its process"
    yield _idle_finding(which, most, data_wait_us, name, waits_for)


def _device_means(steps: Table) -> Table:
    """A row per device, means over its whole windows."""
    whole = whole_steps(steps.with_known("device").with_known("step_us"))
    places = whole.group("rank", "device", in_order=True)
    means = whole.take(places.first).select(("rank", "device"))
    return means.assign(
        step_us=places.means(whole["step_us"]),
        idle_us=places.means(whole["idle_us"]),
        host_copy_us=places.means(whole["host_copy_us"]),
        unlaunched_us=places.means(whole["unlaunched_us"]),
    )


def _idle_finding(
    which: str, most: Mapping[str, Any], data_wait_us: float | None, about: str, waits_for: str
) -> Finding:
    """By what the device that idles most waits for, `waits_for` where no more is known: `most` are
    its means.
    """
    idle_us = most["idle_us"]
    step_us = most["step_us"]
    unlaunched_us = most["unlaunched_us"]  # None: unknown
    copies_us = most["host_copy_us"] or 0.0
    message = f"{which} ({show_time(idle_us)} of {show_time(step_us)})"
    if copies_us > COPY_SHARE * idle_us:
        message += f"; {show_time(copies_us)} of it copying from or to the host"
    if unlaunched_us is None:
        return TraceCode.DEVICE_IDLE.finding(f"{message}; it waits for {waits_for}", about=about)
    if unlaunched_us < MOST_UNLAUNCHED * idle_us:
        queued = show_time(idle_us - unlaunched_us)
        return TraceCode.DEVICE_IDLE.finding(
            f"{message}; for {queued} work was queued and did not run yet",
            "find in the trace what the kernel after each gap waits for: another stream, a copy, or another device",
            about=about,
        )
    # without a known wait for the loader, nothing shows whether it is the host's
    host_us = 0.0 if data_wait_us is None else unlaunched_us - data_wait_us
    if host_us >= IDLE_SHARE * step_us:
        text = f"{message}; launch-bound: for {show_time(host_us)} the CPU had queued no work"
        return TraceCode.LAUNCH_BOUND.finding(text, about=about)
    return TraceCode.DEVICE_IDLE.finding(f"{message}; it waits for {waits_for}", about=about)


def _idle_shares(idle: int, devices: int, most: Mapping[str, Any]) -> str:
    """How many devices are idle, and how much `most` is."""
    device, rank = most["device"], most["rank"]
    which = f"device {device}"
    if rank is not None:
        which = f"device {device} of rank {rank}"
    share = show_share(most["idle_us"] / most["step_us"])
    if devices == 1:
        return f"{which} is idle {share} of a step"
    return f"{idle} of {devices} devices idle, most of all {which}: {share} of a step"


_NAMED_STEPS = 3  # in a message


def uneven_steps(steps: Table) -> Iterator[Finding]:
    """One finding for a job in which some steps hold TIMES_AS_MANY collectives; `steps` are rows of
    `step_table`.
    """
    whole = steps.with_known("exposed_us")
    whole = whole.take(~whole.truths("partial_window", missing=True))
    places = whole.group("rank", "device")
    counts = np.nan_to_num(whole.real("collective_count"))
    usual = np.zeros(len(whole))
    for rows in places.rows():
        usual[rows] = np.median(counts[rows])
    # of one or two steps none is the usual one
    enough = places.sizes[places.code] >= FEWEST_STEPS
    many = enough & (usual > 0) & (counts >= TIMES_AS_MANY * usual)
    if not many.any():
        return
    place = int(np.where(many, counts, 0.0).argmax())
    numbers = np.unique(whole["step"][many & whole.known("step")]).tolist()
    exposed_us = whole["exposed_us"]
    mean = show_time(exposed_us.mean())
    median = show_time(np.median(exposed_us))
    which = f"{counted(len(numbers), 'step')} (step {listed(numbers, _NAMED_STEPS)})"
    most = f"{counts[place]:.0f} in step {whole['step'][place]}"
    yield TraceCode.STEPS_UNEVEN.finding(
        f"{TIMES_AS_MANY:g} times as many collectives as usual, or more, in {which}: {most}, "
        f"{usual[place]:g} in the median step; exposed communication is {mean} in the mean over "
        f"steps and {median} in the median"
    )


_LONGER = {  # by the part of the step that is longest beyond its usual length
    "compute": "it computes {time} longer: everything is slower then (clocks, other load), or there is more to compute",
    "exposed_wait": "the others wait {time} longer for rank {rank}, which pauses (a checkpoint, garbage collection, the loader)",
    "exposed_transfer": "its collectives move data for {time} longer on all ranks, as at the first use of a communicator",
    "exposed_other": "{time} more of its communication is exposed, as at the first use of a communicator, or while another rank "
    "pauses",
    "idle": "the devices are idle {time} longer, as during a checkpoint, an evaluation or a wait for the loader",
}


def far_longer_steps(steps: Table, name: str = "") -> Iterator[Finding]:
    """One finding for a job with steps that `whole_steps` leaves out; `name` begins the message."""
    long = steps.take(far_longer(steps))
    if not len(long):
        return
    usual = whole_steps(steps)
    texts = []
    for rows in long.group("repeat", "step").rows():
        of_step = long.take(rows)
        of_repeat = usual.take(usual["repeat"] == of_step["repeat"][0])
        texts.append(_longer_step(of_step, of_repeat))
    left = len(usual.group("repeat", "step"))
    named = listed(texts, _NAMED_STEPS)
    others = f"averages are of the other {counted(left, 'step')}"
    partial = steps.truths("partial_window", missing=True)
    if partial.any():
        others += ", without the partial first one"
    message = f"{named}; {others}"
    yield TraceCode.STEPS_FAR_LONGER.finding(message, about=name)


def _longer_step(step: Table, usual: Table) -> str:
    """What a step takes, and which of its parts are longer than in the usual ones."""
    length_us = step["step_us"].max()
    median_us = np.median(usual["step_us"])
    times = f"{length_us / median_us:.2g} times the median step's {show_time(median_us)}"
    text = f"step {step['step'][0]} takes {show_time(length_us)}, {times}"
    longer_us = _longer_parts(step, usual)
    if not longer_us:
        return text
    part = max(longer_us, key=lambda name: longer_us[name])
    # the rank that the others wait for is the one that waits least
    last = step["rank"][np.nan_to_num(step["exposed_wait_us"]).argmin()]
    reason = _LONGER[part].format(time=show_time(longer_us[part]), rank=last)
    return f"{text}: {reason}"


def _longer_parts(step: Table, usual: Table) -> dict[str, float]:
    """By how much each known part of a step is longer than in the usual ones; microseconds."""
    longer_us: dict[str, float] = {}
    for part in STEP_PARTS:
        now_us = step.mean(f"{part}_us")
        usual_us = usual.mean(f"{part}_us")
        if now_us is not None and usual_us is not None:
            longer_us[part] = now_us - usual_us
    # The means are over all ranks, and one of them waits for nobody: this is what each of the
    # others loses.
    if "exposed_wait" in longer_us:
        ranks = len(step.group("rank"))
        longer_us["exposed_wait"] *= ranks / max(ranks - 1, 1)
    return longer_us


# ratio of two ranks' median steps: ranks of one job wait for each other, so their units differ
FAR_APART = 100.0
_NAMED_RANKS = 8  # in a message


def step_times_apart(steps: Table) -> list[Finding]:
    """An error where median steps of ranks are FAR_APART; `steps` are whole steps."""
    steps = steps.with_known("step_us")
    ranks = steps.group("rank", in_order=True)
    numbers = steps["rank"][ranks.first].tolist()
    medians_us = np.array([np.median(steps["step_us"][rows]) for rows in ranks.rows()])
    if not numbers or medians_us.max() <= FAR_APART * medians_us.min():
        return []
    # as ratios: a rank whose unit is too small is as far as one whose unit is too large
    distances = np.abs(np.log(medians_us / np.median(medians_us)))
    texts = []
    for place in np.argsort(-distances, kind="stable").tolist():
        texts.append(f"rank {numbers[place]} {show_time(medians_us[place])}")
    named = listed(texts, _NAMED_RANKS)
    message = (
        f"steps of ranks of one job are more than {FAR_APART:.0f}x apart: {named}; "
        "no waiting is given"
    )
    return [TraceCode.STEP_TIMES_APART.finding(message)]
