"""A ledger in words: the rank that a job waits for, what communication costs, what to do next and
how long that part is.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.stats.samples import CONFIDENCE, Estimate, verdict
from dpscope.analysis.text.text_table import Field, TextTable, table_of
from dpscope.analysis.text.units import (
    Unit,
    choose_unit,
    sentence,
    show,
    show_bytes,
    show_time,
    with_article,
)
from dpscope.analysis.traces.ranks.exposed_parts import SMALL, Messages, NotSplit
from dpscope.analysis.traces.ranks.lateness import LastRank, LateRank
from dpscope.analysis.traces.ranks.ledger import (
    IDLE,
    STEP_PARTS,
    TRANSFER,
    UNSPLIT,
    WAITING,
    Ledger,
    other_part,
)
from dpscope.analysis.traces.ranks.step_findings import MOST_UNLAUNCHED
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.matrix import DDP_ARGUMENTS
from dpscope.profiling.records.strategies import traits_of

_TRACED_APART = 0.1  # of the untraced step: if the traced one differs by more, both are stated
_NOTHING = 0.005  # of exposed communication: smaller parts are omitted


def cost_text(strategy: str, ledger: Ledger, late: LateRank | None) -> str:
    """The cost of a cell's communication in a step; its exposed communication must be known."""
    exposed, step = ledger.exposed_us or 0.0, ledger.traced_step_us
    unit = choose_unit("time", [exposed, step, ledger.exposed_wait_us, ledger.exposed_transfer_us])
    traits = traits_of(strategy)
    who, what = traits.label if traits.identified else "The job", traits.communication
    share = f"{exposed / step:.0%}"
    if ledger.steps:
        share += "; one step" if ledger.steps == 1 else f"; mean of {ledger.steps} steps"
    if ledger.left_out_steps:
        share += f"; {counted(ledger.left_out_steps, 'far longer step')} left out"
    if (bounds := ledger.intervals.get("exposed")) is not None:
        ends = f"{show(bounds.low, unit)} to {_time(bounds.high, unit)}"
        share += f"; {CONFIDENCE:.0%} interval {ends}"
    text = f"{who} exposes {_time(exposed, unit)} of {what} in {with_article(_time(step, unit))} traced step ({share})"
    text += _split(ledger, late, unit)
    hidden = (ledger.communication_us or 0.0) - exposed
    if hidden > _NOTHING * step:
        text += f"; {_time(hidden, unit)} more is hidden behind compute"
        cost_us, ratio, ratios = (
            ledger.contention_us,
            ledger.contention_ratio,
            ledger.contention_ratio_interval,
        )
        if cost_us is not None and ratio is not None and ratios is not None and ratios.low > 1.0:
            factors = (
                f"{ratio:.2f}x; {CONFIDENCE:.0%} interval {ratios.low:.2f} to {ratios.high:.2f}"
            )
            text += f", which slows that compute ({factors}) and so costs {show_time(cost_us)}"
    text += "."
    if ledger.critical_device is not None and ledger.devices_exposed_us is not None:
        mean = _time(ledger.devices_exposed_us, unit)
        text += f" This is device {ledger.critical_device}, the least idle one; the mean over all devices is {mean}."
    untraced = step + (ledger.tracer_us or 0.0)
    if abs(ledger.tracer_us or 0.0) > _TRACED_APART * untraced:
        text += f" Untraced, a step takes {_time(untraced, unit)}."
    return text


def _time(value: float, unit: Unit) -> str:
    return f"{show(value, unit)} {unit.label}"


def _split(ledger: Ledger, late: LateRank | None, unit: Unit) -> str:
    """Wait, transfer and the rest by kind, or that they cannot be separated."""
    exposed, kinds = ledger.exposed_us or 0.0, ledger.other_by_kind_us
    wait, transfer = ledger.exposed_wait_us, ledger.exposed_transfer_us
    if not exposed:
        return ""
    if wait is None or transfer is None:
        alone = set(kinds) <= {"copy", "broadcast", "reduce"}
        return (
            ""
            if alone
            else ", not split into wait and transfer: no collective was matched across all ranks"
        )
    whom = ""
    if late is not None and late.wait_us:
        few = "" if late.significant else f" in {counted(late.last.of_steps, 'traced step')}"
        whom = f" (mean over ranks; {late.share:.0%} of it for rank {late.rank}{few})"
    parts = [
        f"{_time(wait, unit)} waiting for late ranks{whom}",
        f"{_time(transfer, unit)} transfer",
    ]
    if (ledger.exposed_other_us or 0.0) > _NOTHING * exposed:
        parts += [
            f"{_time(us, unit)} {kind}" for kind, us in kinds.items() if us > _NOTHING * exposed
        ]
    return f": {', '.join(parts)}"


