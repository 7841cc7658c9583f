"""Why the subtraction estimates of a cell are off: each reason with the measured number that shows it.

The error against exposed communication is exactly local batch + compute + idle + tracer, by the step's identity. Overlap,
waiting, the loader and imbalance explain those terms, or the distance to all communication.
"""

from dataclasses import dataclass

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.row import CellValues, interval_of, number
from dpscope.analysis.cells.subtraction import FORMULAS, METHODS
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA, Unit, choose_unit, show, show_time

NOTABLE = 0.05  # of communication or of the step
IMBALANCE = 0.1


@dataclass(frozen=True)
class Reason:
    """One reason: `amount_us` is the measured number behind it, `text` says it in words."""

    code: str
    amount_us: float
    text: str


def reasons(values: CellValues) -> list[Reason]:
    """The reasons that this cell's measurements show; `values` is its row of the comparison."""
    found = [
        *_overlap_and_wait(values),
        *_terms(values),
        *_local_batch(values),
        *_loader(values),
        *_imbalance(values),
    ]
    return sorted(found, key=lambda reason: -abs(reason.amount_us))


def comparison_rows(comparison: Comparison) -> list[CellValues]:
    """The comparison's rows by column name."""
    return [{str(name): value for name, value in row.items()} for row in comparison.table.to_dict("records")]


def _overlap_and_wait(values: CellValues) -> list[Reason]:
    total, hidden, wait = (number(values, name) for name in ("communication_us", "hidden_us", "wait_us"))
    found = []
    if total and hidden is not None and hidden > NOTABLE * total:
        text = (
            f"{show_time(hidden)} of communication ({hidden / total:.0%}) ran under compute, and no subtraction sees it"
        )
        found.append(Reason("overlap", hidden, text))
    if total and wait is not None and wait > NOTABLE * total:
        text = f"{show_time(wait)} a step is waiting for a later rank, not transfer"
        found.append(Reason("wait", wait, text))
    return found


_TERMS = {"compute": "slowdown", "idle": "added_idle", "tracer": "added_tracer"}  # their columns, without _us
_TERM_WORDS = {
    "compute": "compute takes {} per step than on one device ({})",
    "idle": "the device idles {} per step than on one device ({})",
    "tracer": "the traced steps do not explain {} of the untraced difference ({})",
}


def _terms(values: CellValues) -> list[Reason]:
    """Terms of the identity whose interval leaves 0 out."""
    found = []
    for term, words in _TERM_WORDS.items():
        value, bounds = number(values, f"{_TERMS[term]}_us"), interval_of(values, f"{_TERMS[term]}_us")
        if value is None or bounds is None or bounds.low <= 0 <= bounds.high:
            continue
        size = show_time(abs(value))
        amount = size if term == "tracer" else f"{size} {'longer' if value > 0 else 'less'}"
        within = f"95% interval {show_time(bounds.low)} to {show_time(bounds.high)}"
        found.append(Reason(term, value, words.format(amount, within)))
    return found


def _local_batch(values: CellValues) -> list[Reason]:
    fixed, whole = (number(values, f"{method}_local_batch_us") for method in ("ideal_split", "same_total"))
    found = []
    if fixed is not None:
        text = f"ideal_split takes t_1(G)/N for t_1(b), which is {_apart(fixed)}"
        found.append(Reason("ideal_split_local_batch", fixed, text))
    if whole is not None:
        text = f"same_total takes t_1(G) for t_1(b), which is {_apart(whole)}"
        found.append(Reason("same_total_local_batch", whole, text))
    return found


def _apart(microseconds: float) -> str:
    return f"{show_time(abs(microseconds))} {'longer' if microseconds > 0 else 'shorter'}"


def _loader(values: CellValues) -> list[Reason]:
    waited, step = number(values, "added_data_wait_us"), number(values, "step_us")
    if waited is None or not step or abs(waited) < 0.01 * step:
        return []
    return [
        Reason("loader", waited, f"waiting for the loader takes {_apart(waited)} per step than on one device (mean)")
    ]


def _imbalance(values: CellValues) -> list[Reason]:
    spread, excess, compute = (
        number(values, name) for name in ("compute_spread", "first_device_excess_us", "compute_us")
    )
    if excess is not None and compute and excess > NOTABLE * compute:
        return [Reason("imbalance", excess, f"device 0 computes {show_time(excess)} a step longer than the others")]
    if spread is None or not compute or spread < IMBALANCE:
        return []
    return [Reason("imbalance", spread * compute, f"compute differs between devices by {spread:.0%} of its mean")]


def error_table(comparison: Comparison) -> TextTable | None:
    """Each estimate's error against exposed communication in the terms that make it up; None without any."""
    names = ("error", "local batch", "compute", "idle", "tracer")
    rows: list[tuple[str, str, list[float | None]]] = []
    for values in comparison_rows(comparison):
        for method in METHODS:
            error = number(values, f"{method}_error_exposed_us")
            if error is None:
                continue
            local = 0.0 if method == "same_local_batch" else number(values, f"{method}_local_batch_us")
            rest = [number(values, f"{column}_us") for column in _TERMS.values()]
            rows.append((str(values["cell"]), FORMULAS[method], [error, local, *rest]))
    if not rows:
        return None
    unit = choose_unit("time", [value for _, _, parts in rows for value in parts])
    return TextTable(
        title="Why the estimates miss exposed communication: error = local batch + compute + idle + tracer",
        headings=("cell", "estimate", *(f"{name} [{unit.label}]" for name in names)),
        rows=tuple((cell, formula, *(show(value, unit) for value in parts)) for cell, formula, parts in rows),
        notes=(
            "local batch: the step on one device that the estimate subtracts is not t_1(b), the same work per device",
            *([f"{NA}: no traced single-device cell at this batch per device"] if _lacks(rows) else []),
        ),
    )


def _lacks(rows: list[tuple[str, str, list[float | None]]]) -> bool:
    return any(value is None for _, _, parts in rows for value in parts)


def identity_table(comparison: Comparison) -> TextTable | None:
    """t_N(b) - t_1(b) in its four terms with half the width of their 95% intervals; None without any."""
    names = ("same_local_batch", "exposed", *_TERMS.values())
    known = [values for values in comparison_rows(comparison) if number(values, "added_tracer_us") is not None]
    if not known:
        return None
    unit = choose_unit("time", [number(values, f"{name}_us") for values in known for name in names])
    headings = ("t_N(b)-t_1(b)", "exposed", "compute", "idle", "tracer")
    return TextTable(
        title="Where the added time t_N(b) - t_1(b) goes: exposed + compute + idle + tracer",
        headings=("cell", *(f"{name} [{unit.label}]" for name in headings)),
        rows=tuple(
            (str(values["cell"]), *(_with_half_width(values, name, unit) for name in names)) for values in known
        ),
        notes=(
            "±: half the 95% interval; compute and idle: change against one device; tracer: what the traced "
            "windows do not explain of the untraced difference",
            *(
                [f"±{NA}: fewer than 5 steps, or one repeat alone"]
                if any(_no_interval(values) for values in known)
                else []
            ),
        ),
    )


def _no_interval(values: CellValues) -> bool:
    return any(interval_of(values, column) is None for column in ("same_local_batch_us", "exposed_us"))


def _with_half_width(values: CellValues, name: str, unit: Unit) -> str:
    bounds = interval_of(values, f"{name}_us")
    half = NA if bounds is None else show(bounds.half_width, unit)
    return f"{show(number(values, f'{name}_us'), unit)} ±{half}"
