"""A ledger in words: the rank that a job waits for, the cost of communication, and why tracing may hide it."""

from dataclasses import dataclass

from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.runs.traced_job import CellStraggler
from dpscope.analysis.stats.samples import CONFIDENCE
from dpscope.analysis.text.text_table import Field, TextTable, table_of
from dpscope.analysis.text.units import Unit, choose_unit, show, show_bytes, show_time, with_article
from dpscope.analysis.traces.ranks.ledger import STEP_PARTS, Ledger
from dpscope.analysis.traces.reading.table import Table
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.strategies import is_known, traits_of

_MOST = 0.5  # of the exposed waiting (and twice an even share), from which on a rank is named without a test
_FEW_STEPS = 5  # traced: below it chance cannot be excluded


@dataclass(frozen=True)
class LateRank:
    """`wait_us` is the exposed waiting for it per step, broadcasts included; `share` its part of all exposed waiting.

    `significant`: as in `CellData.straggler`. `idle_us` is its idle time per step, `unlaunched_us` the part of it in which
    nothing was launched for its device; None is unknown.
    """

    rank: int
    wait_us: float
    share: float
    significant: bool
    steps: int
    idle_us: float | None = None
    unlaunched_us: float | None = None

    @property
    def certainty(self) -> str:
        """Empty if the rank is significant, else the number of traced steps in brackets."""
        few = f" (of {counted(self.steps, 'traced step')}: too few to exclude chance)"
        return "" if self.significant else few


def late_rank(windows: Table, straggler: CellStraggler | None, ledger: Ledger | None) -> LateRank | None:
    """The rank that causes most exposed waiting; None if the waiting is spread over ranks, or unknown.

    `windows` are the whole traced steps, `straggler` is their significant straggler.
    """
    if ledger is None or not ledger.is_split or not len(windows):
        return None
    numbered = [name for name in ("repeat", "step") if name in windows]
    steps, ranks = len(windows.group(*numbered)), len(windows.group("rank"))
    waits, total, broadcasts = ledger.wait_by_rank_us, ledger.exposed_wait_us or 0.0, 0.0
    if straggler is not None:
        rank, broadcasts = straggler.rank, ledger.other_by_kind_us.get("broadcast", 0.0)
    elif not waits or total <= 0 or steps >= _FEW_STEPS:
        return None
    else:
        rank = max(waits, key=lambda one: waits[one])
        if waits[rank] < max(_MOST, 2 / ranks) * total:
            return None
    of_rank = windows.take(windows["rank"] == rank)
    idle, unlaunched = (of_rank[name][of_rank.known(name)] for name in ("idle_us", "unlaunched_us"))
    return LateRank(
        rank=rank,
        wait_us=waits.get(rank, 0.0) + broadcasts,
        share=waits.get(rank, 0.0) / total if total else 1.0,
        significant=straggler is not None,
        steps=steps,
        idle_us=float(idle.mean()) if len(idle) else None,
        unlaunched_us=float(unlaunched.mean()) if len(unlaunched) else None,
    )


_TRACED_APART = 0.1  # of the untraced step: if the traced one differs by more, both are stated
_NOTHING = 0.005  # of exposed communication: smaller parts are omitted


def cost_text(name: str, strategy: str, ledger: Ledger, late: LateRank | None) -> str:
    """The cost of a cell's communication in a step; its exposed communication must be known."""
    exposed, step = ledger.exposed_us or 0.0, ledger.traced_step_us
    unit = choose_unit("time", [exposed, step, ledger.exposed_wait_us, ledger.exposed_transfer_us])
    who, what = name if is_known(strategy) else "The job", traits_of(strategy).communication
    share = f"{exposed / step:.0%}"
    if (bounds := ledger.intervals.get("exposed")) is not None:
        ends = f"{show(max(bounds.low, 0.0), unit)} to {_time(bounds.high, unit)}"
        share += f"; {CONFIDENCE:.0%} interval {ends}"
    text = f"{who} exposes {_time(exposed, unit)} of {what} in {with_article(_time(step, unit))} traced step ({share})"
    text += _parts(ledger, late, unit)
    hidden = (ledger.communication_us or 0.0) - exposed
    if hidden > _NOTHING * step:
        text += f"; {_time(hidden, unit)} more is hidden behind compute"
        cost_us, ratio, ratios = ledger.contention_us, ledger.contention_ratio, ledger.contention_ratio_interval
        if cost_us is not None and ratio is not None and ratios is not None and ratios.low > 1.0:
            factors = f"{ratio:.2f}x; {CONFIDENCE:.0%} interval {ratios.low:.2f} to {ratios.high:.2f}"
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


def _parts(ledger: Ledger, late: LateRank | None, unit: Unit) -> str:
    """Wait, transfer and the rest by kind, or that they cannot be separated."""
    exposed, kinds = ledger.exposed_us or 0.0, ledger.other_by_kind_us
    wait, transfer = ledger.exposed_wait_us, ledger.exposed_transfer_us
    if not exposed:
        return ""
    if wait is None or transfer is None:
        alone = set(kinds) <= {"copy", "broadcast", "reduce"}
        return "" if alone else ", not split into wait and transfer: no collective was matched across all ranks"
    few = "" if late is None or late.significant else f" in {counted(late.steps, 'traced step')}"
    whom = f" ({late.share:.0%} of it for rank {late.rank}{few})" if late is not None and late.wait_us else ""
    parts = [f"{_time(wait, unit)} waiting for late ranks{whom}", f"{_time(transfer, unit)} transfer"]
    if (ledger.exposed_other_us or 0.0) > _NOTHING * exposed:
        parts += [f"{_time(us, unit)} {kind}" for kind, us in kinds.items() if us > _NOTHING * exposed]
    return f": {', '.join(parts)}"


def ledger_table(ledger: Ledger) -> TextTable:
    """A single row: a traced step and the parts that add up to it, means over ranks and steps."""
    names = dict(zip(("traced_step", *STEP_PARTS), ("traced step", *_PART_NAMES), strict=True))
    note = "means over ranks and steps; wait, transfer and other are exposed communication"
    if not ledger.is_split:
        note = f"{note}; other includes all of it, as no collective was matched across all ranks"
    fields = [Field(name, f"{part}_us", "time") for part, name in names.items()]
    return table_of(f"Where a step goes: {' + '.join(_PART_NAMES)} = traced step", fields, [ledger], [note])


_PART_NAMES = ("compute", "wait", "transfer", "other", "idle")


SLOWED = 1.5  # traced over untraced step, above which no share of a step and no saving is stated


def slowed_by_tracing(row: CellRow) -> float | None:
    """The ratio of a cell's traced to its untraced step if it exceeds SLOWED; None otherwise or if unknown."""
    return row.tracer_cost if row.tracer_cost is not None and row.tracer_cost > SLOWED else None


def slowed_text(row: CellRow, cost: float) -> str:
    """Why such a trace does not show the cost of communication, and what tracing does not change."""
    volume, count, moved = row.bytes_per_step, row.collectives_per_step, ""
    if volume is not None and count is not None:
        moved = f" What tracing does not change: {show_bytes(volume)} a step in {counted(round(count), 'collective')}."
    return (
        f"communication's share of a step is unknown: a traced step takes {cost:.2f}x as long as an untraced one, "
        f"so its parts do not describe the training.{moved}"
    )