def ledger_table(ledger: Ledger) -> TextTable:
    """A single row: a traced step and the parts that add up to it, means over ranks and steps."""
    names = {"traced_step": "traced step", **STEP_PARTS}
    over = f"means over {counted(ledger.windows, 'window')}, one per rank and step"
    note = f"{over}; wait, transfer and other are exposed communication"
    if not ledger.is_split:
        note = f"{note}; other includes all of it, as no collective was matched across all ranks"
    fields = [Field(name, f"{part}_us", "time") for part, name in names.items()]
    title = f"Where a step goes: {' + '.join(STEP_PARTS.values())} = traced step"
    return table_of(title, fields, [ledger], [note])


SLOWED = 1.5  # traced over untraced step, above which no share of a step and no saving is stated


def slowed_by_tracing(row: CellRow) -> float | None:
    """The ratio of a cell's traced to its untraced step if it exceeds SLOWED; None otherwise or if
    unknown.
    """
    return row.tracer_cost if row.tracer_cost is not None and row.tracer_cost > SLOWED else None


def slowed_text(row: CellRow, cost: float) -> str:
    """Why such a trace does not show the cost of communication, and what tracing does not
    change.
    """
    volume, count, moved = row.bytes_per_step, row.collectives_per_step, ""
    if volume is not None and count is not None:
        moved = f" What tracing does not change: {show_bytes(volume)} a step in {counted(round(count), 'collective')}."
    return (
        f"communication's share of a step is unknown: a traced step takes {cost:.2f}x as long as an untraced one, "
        f"so its parts do not describe the training.{moved}"
    )


NOTABLE_SAVING = 0.02  # of a step: a smaller part is within the variation between steps
BATCH_GAIN = 1.1  # throughput of a larger batch over this one, from which on it is recommended
_AS_MUCH = 0.8  # of the largest part, from which on a second part is named too
_IDLE_ITSELF = 0.25  # of a step, from which on a late rank's idle time is named

NOT_MEASURED, TIMED = "not measured", "medians of the timed steps"
TRACED = "means of the traced steps, no interval"
COMPARED = (
    "T_N - T_1: medians of the timed steps; what it is compared with: means of the traced steps"
)
SIGNIFICANT, NOT_SIGNIFICANT = (
    f"{text} ({CONFIDENCE:.0%} interval)" for text in ("significant", "not significant")
)


def basis_of(estimate: Estimate) -> str:
    """How certain it is that an estimate differs from 1."""
    found = {
        "no_difference_shown": NOT_SIGNIFICANT,
        "too_few_samples": "too few repeats, or fewer than five steps: no interval",
    }
    return found.get(verdict(estimate), SIGNIFICANT)


@dataclass(frozen=True)
class Answer:
    """`text` is the answer with its number; `basis` is how certain it is, in words.

    Of an action, `part` is the part of the step that it is about, and `saves_us` how long that is.
    Removing it may also shorten other parts, or turn it into another one: `dpscope whatif` predicts
    the step without it.
    """

    text: str
    basis: str = NOT_MEASURED
    part: str | None = None
    saves_us: float | None = None


@dataclass(frozen=True)
class Situation:
    """What an action depends on: the cell's row, the rank that it waits for, where and how it
    ran.
    """

    chosen: CellRow
    late: LateRank | None
    on_device: bool
    messages: Messages | None = None
    # the rank that arrives last in most steps, also where ranks take turns
    last: LastRank | None = None
    knows_options: bool = True  # else dpscope's options do not apply
    # for foreign traces, why waiting is not separated from transfer
    not_split: NotSplit | None = None
    slower: bool = False  # significantly slower than one device
    launch_bound: bool = False  # the cell has the finding `launch_bound`
    late_samples: str | None = None  # that the late rank trains on more samples than the others


@dataclass(frozen=True)
class _Part:
    us: float
    name: str
    advice: str
    what: str | None = None  # `us` is; None: the part that is named
    untraced_us: float | None = None  # the step that it is a part of; None: the traced one
    # the traced step that it is a part of; None: the mean of all ranks
    traced_us: float | None = None


