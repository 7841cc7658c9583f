"""What to do next, and what it saves at most: the largest part of a step, by its ledger, that something can be done about."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dpscope.analysis.cells.columns import INTERVAL
from dpscope.analysis.cells.row import CellValues, number
from dpscope.analysis.findings.late_rank import LateRank
from dpscope.analysis.findings.script_advice import in_a_script
from dpscope.analysis.findings.slow_tracing import slowed_by_tracing
from dpscope.analysis.text.units import sentence, show_time
from dpscope.analysis.traces.ranks.exposed_parts import NotSplit
from dpscope.analysis.traces.ranks.ledger import IDLE, TRANSFER, UNSPLIT, WAITING, Ledger, other_part
from dpscope.profiling.records.strategies import is_known, traits_of

WORTH_DOING = 0.02  # of a step: below it nothing stands out from what steps differ by anyway
BATCH_GAIN = 1.1  # throughput of a larger batch over this one's before it is advised
_AS_MUCH = 0.8  # of the largest part: a second one from here on is named, too
_IDLE_ITSELF = 0.25  # of a step, from which on a late rank's own idle time is named

Confidence = Literal["shown", "not_shown", "no_interval", "traced_means", "timed_steps", "not_measured"]
"""What an answer rests on: an interval that excludes chance, or holds it, or none; traced or timed steps without one; nothing."""


@dataclass(frozen=True)
class Action:
    """`text` names the action and its bound; `part` is the part of the step that it removes, `saves_us` at most how much."""

    text: str
    confidence: Confidence
    part: str | None = None
    saves_us: float | None = None


@dataclass(frozen=True)
class Situation:
    """What an action depends on: the cell's row and ledger, the rank it waits for, what it ran on and how."""

    chosen: CellValues
    ledger: Ledger | None
    late: LateRank | None
    on_device: bool
    of_script: bool = False  # dpscope's own options are of no use
    not_split: NotSplit | None = None  # why waiting is not separated from transfer, of traces that no run made
    slower: bool = False  # shown to be slower than one device
    launch_bound: bool = False  # the finding of that name stands for the cell


@dataclass(frozen=True)
class _Part:
    us: float
    name: str
    advice: str


def best_action(rows: Sequence[CellValues], situation: Situation) -> Action:
    """The one action that saves most; `rows` are all measured cells.

    On a CPU, idle time is a core's that others took: nothing is advised about it.
    """
    larger = _larger_batch(rows, situation)
    if larger is not None:
        return larger
    if situation.slower:
        return Action(
            "Train on one device, or try a larger batch or model: this step is too short to share "
            f"({show_time(number(situation.chosen, 'step_us'))}).",
            "shown",
        )
    if (slowed := slowed_by_tracing(situation.chosen)) is not None:
        return Action(
            "Attach or measure with a larger batch or model, whose operations take longer than tracing them does: a traced step "
            f"takes {slowed:.2f}x as long as an untraced one, so no saving can be stated.",
            "not_measured",
        )
    ledger = situation.ledger
    parts = sorted(_parts(situation, ledger), key=lambda one: -one.us) if ledger is not None else []
    if ledger is None or not parts:
        return Action("Measure the cell again: its trace does not show where the step's time goes.", "not_measured")
    part, step = parts[0], ledger.traced_step_us
    if part.us < WORTH_DOING * step:
        return Action(
            f"Nothing stands out: the largest part that could be removed, {part.name}, is {show_time(part.us)} "
            f"({part.us / step:.1%} of the step).",
            "traced_means",
            part.name,
            part.us,
        )
    second = [one for one in parts[1:] if one.us >= _AS_MUCH * part.us]
    nearly = f" Nearly as much is {second[0].name} ({show_time(second[0].us)})." if second else ""
    return Action(
        f"{part.advice} This saves at most {show_time(part.us)} of a {show_time(step)} traced step "
        f"({part.us / step:.0%}).{nearly}",
        "traced_means",
        part.name,
        part.us,
    )


def _larger_batch(rows: Sequence[CellValues], situation: Situation) -> Action | None:
    """A larger batch per device of the same strategy and devices, where it was measured to train clearly more samples."""
    chosen = situation.chosen
    rate, batch = number(chosen, "samples_per_s"), number(chosen, "batch_size")
    if rate is None or batch is None:
        return None
    low, high = INTERVAL.of("samples_per_s")
    alike = [
        row
        for row in rows
        if (row["strategy"], row["devices"]) == (chosen["strategy"], chosen["devices"])
        and (number(row, "batch_size") or 0.0) > batch
        and (number(row, low) or 0.0) > BATCH_GAIN * (number(chosen, high) or rate)
    ]
    if not alike:
        return None
    best = max(alike, key=lambda row: number(row, "samples_per_s") or 0.0)
    gain = (number(best, "samples_per_s") or 0.0) / rate
    return Action(
        f"Raise the batch to {best['batch_size']} per device: it was measured to train {gain:.2f}x as many samples per "
        f"second. Check that accuracy holds{'' if situation.of_script else ' (dpscope train)'}.",
        "timed_steps",
    )


