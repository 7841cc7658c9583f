"""Why the subtraction estimates of a cell are off: each reason with its measured number.

By definition of the step, the error relative to exposed communication is exactly local batch + compute + idle + tracer. Overlap,
waiting, the loader and imbalance explain those terms, or the difference from all communication.
"""

from collections.abc import Iterator
from typing import NamedTuple

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.estimated import FORMULAS
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.text.text_table import Field, TextTable, table_of
from dpscope.analysis.text.units import NA, choose_unit, show, show_time

NOTABLE = 0.05  # of communication or of the step
IMBALANCE = 0.1


_TERMS = {"compute": "slowdown", "idle": "added_idle", "tracer": "added_tracer"}  # column names without _us


class Reason(NamedTuple):
    """One reason: `amount_us` is the measured number, `text` describes it."""

    code: str
    amount_us: float
    text: str


def reasons(row: CellRow) -> list[Reason]:
    """The reasons that this cell's measurements show, the largest first; terms of the identity if they are significant."""
    return sorted(_reasons(row), key=lambda reason: -abs(reason.amount_us))


def _reasons(row: CellRow) -> Iterator[Reason]:
    total, hidden, wait = row.communication_us, row.hidden_us, row.wait_us
    if total and hidden is not None and hidden > NOTABLE * total:
        text = f"{show_time(hidden)} of communication ({hidden / total:.0%}) ran during compute, which a subtraction cannot see"
        yield Reason("overlap", hidden, text)
    if total and wait is not None and wait > NOTABLE * total:
        yield Reason("wait", wait, f"{show_time(wait)} a step is waiting for a later rank, not transfer")
    for term, words in (
        ("compute", "compute takes {} per step than on one device ({})"),
        ("idle", "the device idles {} per step than on one device ({})"),
        ("tracer", "the traced steps do not explain {} of the untraced difference ({})"),
    ):
        value, bounds = row.number(f"{_TERMS[term]}_us"), row.interval(f"{_TERMS[term]}_us")
        if value is not None and bounds is not None and not bounds.low <= 0 <= bounds.high:
            amount = _apart(value, "" if term == "tracer" else " longer", "" if term == "tracer" else " less")
            within = f"95% interval {show_time(bounds.low)} to {show_time(bounds.high)}"
            yield Reason(term, value, words.format(amount, within))
    for method, baseline in (("ideal_split", "t_1(G)/N"), ("same_total", "t_1(G)")):
        local = row.number(f"{method}_local_batch_us")
        if local is not None:
            text = f"{method} uses {baseline} instead of t_1(b), which is {_apart(local)}"
            yield Reason(f"{method}_local_batch", local, text)
    waited, step = row.added_data_wait_us, row.step_us
    if waited is not None and step and abs(waited) >= 0.01 * step:
        text = f"waiting for the loader takes {_apart(waited)} per step than on one device (mean)"
        yield Reason("loader", waited, text)
    spread, excess, compute = row.compute_spread, row.first_device_excess_us, row.compute_us
    if excess is not None and compute and excess > NOTABLE * compute:
        yield Reason("imbalance", excess, f"device 0 computes {show_time(excess)} a step longer than the others")
    elif spread is not None and compute and spread >= IMBALANCE:
        yield Reason("imbalance", spread * compute, f"compute differs between devices by {spread:.0%} of its mean")


def _apart(microseconds: float, more: str = " longer", less: str = " shorter") -> str:
    return f"{show_time(abs(microseconds))}{more if microseconds > 0 else less}"


def error_table(comparison: Comparison) -> TextTable | None:
    """Each estimate's error relative to exposed communication, by term; None if no error is known."""
    rows: list[dict[str, str | float | None]] = []
    for row in comparison.rows.values():
        for method, formula in FORMULAS.items():
            if (error := row.number(f"{method}_error_exposed_us")) is None:
                continue
            local = 0.0 if method == "same_local_batch" else row.number(f"{method}_local_batch_us")
            terms = {name: row.number(f"{column}_us") for name, column in _TERMS.items()}
            rows.append({"cell": row.cell, "estimate": formula, "error": error, "local batch": local, **terms})
    if not rows:
        return None
    names = ("error", "local batch", *_TERMS)
    notes = ["local batch: the estimate does not subtract t_1(b), the step with the same work per device"]
    if any(row[name] is None for row in rows for name in names):
        notes.append(f"{NA}: no traced single-device cell at this batch per device")
    fields = (Field("cell", "cell"), Field("estimate", "estimate"), *(Field(name, name, "time") for name in names))
    title = "Why the estimates differ from exposed communication: error = local batch + compute + idle + tracer"
    return table_of(title, fields, rows, notes)


def identity_table(comparison: Comparison) -> TextTable | None:
    """The four terms of t_N(b) - t_1(b) with half the width of their 95% intervals; None if none is known."""
    names = {"t_N(b)-t_1(b)": "same_local_batch", "exposed": "exposed", **_TERMS}
    known = [row for row in comparison.rows.values() if row.added_tracer_us is not None]
    if not known:
        return None
    unit = choose_unit("time", [row.number(f"{name}_us") for row in known for name in names.values()])

    def with_half_width(row: CellRow, column: str) -> str:
        bounds = row.interval(column)
        return f"{show(row.number(column), unit)} ±{NA if bounds is None else show(bounds.half_width, unit)}"

    notes = [
        "±: half the 95% interval; compute and idle: change compared with one device; tracer: the part of the untraced "
        "difference that the traced steps do not explain"
    ]
    if any(row.interval(column) is None for row in known for column in ("same_local_batch_us", "exposed_us")):
        notes.append(f"±{NA}: fewer than 5 steps, or one repeat alone")
    return TextTable(
        title="Where the added time t_N(b) - t_1(b) goes: exposed + compute + idle + tracer",
        headings=("cell", *(f"{name} [{unit.label}]" for name in names)),
        rows=tuple((row.cell, *(with_half_width(row, f"{name}_us") for name in names.values())) for row in known),
        notes=tuple(notes),
    )
