"""What communication costs in a step, which rank is late, and the ledger as a table."""

from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.findings.facts import Fact, Scale, percent
from dpscope.analysis.findings.ledger_text import slowed_by_tracing
from dpscope.analysis.stats.samples import CONFIDENCE
from dpscope.analysis.text.text_table import Field, TextTable, table_of
from dpscope.analysis.text.units import beside, show_bytes
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.lateness import LateRank
from dpscope.analysis.traces.ranks.ledger import STEP_PARTS, Ledger, ledger_of
from dpscope.analysis.traces.reading.table import Groups, Table
from dpscope.profiling.records.finding import counted

_NOTHING = 0.005  # of exposed communication: smaller parts are omitted
_NOTABLE_LATE = 0.1  # of the waiting: other late ranks with less are omitted
_NAMED = 2  # other late ranks
MOSTLY = 0.5  # of idle time, from which on copies from or to the host are what to remove
_KINDS = {"copy": "copies between devices"}


def cost_fact(row: CellRow, on_device: bool, not_split: str) -> Fact:
    """The exposed communication of a traced step and its parts, from the ledger; `not_split` is why
    waiting could not be separated from moving data, where it could not.
    """
    ledger, slowed = row.ledger, slowed_by_tracing(row)
    if ledger is None or ledger.exposed_us is None:
        return Fact("cost", "COST", (f"not measured: the trace of {row.cell} does not show it",))
    if slowed is not None:
        lines = [
            f"unknown: tracing made a step {slowed:.1f}x as long, so its parts are not reliable"
        ]
        if row.bytes_per_step is not None and row.collectives_per_step is not None:
            moved = f"{show_bytes(row.bytes_per_step)} in {counted(round(row.collectives_per_step), 'collective')}"
            lines.append(f"tracing does not change what a step moves: {moved}")
        return Fact("cost", "COST", tuple(lines))
    scale = Scale([ledger.traced_step_us, ledger.exposed_us])
    lines = [f"{_exposed(ledger, ledger.exposed_us, scale)}{_split(ledger, scale, not_split)}"]
    if on_device:
        lines.append(device_use(ledger, scale))
    lines.extend(_hidden(ledger, scale))
    if ledger.critical_device is not None and ledger.devices_exposed_us is not None:
        mean = scale.time(ledger.devices_exposed_us)
        lines.append(
            f"on device {ledger.critical_device}, the least idle one; mean of all devices {mean}"
        )
    return Fact("cost", "COST", tuple(lines), _basis(ledger))


def _exposed(ledger: Ledger, exposed_us: float, scale: Scale) -> str:
    step_us = ledger.traced_step_us
    bounds = ledger.intervals.get("exposed")
    interval = "" if bounds is None else f" ({scale.ends(bounds)})"
    share = percent(exposed_us / step_us)
    step = _traced_step(ledger, scale)
    return f"communication takes {scale.number(exposed_us)}{interval} of {step}, {share}"


def _traced_step(ledger: Ledger, scale: Scale) -> str:
    """The step that the parts are of, next to the untraced one where that was timed."""
    length = scale.time(ledger.traced_step_us)
    if ledger.tracer_us is None:
        return f"the {length} of a step"
    untraced_us = ledger.traced_step_us + ledger.tracer_us
    untraced = scale.number(untraced_us)
    return f"the {length} of a traced step ({untraced} untraced)"


def _split(ledger: Ledger, scale: Scale, not_split: str) -> str:
    """Waiting, moving data and the rest by kind, or that they cannot be separated."""
    times_us = _notable_parts_us(ledger)
    numbered = zip(scale.alike(list(times_us.values())), times_us, strict=True)
    parts = [f"{number} {name}" for number, name in numbered]
    kinds = set(ledger.other_by_kind_us)
    if not ledger.is_split and not kinds <= {"copy", "broadcast", "reduce"}:
        return f", waiting included: {not_split}"
    return f": {', '.join(parts)}" if parts and ledger.exposed_us else ""


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
    step_us = ledger.traced_step_us
    if ledger.compute_us is None or ledger.idle_us is None:
        return "the trace does not show how long the devices compute"
    computing = f"devices compute {scale.number(ledger.compute_us)} ({percent(ledger.compute_us / step_us)})"
    idle = f"idle {scale.number(ledger.idle_us)} ({percent(ledger.idle_us / step_us)})"
    unlaunched_us = ledger.unlaunched_us or 0.0
    copies_us = ledger.host_copy_us or 0.0
    if copies_us > MOSTLY * ledger.idle_us:
        return (
            f"{computing}, {idle}: for {scale.time(copies_us)} only copies from or to the host ran"
        )
    if unlaunched_us <= _NOTHING * step_us:
        return f"{computing}, {idle}"
    return f"{computing}, {idle}: for {scale.time(unlaunched_us)} the CPU had queued no work"