def _parts(situation: Situation, ledger: Ledger) -> list[_Part]:
    chosen = situation.chosen
    loaded, unloaded = number(chosen, "step_us"), number(chosen, "step_without_wait_us")
    parts = [*_exposed(situation, ledger)]
    if loaded is not None and unloaded is not None:
        parts.append(
            _Part(
                loaded - unloaded, "waiting for the loader", "Feed the devices faster: more loader workers (--workers)."
            )
        )
    if ledger.idle_us is not None and situation.on_device:
        parts.append(_Part(ledger.idle_us, IDLE, _idle_advice(situation, ledger)))
    return parts


def _idle_advice(situation: Situation, ledger: Ledger) -> str:
    unlaunched = ledger.unlaunched_us
    if situation.launch_bound:
        advice = "The step is launch-bound: choose a larger batch, or give the host less to launch (torch.compile, CUDA graphs)"
        return f"{advice}{_itself(situation, '; ')}."
    nothing = f": for {show_time(unlaunched)} of a step nothing was launched" if unlaunched else ""
    return f"Look at what the host does between launches; the devices are idle{nothing}{_itself(situation, 'and ')}."


def _exposed(situation: Situation, ledger: Ledger) -> list[_Part]:
    """Waiting, transfer and other communication, each with what removes it."""
    late, strategy = situation.late, str(situation.chosen["strategy"])
    other, wait, transfer = ledger.exposed_other_us, ledger.exposed_wait_us, ledger.exposed_transfer_us
    if traits_of(strategy).one_process:
        advice = "Use DDP: DP moves the model in every step, and none of that is hidden."
        return [_Part(other, UNSPLIT, advice)] if other is not None else []
    if wait is None or transfer is None:
        advice = "Trace every rank: without all of them, waiting for a late rank cannot be separated from transfer."
        if situation.not_split is not None:
            reason, next_step = situation.not_split.reason, situation.not_split.next_step
            advice = f"{sentence(next_step)} Waiting cannot be separated from transfer, because {reason}."
        return [_Part(other, UNSPLIT, advice)] if other is not None else []
    kinds = ledger.other_by_kind_us
    broadcasts = kinds.get("broadcast", 0.0)
    waiting = wait + (broadcasts if late is not None and late.shown else 0.0)  # a late rank is waited for there, too
    parts = [
        _Part(waiting, WAITING, _wait_advice(situation)),
        _Part(
            transfer,
            TRANSFER,
            "Hide or shrink the transfers: larger batch, gradient accumulation, fp16 gradients, or a faster link."
            if is_known(strategy)  # whose parallelism the traces do not show
            else "Hide or shrink the transfers: larger batch or a faster link.",
        ),
    ]
    for kind, us in kinds.items():
        if kind == "broadcast" and late is None:
            how = "--broadcast-buffers off measures it"
            how = in_a_script("--broadcast-buffers off") if situation.of_script else how
            parts.append(
                _Part(
                    us,
                    other_part(kind),
                    f"Try DDP without broadcasts of buffers ({how}): each step waits for rank 0."
                    if is_known(strategy)
                    else "See what the broadcasts carry: each step waits for their root.",
                )
            )
        elif kind != "broadcast":
            parts.append(_Part(us, other_part(kind), f"Look at what is exposed of {kind} operations."))
    return parts


def _wait_advice(situation: Situation) -> str:
    late = situation.late
    if late is None:
        return (
            "Waiting is for no single rank: jitter. Look for what differs between steps (input lengths, loader, other load); a "
            "faster link does not shorten it."
        )
    why = f"Find out why rank {late.rank} arrives late{late.certainty}{_itself(situation, 'it ')}"
    return f"{why}; a faster link does not shorten this."


def _itself(situation: Situation, subject: str) -> str:
    """That the rank which the others wait for is idle on the host itself."""
    late, ledger = situation.late, situation.ledger
    if late is None or ledger is None or not situation.on_device:
        return ""
    own, what = (late.unlaunched_us, "without a launch") if late.unlaunched_us else (late.idle_us, "idle")
    if own is None or own < _IDLE_ITSELF * ledger.traced_step_us:
        return ""
    who = f"rank {late.rank}, which the others wait for, is" if subject == "and " else "it is"
    return f", {'and ' if subject == 'and ' else ''}{who} itself {what} for {show_time(own)} of a step"