def best_action(rows: Sequence[CellRow], situation: Situation) -> Answer:
    """The action that saves most; `rows` are the measured cells with the same options on as many
    nodes.

    On a CPU nothing is recommended about idle time, in which other processes used the cores.
    """
    chosen, ledger = situation.chosen, situation.chosen.ledger
    if (larger := _larger_batch(rows, situation)) is not None:
        return larger
    if situation.slower:
        short = f"this step is too short to split ({show_time(chosen.step_us)})"
        return Answer(f"Train on one device, or try a larger batch or model: {short}.", SIGNIFICANT)
    if (slowed := slowed_by_tracing(chosen)) is not None:
        text = (
            "Measure with a larger batch or model, whose operations take longer than tracing them: a traced step takes "
            f"{slowed:.2f}x as long as an untraced one, so no saving can be stated."
        )
        return Answer(text)
    parts = (
        sorted(_parts(rows, situation, ledger), key=lambda one: -one.us)
        if ledger is not None
        else []
    )
    if ledger is None or not parts:
        return Answer("Measure the cell again: its trace does not show where the step's time goes.")
    part, time = parts[0], show_time(parts[0].us)
    step, kind, basis = part.traced_us or ledger.traced_step_us, "traced", TRACED
    if part.untraced_us is not None:
        step, kind, basis = part.untraced_us, "untraced", TIMED
    second = next((one for one in parts[1:] if one.us >= _AS_MUCH * part.us), None)
    nearly = f" Nearly as much is {second.name} ({show_time(second.us)})." if second else ""
    share = f"{with_article(show_time(step))} {kind} step ({part.us / step:.0%})"
    text = f"{part.advice} {(part.what or part.name).capitalize()}: {time} of {share}.{nearly}"
    if part.us < NOTABLE_SAVING * step:
        largest = f"the largest part that could be removed, {part.name}, is {time} ({part.us / step:.1%} of the step)"
        text = f"Nothing stands out: {largest}."
    return Answer(text, basis, part=part.name, saves_us=part.us)


def _larger_batch(rows: Sequence[CellRow], situation: Situation) -> Answer | None:
    """A larger batch per device of the same strategy and devices, if its throughput is clearly
    higher by both intervals.
    """
    chosen = situation.chosen
    rate, batch = chosen.samples_per_s, chosen.batch_size
    if rate is None or batch is None:
        return None
    alike = [
        row
        for row in rows
        if (row.strategy, row.devices) == (chosen.strategy, chosen.devices)
        and (row.batch_size or 0) > batch
        and (row.number("samples_per_s_low") or 0.0)
        > BATCH_GAIN * (chosen.number("samples_per_s_high") or math.inf)
    ]
    if not alike:
        return None
    best = max(alike, key=lambda row: row.samples_per_s or 0.0)
    text = (
        f"Raise the batch to {best.batch_size} per device, which reached {(best.samples_per_s or 0.0) / rate:.2f}x as many "
        f"samples per second. Check that accuracy holds{' (dpscope train)' if situation.knows_options else ''}."
    )
    return Answer(text, TIMED)


def _parts(rows: Sequence[CellRow], situation: Situation, ledger: Ledger) -> list[_Part]:
    chosen = situation.chosen
    parts = (
        _copies(rows, chosen, ledger)
        if traits_of(chosen.strategy).one_process
        else _exposed(situation, ledger)
    )
    if chosen.step_us is not None and chosen.step_without_wait_us is not None:
        loader_us = chosen.step_us - chosen.step_without_wait_us
        feed = "Feed the devices faster: more loader workers (--workers)."
        parts.append(_Part(loader_us, "waiting for the loader", feed, untraced_us=chosen.step_us))
    if ledger.idle_us is not None and situation.on_device:
        unlaunched = ledger.unlaunched_us
        idle = "; the devices are idle"
        if unlaunched:
            idle = f": for {show_time(unlaunched)} of a step the devices are idle and no work is queued"
        advice = f"Check what the host does between launches{idle}."
        if unlaunched is not None and unlaunched < MOST_UNLAUNCHED * ledger.idle_us:
            waited = f"for {show_time(ledger.idle_us - unlaunched)} of a step work is queued and none runs"
            advice = f"Check what kernels wait for (other streams, copies): {waited}."
        if situation.launch_bound:
            less = "give the host less to launch (torch.compile, CUDA graphs)"
            advice = f"The step is launch-bound: choose a larger batch, or {less}."
        parts.append(_Part(ledger.idle_us, IDLE, f"{advice}{_late_and_idle(situation, ledger)}"))
    return parts


def _copies(rows: Sequence[CellRow], chosen: CellRow, ledger: Ledger) -> list[_Part]:
    """DataParallel's copies of the model: DDP makes none, but is not chosen where it was measured
    and is no faster.
    """
    if ledger.exposed_other_us is None:
        return []
    alike = [
        row for row in rows if (row.devices, row.batch_size) == (chosen.devices, chosen.batch_size)
    ]
    with_ddp = any(traits_of(row.strategy).reducer for row in alike)
    advice = "Use DDP: DP copies the model in every step, and hides none of that."
    if with_ddp:
        advice = (
            "Raise the batch per device, so that each copy of the model serves more samples: DDP, which makes none, is not "
            "significantly faster here."
        )
    return [_Part(ledger.exposed_other_us, UNSPLIT, advice)]


