"""`dpscope whatif TABLE.csv`: steps of configurations that were not measured, from a table of measured ones."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.what_if.from_table import Score, TableFit, fit_table, link_rate_gb_per_s, predict_step, score
from dpscope.analysis.what_if.prediction import BAND, Prediction, answer_sentences, show_ms
from dpscope.analysis.what_if.step_model import LEVELS
from dpscope.analysis.what_if.step_table import (
    Identity,
    MeasuredStep,
    Placement,
    comparable,
    read_step_table,
    series_of,
    without_results,
)
from dpscope.profiling.records.finding import counted

_ALL = "all series"
_MOST_SERIES = 4  # listed in a sentence


@dataclass(frozen=True)
class TableAnswer:
    """`configurations` are what is predicted from the fits of a table's series, each with its measured step, 0 if unknown."""

    fits: Mapping[Identity, TableFit | str]
    configurations: Sequence[MeasuredStep]
    gradient_bytes: float | None = None

    @property
    def several(self) -> bool:
        return len({row.identity for row in self.configurations}) > 1

    @property
    def measured(self) -> bool:
        return any(row.step_us for row in self.configurations)

    @property
    def fitted(self) -> dict[Identity, TableFit]:
        """The series that have a fit."""
        return {identity: fit for identity, fit in self.fits.items() if isinstance(fit, TableFit)}

    @cached_property
    def predictions(self) -> list[Prediction]:
        """In the order of the configurations."""
        return [predict_step(self.fits.get(row.identity, self._unknown(row)), row) for row in self.configurations]

    def _unknown(self, row: MeasuredStep) -> str:
        known = [_label(identity) for identity in self.fits]
        more = f" and {len(known) - _MOST_SERIES} more" if len(known) > _MOST_SERIES else ""
        return f"the table has no rows of {_label(row.identity)}; it has {'; '.join(known[:_MOST_SERIES])}{more}"

    @cached_property
    def left_out_errors(self) -> dict[str, Score]:
        """By series, of the table's rows, each predicted without those of its device count."""
        return {_label(identity): score(fit, fit.left_out) for identity, fit in self.fitted.items() if fit.left_out}

    @cached_property
    def scores(self) -> dict[str, Score]:
        """By series, of the configurations with a measured step."""
        known = [pair for pair in zip(self.configurations, self.predictions, strict=True) if pair[0].step_us]
        groups = {identity: [pair for pair in known if pair[0].identity == identity] for identity in self.fitted}
        return {_label(identity): score(self.fitted[identity], mine) for identity, mine in groups.items() if mine}

    @cached_property
    def link_rates(self) -> list[tuple[str, str, float | None]]:
        """Series, link and bus bandwidth in GB/s, None where compute hides it; empty without the size of the gradients."""
        return [
            (_label(identity), name, link_rate_gb_per_s(fit, link, self.gradient_bytes))
            for identity, fit in self.fitted.items()
            for link, name in enumerate(LEVELS)
            if self.gradient_bytes is not None and fit.largest(link)
        ]

    def as_json(self) -> str:
        """One entry per configuration, with the errors and scores by series."""
        labelled = zip(self.configurations, self.predictions, strict=True)
        content: dict[str, object] = {
            "predictions": [{**one.as_plain(), "series": _label(row.identity)} for row, one in labelled],
            "own_error": {name: asdict(one) for name, one in self.left_out_errors.items()},
            "score": {name: asdict(one) for name, one in self.scores.items()},
        }
        if self.link_rates:
            names = ("series", "link", "gb_per_s")
            content["link_rates"] = [dict(zip(names, rate, strict=True)) for rate in self.link_rates]
        return json.dumps(content, indent=1, allow_nan=False)


def predict_table(
    path: Path,
    devices: Sequence[int],
    per_node: int | None = None,
    batch_sizes: Sequence[int] | None = None,
    gradient_bytes: float | None = None,
) -> TableAnswer:
    """Every series of a table at the given configurations; by default placed and batched as the table is.

    Raises DpscopeError for an unreadable table.
    """
    series = series_of(without_results(read_step_table(path)))
    configurations = [
        MeasuredStep(_place(rows, count, per_node), batch, 0.0, None, count == 1, identity)
        for identity, rows in series.items()
        for batch in batch_sizes or [_usual_batch(rows)]
        for count in devices
    ]
    return TableAnswer({identity: fit_table(rows) for identity, rows in series.items()}, configurations, gradient_bytes)


def score_table(path: Path, measured: Path, gradient_bytes: float | None = None) -> TableAnswer:
    """Every row of `measured` predicted from the table alone, in its order, and compared with its time where it has one."""
    rows, truths = comparable(read_step_table(path), read_step_table(measured, times=False))
    fits = {identity: fit_table(mine) for identity, mine in series_of(rows).items()}
    return TableAnswer(fits, truths, gradient_bytes)


