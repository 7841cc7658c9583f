"""`dpscope whatif TABLE.csv`: steps of configurations that were not measured, from a table of measured ones."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.what_if.from_table import Score, TableFit, fit_table, link_rate_gb_per_s, predict_step, score
from dpscope.analysis.what_if.prediction import BAND, Prediction, answer_sentences
from dpscope.analysis.what_if.step_model import LEVELS
from dpscope.analysis.what_if.step_table import (
    Identity,
    MeasuredStep,
    Placement,
    comparable,
    measures,
    read_step_table,
    series_of,
    without,
)
from dpscope.profiling.records.finding import counted

_ALL = "all series"
_MOST_SERIES = 4  # listed in a sentence

Fits = Mapping[Identity, TableFit | str]


@dataclass(frozen=True)
class TableAnswer:
    """`predictions` with their series; `own_errors`: rows of each series predicted without their device count; `scores`: against
    the rows of another table; `link_rates`: series, link and bus bandwidth in GB/s, None where compute hides it."""

    predictions: tuple[tuple[str, Prediction], ...]
    own_errors: Mapping[str, Score]
    scores: Mapping[str, Score]
    truths_us: tuple[float | None, ...]
    link_rates: tuple[tuple[str, str, float | None], ...]

    @property
    def several(self) -> bool:
        return len({series for series, _ in self.predictions}) > 1

    def as_json(self) -> str:
        """One entry per configuration, with the errors and scores by series."""
        content = {
            "predictions": [{**one.as_plain(), "series": series} for series, one in self.predictions],
            "own_error": {name: asdict(one) for name, one in self.own_errors.items()},
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
    rows = read_step_table(path)
    series = series_of(without(rows, measures(rows)))
    fits = {identity: fit_table(mine) for identity, mine in series.items()}
    predictions = [
        (_label(identity), _predict(fits[identity], _place(mine, count, per_node), batch))
        for identity, mine in series.items()
        for batch in batch_sizes or [_usual_batch(mine)]
        for count in devices
    ]
    return TableAnswer(tuple(predictions), _own_errors(fits), {}, (), _link_rates(fits, gradient_bytes))


def score_table(path: Path, measured: Path, gradient_bytes: float | None = None) -> TableAnswer:
    """Every row of `measured` predicted from the table alone, in its order, and compared with its time where it has one."""
    rows, truths = comparable(read_step_table(path), read_step_table(measured, times=False))
    fits = {identity: fit_table(mine) for identity, mine in series_of(rows).items()}
    predictions = [
        _predict(fits.get(truth.identity, _unknown(path, fits, truth)), truth.placement, truth.batch_size, truth.single)
        for truth in truths
    ]
    scores = {}
    for identity, fit in fits.items():
        mine = [index for index, truth in enumerate(truths) if truth.identity == identity and truth.step_us > 0]
        if mine and isinstance(fit, TableFit):
            scores[_label(identity)] = score(fit, [predictions[i] for i in mine], [truths[i] for i in mine])
    return TableAnswer(
        tuple((_label(truth.identity), one) for truth, one in zip(truths, predictions, strict=True)),
        _own_errors(fits),
        scores,
        tuple(truth.step_us or None for truth in truths) if any(truth.step_us for truth in truths) else (),
        _link_rates(fits, gradient_bytes),
    )


def _unknown(path: Path, fits: Fits, truth: MeasuredStep) -> str:
    known = [_label(one) for one in fits]
    more = f" and {len(known) - _MOST_SERIES} more" if len(known) > _MOST_SERIES else ""
    return f"{path} has no rows of {_label(truth.identity)}; it has {'; '.join(known[:_MOST_SERIES])}{more}"


def _predict(fit: TableFit | str, place: Placement, batch_size: int, single: bool | None = None) -> Prediction:
    if isinstance(fit, str):
        return Prediction(place.ranks, place.nodes, batch_size or None, reason=fit)
    return replace(predict_step(fit, place, batch_size, single), batch_size=batch_size or None)


def _own_errors(fits: Fits) -> dict[str, Score]:
    return {
        _label(identity): score(fit, [one for _, one in fit.left_out], [row for row, _ in fit.left_out])
        for identity, fit in fits.items()
        if isinstance(fit, TableFit) and fit.left_out
    }


def _link_rates(fits: Fits, gradient_bytes: float | None) -> tuple[tuple[str, str, float | None], ...]:
    return tuple(
        (_label(identity), name, link_rate_gb_per_s(fit, place, gradient_bytes))
        for identity, fit in fits.items()
        if gradient_bytes is not None and isinstance(fit, TableFit)
        for name, place in zip(LEVELS, (Placement(2, 1, 2), Placement(2, 2, 1)), strict=True)
        if fit.largest(place)
    )


def _usual_batch(rows: Sequence[MeasuredStep]) -> int:
    """The batch measured at most device counts; the largest of several."""
    counts: dict[int, set[int]] = {}
    for row in rows:
        counts.setdefault(row.batch_size, set()).add(row.placement.ranks)
    return max(counts, key=lambda batch: (len(counts[batch]), batch))


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
    headings = ["series"] * answer.several
    headings += ["devices", "nodes", "batch", "step [ms]", f"{BAND:.0%} band [ms]", "exposed [ms]", "efficiency [%]"]
    headings += ["measured [ms]", "error [%]"] if answer.truths_us else []
    rows, grounds = [], dict[str, list[int]]()
    for index, (series, one) in enumerate(answer.predictions):
        band = "NA" if one.low_us is None else f"{_ms(one.low_us)} to {_ms(one.high_us)}"
        cells = [series] * answer.several
        cells += [
            str(one.devices),
            str(one.nodes),
            str(one.batch_size or "NA"),
            _ms(one.step_us),
            band,
            _ms(one.exposed_us),
        ]
        cells.append("NA" if one.efficiency is None else f"{100 * one.efficiency:.1f}")
        if answer.truths_us:
            truth = answer.truths_us[index]
            cells += [_ms(truth), f"{100 * (one.step_us / truth - 1):+.1f}" if one.step_us and truth else "NA"]
        rows.append(tuple(cells))
        ground = one.reason or f"rests on {one.rests_on}"
        grounds.setdefault(f"{series}: {ground}" if answer.several else ground, []).append(one.devices)
    notes = tuple(f"{_counts(counts)}: {text}" for text, counts in grounds.items())
    return TextTable(
        "Steps that were not measured, estimated from the table", tuple(headings), tuple(rows), notes=notes
    )


def _counts(counts: Sequence[int]) -> str:
    known = sorted(set(counts))
    listed = ", ".join(map(str, known)) if len(known) <= 6 else f"{known[0]} to {known[-1]}"
    return f"{listed} device{'' if known == [1] else 's'}"


def _ms(value: float | None) -> str:
    return "NA" if value is None else f"{value / 1e3:.1f}"


def table_answer_sentences(answer: TableAnswer) -> list[str]:
    """The answer in words; for measured rows, how well they were predicted."""
    if answer.truths_us:
        return [_of(name) + _score_sentence(one) for name, one in answer.scores.items()]
    batches = len({one.batch_size for _, one in answer.predictions}) > 1
    labels = [
        (f"{series}, " if answer.several else "")
        + counted(one.devices, "device")
        + (f" with {counted(one.batch_size or 0, 'sample')} each" if batches else "")
        for series, one in answer.predictions
    ]
    return answer_sentences(labels, [one for _, one in answer.predictions])


def error_sentences(answer: TableAnswer) -> list[str]:
    """The model's error on the table's own rows, and the fitted rates of its links."""
    sentences = [
        f"{_of(name)}{counted(one.rows, 'measured row')} predicted without the rows of the same device count: median error "
        f"{_percent(one.step_error)}, worst {_percent(one.worst_step_error)} (perfect scaling: "
        f"{_percent(one.rules['perfect scaling'])})."
        for name, one in answer.own_errors.items()
    ]
    for series, link, rate in answer.link_rates:
        text = "the transfer of the gradients hides under compute, so that its rate is not known"
        text = (
            text if rate is None else f"the gradients travel at {rate:.3g} GB/s (bus bandwidth, estimated by the fit)"
        )
        sentences.append(f"{_of(series)}{link}, {text}.")
    return sentences


def _of(series: str) -> str:
    return "" if series == _ALL else f"{series}: "


def _score_sentence(one: Score) -> str:
    if one.declined == one.rows:
        return f"none of {counted(one.rows, 'row')} predicted, for the reasons below."
    rules = {rule: off for rule, off in one.rules.items() if off is not None}
    best = min(rules, key=lambda rule: rules[rule], default=None)
    exposed = "" if one.exposed_error is None else f", of exposed communication: {_percent(one.exposed_error)}"
    against = ""
    if best is not None and one.step_error is not None:
        better = rules[best] < one.step_error
        against = (
            f" The simple rule '{best}' {'does better here' if better else 'has an error of'}: {_percent(rules[best])}."
        )
    return (
        f"{one.rows - one.declined} of {one.rows} rows predicted, the step with a median error of {_percent(one.step_error)} "
        f"(worst {_percent(one.worst_step_error)}).{against} {_percent(one.inside)} of the truths lie in the {BAND:.0%} bands, "
        f"whose median half width is {_percent(one.half_width)}. Median error of the overhead t_N - t_1: "
        f"{_percent(one.overhead_error)}{exposed}. Simple rules on the same rows: "
        f"{', '.join(f'{rule} {_percent(off)}' for rule, off in rules.items())}."
    )


def _percent(share: float | None) -> str:
    return "NA" if share is None else f"{100 * share:.1f}%"
