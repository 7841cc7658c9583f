"""What communication costs in a step, which rank is late, and the ledger as a table."""

from collections.abc import Iterator, Mapping

from dpscope.analysis.cells.checks import unreliable_parts
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.findings.facts import Fact, Scale, percent
from dpscope.analysis.findings.ledger_text import (
    slowed_by_tracing,
    why_no_interval,
    without_interval,
)
from dpscope.analysis.stats.samples import CONFIDENCE
from dpscope.analysis.text.text_table import Field, TextTable, table_of
from dpscope.analysis.text.units import show_apart, show_bytes
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.lateness import LateRank
from dpscope.analysis.traces.ranks.ledger import STEP_PARTS, Ledger, ledger_of
from dpscope.analysis.traces.ranks.not_split import NotSplit
from dpscope.profiling.records.finding import counted

_NOTHING = 0.005  # of exposed communication: smaller parts are omitted
_NOTABLE_LATE = 0.1  # of the waiting: other late ranks with less are omitted
_NAMED = 2  # other late ranks
MOSTLY = 0.5  # of idle time, from which on copies from or to the host are what to remove
_KINDS = {"copy": "copies between devices"}
_NEVER_SPLIT = {"copy", "broadcast", "reduce"}  # do not make all ranks wait for each other


def cost_fact(row: CellRow, data: Job, on_device: bool) -> Fact:
    """The exposed communication of a traced step and its parts, from the row's ledger.

    The job shows why waiting could not be separated from moving data, and whether a step is whole.
    """
    ledger = row.ledger
    if ledger is None or ledger.exposed_us is None:
        not_shown = f"the trace of {row.cell} does not show it"
        reason = row.reasons.get("exposed_us", not_shown)
        line = f"not measured: {reason}"
        return Fact("cost", "COST", (line,))
    slowed = slowed_by_tracing(row)
    if slowed is not None:
        return _unreliable(row, slowed)
    scale = Scale([ledger.traced_step_us, ledger.exposed_us])
    of_step = traced_length(ledger, data, scale)
    exposed = scale.number(ledger.exposed_us)
    bounds = ledger.intervals.get("exposed")
    if bounds is not None:
        exposed = f"{exposed} ({scale.ends(bounds)})"
    elif without_interval(ledger):
        exposed = f"{exposed} (no interval: {why_no_interval(data)})"
    share = percent(ledger.exposed_us / ledger.traced_step_us)
    split = _split(ledger, data.not_split, scale)
    lines = [f"communication takes {exposed} of {of_step}, {share}{split}"]
    if on_device:
        lines.append(device_use(ledger, scale))
    lines.extend(_hidden(ledger, scale))
    if ledger.devices_exposed_us is not None:
        mean = scale.time(ledger.devices_exposed_us)
        lines.append(
            f"on device {ledger.critical_device}, the least idle one; mean of all devices {mean}"
        )
    return Fact("cost", "COST", tuple(lines), _basis(ledger))


def _unreliable(row: CellRow, slowed: float) -> Fact:
    """What is known although tracing slowed the step so much."""
    lines = [f"unknown: {unreliable_parts(slowed)}"]
    count = row.collectives_per_step
    if row.bytes_per_step is not None and count is not None:
        size = show_bytes(row.bytes_per_step)
        collectives = counted(round(count), "collective")
        lines.append(f"tracing does not change what a step moves: {size} in {collectives}")
    return Fact("cost", "COST", tuple(lines))


def traced_length(ledger: Ledger, data: Job, scale: Scale) -> str:
    """The step that the parts are of, next to the untraced one where that was timed."""
    length = scale.time(ledger.traced_step_us)
    if not data.has_whole_step:
        return f"the {length} recorded"
    if ledger.tracer_us is None:
        return f"the {length} of a step"
    untraced_us = ledger.traced_step_us + ledger.tracer_us
    untraced = scale.number(untraced_us)
    return f"the {length} of a traced step ({untraced} untraced)"


def _split(ledger: Ledger, not_split: NotSplit | None, scale: Scale) -> str:
    """Waiting, moving data and the rest by kind, or that they cannot be separated."""
    never_split = ledger.other_by_kind_us.keys() <= _NEVER_SPLIT
    if not_split is not None and not ledger.is_split and not never_split:
        return f", waiting included: {not_split.reason}"
    times_us = _notable_parts_us(ledger)
    if not times_us or not ledger.exposed_us:
        return ""
    numbers = scale.alike(list(times_us.values()))
    pairs = zip(numbers, times_us, strict=True)
    parts = ", ".join(f"{number} {name}" for number, name in pairs)
    return f": {parts}"


def _notable_parts_us(ledger: Ledger) -> dict[str, float]:
    """Parts of the exposed communication by their names on the screen."""
    times_us = {}
    if ledger.is_split:
        times_us["waiting for late ranks"] = ledger.exposed_wait_us or 0.0
        times_us["moving data"] = ledger.exposed_transfer_us or 0.0
    least_us = _NOTHING * (ledger.exposed_us or 0.0)
    for kind, time_us in ledger.other_by_kind_us.items():
        if time_us > least_us:
            name = _KINDS.get(kind, kind)
            times_us[f"other ({name})"] = time_us
    return times_us


def device_use(ledger: Ledger, scale: Scale) -> str:
    """How long the devices compute and idle, and what idle time they spend most of it on."""
    step_us = ledger.traced_step_us
    compute_us = ledger.compute_us
    idle_us = ledger.idle_us
    if compute_us is None or idle_us is None:
        return "the trace does not show how long the devices compute"
    computing = f"devices compute {_of_step(compute_us, step_us, scale)}"
    use = f"{computing}, idle {_of_step(idle_us, step_us, scale)}"
    copies_us = ledger.host_copy_us or 0.0
    unlaunched_us = ledger.unlaunched_us or 0.0
    if copies_us > MOSTLY * idle_us:
        return f"{use}: for {scale.time(copies_us)} only copies from or to the host ran"
    if unlaunched_us > _NOTHING * step_us:
        return f"{use}: for {scale.time(unlaunched_us)} the CPU had queued no work"
    return use


