"""What to do next, and what it would win at most: the largest part of a step that something could be done about."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dpscope.analysis.comparison.columns import VALUE_RANGE
from dpscope.analysis.comparison.row import CellValues, number
from dpscope.analysis.findings.script_advice import in_a_script
from dpscope.analysis.findings.slow_tracing import slowed_by_tracing
from dpscope.analysis.text.units import show_time

WORTH_DOING = 0.02  # of a step: below it nothing stands out from what steps differ by anyway
_TOLD_SHARE = 0.05  # of the exposed communication: a smaller part of it is counted as transfer
BATCH_GAIN = 1.1  # throughput of a larger batch over this one's before it is advised

Confidence = Literal["shown", "not_shown", "no_interval", "traced_means", "timed_steps", "not_measured"]
"""What an answer rests on: an interval that excludes chance, or holds it, or none; traced or timed steps without one; nothing."""


@dataclass(frozen=True)
class Action:
    """`text` says the action and its bound, `confidence` what the bound rests on."""

    text: str
    confidence: Confidence


@dataclass(frozen=True)
class ExposedSplit:
    """What the exposed communication of a cell's traced step is, microseconds: its parts add up to it.

    `broadcasts` is what the matched collectives cannot explain: under DDP broadcasts of buffers, which have no transfer of
    their own, as only their root never waits.
    """

    waiting: float
    transfer: float
    broadcasts: float


def split_exposed(row: CellValues) -> ExposedSplit | None:
    """None where waiting is not known."""
    wait, transfer, other = (number(row, f"exposed_{part}_us") for part in ("wait", "transfer", "other"))
    if wait is None or transfer is None or other is None:
        return None
    return ExposedSplit(wait, transfer, other)


@dataclass(frozen=True)
class _Part:
    """A part of the step that an action removes at most: microseconds, and what to do about it."""

    us: float
    advice: str
    what: str


def best_action(
    rows: Sequence[CellValues],
    chosen: CellValues,
    slower: bool,
    straggler: str | None,
    on_device: bool,
    of_script: bool = False,
) -> Action:
    """The one action worth most for the chosen cell.

    `rows` are all measured cells, `slower` whether the chosen one was shown to be slower than one device, `straggler` the rank
    that is waited for, where one is named; `of_script` whether dpscope's own options are of no use. On a CPU, idle time is a
    core's that others took: nothing is advised about it.
    """
    larger = _larger_batch(rows, chosen, of_script)
    if larger is not None:
        return larger
    if slower:
        return Action(
            "Train on one device, or try a larger batch or model: this step is too short to share "
            f"({show_time(number(chosen, 'step_us'))}).",
            "shown",
        )
    if (slowed := slowed_by_tracing(chosen)) is not None:
        return Action(
            "Attach or measure with a larger batch or model, whose operations take longer than tracing them does: a traced step "
            f"takes {slowed:.2f}x as long as an untraced one, so no saving can be stated.",
            "not_measured",
        )
    step = number(chosen, "traced_step_us")
    parts = _parts(chosen, straggler, on_device, of_script) if step else []
    if not step or not parts:
        return Action("Measure the cell again: its trace does not show where the step's time goes.", "not_measured")
    part = max(parts, key=lambda one: one.us)
    share = part.us / step
    if share < WORTH_DOING:
        return Action(
            f"Nothing stands out: the largest part that could be removed, {part.what}, is {show_time(part.us)} "
            f"({share:.1%} of the step).",
            "traced_means",
        )
    return Action(
        f"{part.advice} At most {show_time(part.us)} of a {show_time(step)} step ({share:.0%}) can be saved.",
        "traced_means",
    )


def _larger_batch(rows: Sequence[CellValues], chosen: CellValues, of_script: bool) -> Action | None:
    """A larger batch per device of the same strategy and devices, where it was measured to train clearly more samples."""
    rate, batch = number(chosen, "samples_per_s"), number(chosen, "batch_size")
    if rate is None or batch is None:
        return None
    slowest, fastest = VALUE_RANGE.of("samples_per_s")
    alike = [
        row
        for row in rows
        if all(row.get(name) == chosen.get(name) for name in ("strategy", "devices", "nodes"))
        and (number(row, "batch_size") or 0.0) > batch
        and (number(row, slowest) or 0.0) > BATCH_GAIN * (number(chosen, fastest) or rate)
    ]
    if not alike:
        return None
    best = max(alike, key=lambda row: number(row, "samples_per_s") or 0.0)
    gain = (number(best, "samples_per_s") or 0.0) / rate
    return Action(
        f"Raise the batch to {best['batch_size']} per device: it was measured to train {gain:.2f}x as many samples per "
        f"second. Check that accuracy holds{'' if of_script else ' (dpscope train)'}.",
        "timed_steps",
    )


def _parts(chosen: CellValues, straggler: str | None, on_device: bool, of_script: bool) -> list[_Part]:
    exposed, told = number(chosen, "exposed_us"), split_exposed(chosen)
    loaded, unloaded = number(chosen, "step_us"), number(chosen, "step_without_wait_us")
    idle = number(chosen, "idle_us")
    late = f"{straggler} arrives" if straggler else "some ranks arrive"
    ddp = chosen["strategy"] != "dp" and chosen["strategy"] != "dp-host"
    parts = []
    if told is not None:
        for_it = told.waiting + (told.broadcasts if straggler else 0.0)  # a late rank is waited for in broadcasts, too
        parts.append(_Part(for_it, f"Find out why {late} late; no faster link helps.", "waiting"))
    if told is not None and told.broadcasts and not straggler:
        how = in_a_script("--broadcast-buffers off") if of_script else "--broadcast-buffers off measures it"
        advice = f"Try DDP without broadcasts of buffers ({how}): every step waits for rank 0 there."
        parts.append(_Part(told.broadcasts, advice, "broadcasts of buffers"))
    if exposed is not None:
        transfer = exposed if told is None else told.transfer
        advice = (
            "Hide or shrink the transfers: larger batch, gradient accumulation, fp16 gradients, or a faster link."
            if ddp
            else "Use DDP: DP moves the model every step, and none of it is hidden."
        )
        parts.append(_Part(transfer, advice, "exposed transfer"))
    if loaded is not None and unloaded is not None:
        parts.append(
            _Part(loaded - unloaded, "Feed the devices faster: more loader workers.", "waiting for the loader")
        )
    if idle is not None and on_device:
        parts.append(
            _Part(
                idle, "Look at what the host does between launches: the devices are idle.", "idle time of the devices"
            )
        )
    return parts