def _hidden(ledger: Ledger, scale: Scale) -> list[str]:
    """What compute hides, and what that costs the compute."""
    hidden_us = ledger.hidden_us or 0.0
    if hidden_us <= _NOTHING * ledger.traced_step_us:
        return []
    line = f"{scale.time(hidden_us)} more is hidden: compute runs at the same time"
    ratio, bounds = ledger.contention_ratio, ledger.contention_ratio_interval
    if ledger.contention_us is None or ratio is None or bounds is None or bounds.low <= 1.0:
        return [line]
    slows = f"{ratio:.2f}x ({beside(bounds.low)} to {beside(bounds.high)})"
    cost = scale.time(ledger.contention_us)
    return [line, f"it slows the compute next to it {slows}: {cost} a step"]


def _basis(ledger: Ledger) -> str:
    left_out = ledger.left_out_steps
    means = _means_over(ledger)
    if left_out:
        means += f", {counted(left_out, 'far longer step')} left out"
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
    mean = f"{scale.number(late.wait_us)} of {scale.time(total_us)} a step in the mean of all ranks"
    line = (
        f"rank {late.rank} causes {percent(late.share)} of the waiting: {mean}, "
        f"{scale.number(late.lateness_us)} in each other rank's"
    )
    others = [
        f"{rank} ({percent(wait_us / total_us)})"
        for rank, wait_us in ledger.wait_by_rank_us.items()
        if rank != late.rank and wait_us > _NOTABLE_LATE * total_us
    ]
    if others:
        line += f"; then {', '.join(others[:_NAMED])}"
    counts = f"it is {late.last.counts}"
    lines = (line,) if late.significant else (line, f"{counts}, which may be chance")
    return [Fact("late", "LATE RANK", lines, f"{counts}; means over ranks and traced steps")]


def _notable_ranks(data: Job, ledger: Ledger) -> dict[str, Ledger]:
    """Of several ranks the slowest, the one that waits longest and the late one, by their names in
    the table.
    """
    windows = data.whole_windows
    of_ranks: dict[int | None, Ledger] = {}
    ranks = windows.group("rank")
    for rank, rows in zip(_numbers(windows, ranks), ranks.rows(), strict=True):
        if found := ledger_of(windows.take(rows), data.tables.exposed_parts):
            of_ranks[rank] = found
    slowest = max(of_ranks, key=lambda rank: of_ranks[rank].traced_step_us)
    roles = {slowest: "slowest"}
    if ledger.is_split:
        waiting = max(of_ranks, key=lambda rank: of_ranks[rank].exposed_wait_us or 0.0)
        roles.setdefault(waiting, "waits longest")
    if data.late is not None and data.late.wait_us > 0:
        roles.setdefault(data.late.rank, "late")
    return {f"{_name(rank)}, {role}": of_ranks[rank] for rank, role in roles.items()}


def _numbers(windows: Table, ranks: Groups) -> list[int | None]:
    """The rank of each group, None where it is not known."""
    return [row["rank"] for row in windows.take(ranks.first).records(("rank",))]


def _name(rank: int | None) -> str:
    return "rank unknown" if rank is None else f"rank {rank}"


def ledger_table(data: Job) -> TextTable | None:
    """A traced step and the parts that add up to it: the mean of all ranks, the slowest rank, the
    one that waits longest and the late one. None without a known step.
    """
    ledger, windows = data.ledger, data.whole_windows
    if ledger is None:
        return None
    ranks = windows.group("rank")
    first, *others = map(_name, _numbers(windows, ranks))
    rows = {"mean of ranks" if others else first: ledger}
    if len(ranks) > 1:
        rows |= _notable_ranks(data, ledger)
    note = f"{_means_over(ledger)}; wait, transfer and other are exposed communication"
    if not ledger.is_split:
        note = f"{note}; other includes all of it, as no collective was matched across all ranks"
    names = {"traced_step": "traced", **STEP_PARTS}
    fields = [Field("", "of"), *(Field(name, f"{part}_us", "time") for part, name in names.items())]
    title = f"Where a step goes [{{unit}}]: {' + '.join(STEP_PARTS.values())} = traced"
    records = [{"of": of, **vars(found)} for of, found in rows.items()]
    return table_of(title, fields, records, [note])