def _of_step(time_us: float, step_us: float, scale: Scale) -> str:
    """A part of the step with its share, such as ``7.5 (52%)``."""
    share = percent(time_us / step_us)
    return f"{scale.number(time_us)} ({share})"


def _hidden(ledger: Ledger, scale: Scale) -> Iterator[str]:
    """What compute hides, and what that costs the compute."""
    hidden_us = ledger.hidden_us or 0.0
    if hidden_us <= _NOTHING * ledger.traced_step_us:
        return
    yield f"{scale.time(hidden_us)} more is hidden: compute runs at the same time"
    bounds = ledger.contention_ratio_interval
    if ledger.contention_us is not None and bounds is not None and bounds.low > 1.0:
        interval = f"{show_apart(bounds.low)} to {show_apart(bounds.high)}"
        cost = scale.time(ledger.contention_us)
        times = f"{ledger.contention_ratio:.2f}x ({interval})"
        yield f"it slows the compute next to it {times}: {cost} a step"


def _basis(ledger: Ledger) -> str:
    means = _means_over(ledger)
    if ledger.left_out_steps:
        left_out = counted(ledger.left_out_steps, "far longer step")
        means = f"{means}, {left_out} left out"
    if "exposed" not in ledger.intervals:
        return f"{means}; no interval"
    return f"{means}; {CONFIDENCE:.0%} interval from how the repeats differ"


def _means_over(ledger: Ledger) -> str:
    """Over which steps a ledger's means are, counted as on the first line of a report."""
    return f"means over {counted(ledger.steps, 'traced step')} of each rank"


def late_facts(late: LateRank, ledger: Ledger) -> list[Fact]:
    """The rank that the others wait for, its part of the waiting, and the next ones; none where a
    rank is last, but compute hides all waiting for it.
    """
    if late.wait_us <= 0:
        return []
    total_us = late.wait_us / late.share
    scale = Scale([total_us])
    mean = scale.number(late.wait_us)
    total = scale.time(total_us)
    each = scale.number(late.lateness_us)
    line = (
        f"rank {late.rank} causes {percent(late.share)} of the waiting: {mean} of {total} a step in the mean of all "
        f"ranks, {each} in each other rank's"
    )
    others = []
    for rank, wait_us in ledger.wait_by_rank_us.items():
        share = wait_us / total_us
        if rank != late.rank and share > _NOTABLE_LATE:
            others.append(f"{rank} ({percent(share)})")
    if others:
        named = ", ".join(others[:_NAMED])
        line = f"{line}; then {named}"
    counts = f"it is {late.last.counts}"
    lines = [line]
    if not late.significant:
        lines.append(f"{counts}, which may be chance")
    return [Fact("late", "LATE RANK", tuple(lines), f"{counts}; means over ranks and traced steps")]


def _ledgers(data: Job) -> dict[int | None, Ledger]:
    """Of each rank, None where its number is not known."""
    windows = data.whole_windows
    ranks = windows.group("rank")
    firsts = windows.take(ranks.first).records(("rank",))
    ledgers: dict[int | None, Ledger] = {}
    for first, rows in zip(firsts, ranks.rows(), strict=True):
        ledger = ledger_of(windows.take(rows), data.tables.exposed_parts)
        if ledger is not None:
            ledgers[first["rank"]] = ledger
    return ledgers


def _notable_ranks(
    data: Job, ledgers: Mapping[int | None, Ledger], is_split: bool
) -> dict[str, Ledger]:
    """Of several ranks the slowest, the one that waits longest and the late one, by their names in
    the table.
    """
    slowest = max(ledgers, key=lambda rank: ledgers[rank].traced_step_us)
    roles = {slowest: "slowest"}
    if is_split:
        waiting = max(ledgers, key=lambda rank: ledgers[rank].exposed_wait_us or 0.0)
        roles.setdefault(waiting, "waits longest")
    if data.late is not None and data.late.wait_us > 0:
        roles.setdefault(data.late.rank, "late")
    return {f"{_name(rank)}, {role}": ledgers[rank] for rank, role in roles.items()}


def _name(rank: int | None) -> str:
    if rank is None:
        return "rank unknown"
    return f"rank {rank}"


def ledger_table(data: Job) -> TextTable | None:
    """A traced step and the parts that add up to it: the mean of all ranks, the slowest rank, the
    one that waits longest and the late one. None without a known step.
    """
    ledger = data.ledger
    if ledger is None:
        return None
    ledgers = _ledgers(data)
    if len(ledgers) > 1:
        mean = f"mean of {counted(len(ledgers), 'rank')}"
        rows = {mean: ledger, **_notable_ranks(data, ledgers, ledger.is_split)}
    else:
        rows = {_name(rank): ledger for rank in ledgers}
    note = f"{_means_over(ledger)}; wait, transfer and other are exposed communication"
    if not ledger.is_split:
        note = f"{note}; other includes all of it, as no collective was matched across all ranks"
    names = {"traced_step": "traced", **STEP_PARTS}
    fields = [Field(name, f"{part}_us", "time") for part, name in names.items()]
    sum_of_parts = " + ".join(STEP_PARTS.values())
    title = f"Where a step goes [{{unit}}]: {sum_of_parts} = traced"
    records = [{"of": of, **vars(row)} for of, row in rows.items()]
    return table_of(title, [Field("", "of"), *fields], records, [note])