def _exposed(situation: Situation, ledger: Ledger) -> list[_Part]:
    """Waiting, transfer and other communication, each with what removes it."""
    late = situation.late
    # else the traces do not show the parallelism
    known = traits_of(situation.chosen.strategy).identified
    other, wait, transfer = (
        ledger.exposed_other_us,
        ledger.exposed_wait_us,
        ledger.exposed_transfer_us,
    )
    if wait is None or transfer is None:
        advice = "Trace every rank: without all of them, waiting for a late rank cannot be separated from transfer."
        if (unsplit := situation.not_split) is not None:
            advice = f"{sentence(unsplit.next_step)} Waiting cannot be separated from transfer, because {unsplit.reason}."
        return [_Part(other, UNSPLIT, advice)] if other is not None else []
    turns = f" ({situation.last.turns})" if situation.last is not None else ""
    wait_advice = f"No rank is always late{turns}. Compare steps: input lengths, loader, other load; a faster link does not help."
    waiting = [_Part(wait, WAITING, wait_advice)]
    if late is not None:
        doubt = f" ({late.last.doubt})" if late.last.doubt is not None else ""
        why = f"Find out why rank {late.rank} arrives late{doubt}"
        if situation.late_samples is not None:
            why = f"Give the ranks equal batches: {situation.late_samples}{doubt}"
        cause = f"{why}; a faster link does not shorten this."
        cause += _late_and_idle(situation, ledger)
        whom = "each other rank's wait"
        for_others_us = wait * (1.0 - late.share)
        waiting = [
            _Part(late.lateness_us, WAITING, cause, whom, traced_us=late.step_us),
            _Part(for_others_us, "waiting for other ranks", wait_advice),
        ]
    smaller = (
        "gradient accumulation, fp16 gradients, or a faster link" if known else "or a faster link"
    )
    hide = f"Hide or shrink the transfers: a larger batch{',' if known else ''} {smaller}."
    messages = situation.messages
    if messages is not None and messages.many and messages.small_transfer_us > transfer / 2:
        hide = f"{sentence(fewer_messages(messages))} {show_time(messages.small_transfer_us)} is exposed in these."
    parts = [*waiting, _Part(transfer, TRANSFER, hide)]
    option = "--broadcast-buffers off"
    how = f"{option} measures it" if situation.knows_options else in_a_script(option)
    for kind, us in ledger.other_by_kind_us.items():
        if kind != "broadcast":
            parts.append(_Part(us, other_part(kind), f"Check which {kind} operations are exposed."))
        elif late is None:
            advice = f"Try DDP without broadcasting buffers ({how}): each step waits for rank 0."
            carried = "Check what the broadcasts carry: each step waits for their root."
            parts.append(_Part(us, other_part(kind), advice if known else carried))
    return parts


def fewer_messages(messages: Messages) -> str:
    """What to do about many small collectives, as the end of a sentence."""
    each = f"{messages.small_count:.0f} collectives of at most {SMALL >> 10} KiB a step are bound by latency"
    return f"send fewer messages: {each}; join or drop some (gradients one by one, synchronised norms, metrics)"


def _late_and_idle(situation: Situation, ledger: Ledger) -> str:
    """A sentence stating that the late rank's device is itself idle for a large part of a step."""
    late = situation.late
    if late is None or not situation.on_device:
        return ""
    idle, what = (
        (late.unlaunched_us, "without a launch") if late.unlaunched_us else (late.idle_us, "idle")
    )
    if idle is None or idle < _IDLE_ITSELF * ledger.traced_step_us:
        return ""
    return f" Rank {late.rank}, which the others wait for, is itself {what} for {show_time(idle)} of a step."


_OPTION_OF_DDP = re.compile(
    rf"--({'|'.join(DDP_ARGUMENTS).replace('_', '-')})(?: (on|off|[\d.]+)\b(?!,))?"
)
_SWITCHED = {"on": "True", "off": "False"}
_OTHER_OPTIONS = (
    ("--strategy fsdp-no-reshard", "reshard_after_forward=False"),
    ("--nccl-engine default,legacy", "and without TORCH_DIST_USE_NCCL2=0"),
)


def in_a_script(advice: str) -> str:
    """Replace dpscope's options in advice with torch's arguments.

    >>> in_a_script("smaller buckets let part of it be reduced earlier (--bucket-mb 9.5)")
    "smaller buckets let part of it be reduced earlier (DDP's bucket_cap_mb=9.5)"
    """
    advice = _OPTION_OF_DDP.sub(_argument, advice)
    for option, instead in _OTHER_OPTIONS:
        advice = advice.replace(option, instead)
    return advice


def _argument(found: re.Match[str]) -> str:
    """An option of DDP, with its value where advice gives one, as an argument in Python."""
    option, value = found.groups()
    given = "" if value is None else f"={_SWITCHED.get(value, value)}"
    return f"DDP's {DDP_ARGUMENTS[option.replace('-', '_')]}{given}"