def _usual_batch(rows: Sequence[MeasuredStep]) -> int:
    """The batch measured at most device counts; the largest of several."""
    batches = [batch for batch, _ in {(row.batch_size, row.placement.ranks) for row in rows}]
    return max(batches, key=lambda batch: (batches.count(batch), batch))


def _place(rows: Sequence[MeasuredStep], count: int, per_node: int | None) -> Placement:
    """Full nodes; by default of the largest number of devices that the table has on one node, or one node if it names none."""
    if per_node is None and not any(row.placed for row in rows):
        return Placement(count, 1, count)
    each = per_node or max(row.placement.most_per_node for row in rows)
    return Placement(count, -(-count // each), min(count, each))


def _label(identity: Identity) -> str:
    return ", ".join(value for _, value in identity if value) or _ALL


def prediction_table(answer: TableAnswer) -> TextTable:
    """The predictions with their bands, and what each rests on or why there is none."""
    rows, grounds = [], dict[str, list[int]]()
    for row, one in zip(answer.configurations, answer.predictions, strict=True):
        series = {"series": _label(row.identity)} if answer.several else {}
        cells = {"devices": str(one.devices), "nodes": str(one.nodes), "batch": str(one.batch_size or "NA")}
        cells |= {"step [ms]": show_ms(one.step_us), f"{BAND:.0%} band [ms]": one.band}
        cells |= {"exposed [ms]": show_ms(one.exposed_us), "efficiency [%]": one.percent}
        if answer.measured:
            error = one.step_us / row.step_us - 1 if one.step_us and row.step_us else None
            cells["measured [ms]"] = show_ms(row.step_us or None)
            cells["error [%]"] = "NA" if error is None else f"{100 * error:+.1f}"
        rows.append(series | cells)
        ground = ": ".join([*series.values(), one.reason or f"rests on {one.rests_on}"])
        grounds.setdefault(ground, []).append(one.devices)
    notes = tuple(f"{_counts(sorted({*counts}))}: {text}" for text, counts in grounds.items())
    values = tuple(tuple(one.values()) for one in rows)
    return TextTable("Steps that were not measured, estimated from the table", tuple(rows[0]), values, notes=notes)


def _counts(counts: Sequence[int]) -> str:
    listed = ", ".join(map(str, counts)) if len(counts) <= 6 else f"{counts[0]} to {counts[-1]}"
    return f"{listed} device{'' if counts == [1] else 's'}"


def table_answer_sentences(answer: TableAnswer) -> list[str]:
    """The answer in words; for measured rows, how well they were predicted."""
    if answer.measured:
        return [_of(name) + _score_sentence(one) for name, one in answer.scores.items()]
    labels = [counted(row.placement.ranks, "device") for row in answer.configurations]
    for index, row in enumerate(answer.configurations):
        if len({row.batch_size for row in answer.configurations}) > 1:
            labels[index] += f" with {counted(row.batch_size, 'sample')} each"
        if answer.several:
            labels[index] = f"{_label(row.identity)}, {labels[index]}"
    return answer_sentences(labels, answer.predictions)


def error_sentences(answer: TableAnswer) -> list[str]:
    """The model's error on the table's own rows, and the fitted rates of its links."""
    sentences = [
        f"{_of(name)}{counted(one.rows, 'measured row')} predicted without the rows of the same device count: {_errors(one)}."
        for name, one in answer.left_out_errors.items()
    ]
    for series, link, rate in answer.link_rates:
        text = "the transfer of the gradients hides under compute, so that its rate is not known"
        if rate is not None:
            text = f"the gradients travel at {rate:.3g} GB/s (bus bandwidth, estimated by the fit)"
        sentences.append(f"{_of(series)}{link}, {text}.")
    return sentences


def _of(series: str) -> str:
    return "" if series == _ALL else f"{series}: "


def _score_sentence(one: Score) -> str:
    if one.declined == one.rows:
        return f"none of {counted(one.rows, 'row')} predicted, for the reasons below."
    exposed = "" if one.exposed_error is None else f", of exposed communication: {_percent(one.exposed_error)}"
    return (
        f"{one.rows - one.declined} of {one.rows} rows predicted: {_errors(one)}. {_percent(one.inside)} of the truths lie in "
        f"the {BAND:.0%} bands, whose median half width is {_percent(one.half_width)}. Median error of the overhead "
        f"t_N - t_1: {_percent(one.overhead_error)}{exposed}."
    )


def _errors(one: Score) -> str:
    rules = ", ".join(f"{rule} {_percent(off)}" for rule, off in one.rules.items())
    return f"median error of the step {_percent(one.step_error)}, worst {_percent(one.worst_step_error)} (simple rules: {rules})"


def _percent(share: float | None) -> str:
    return "NA" if share is None else f"{100 * share:.1f}%"
