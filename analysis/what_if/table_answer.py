"""`dpscope whatif TABLE.csv`: steps of configurations that were not measured, from a table of measured ones."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path

import numpy as np

from dpscope.analysis.stats.samples import Floats
from dpscope.analysis.text.text_table import Field, TextTable, table_of
from dpscope.analysis.what_if.prediction import (
    BAND,
    MS,
    Prediction,
    answer_sentences,
    check_reach,
    grounds,
    prediction_fields,
)
from dpscope.analysis.what_if.step_model import HIDDEN, TableFit, fit_table, predict_step
from dpscope.analysis.what_if.step_table import LINKS, Identity, MeasuredStep, comparable, read_step_table, series_of
from dpscope.profiling.records.finding import counted

_ALL = "all series"
_MOST_SERIES = 4  # listed in a sentence
_RULES = ("perfect scaling", "nothing changes", "straight line in 1/N")


@dataclass(frozen=True)
class Score:
    """Medians over the predicted rows; errors are shares. None where nothing of the kind was predicted.

    `overhead_error` is |predicted - measured| / (measured - t_1), which is 1 for perfect scaling. `inside` is the share of
    truths in the 90% bands; `rules` has the step's median error by each simple rule, on the same rows.
    """

    rows: int
    declined: int
    step_error: float | None
    worst_step_error: float | None
    overhead_error: float | None
    exposed_error: float | None
    inside: float | None
    half_width: float | None
    rules: dict[str, float | None]


def score(fit: TableFit, rows: Sequence[tuple[MeasuredStep, Prediction]]) -> Score:
    """How well the predictions of one fit describe measured rows."""
    pairs = [(row, one) for row, one in rows if one.step_us is not None]
    columns = [(one.step_us, one.low_us, one.high_us, one.exposed_us, row.step_us, row.sync_us) for row, one in pairs]
    step, low, high, exposed, true, sync = np.array(columns, dtype=float).reshape(-1, 6).T
    rules = np.array([_simple_rules(fit, row) for row, _ in pairs], dtype=float).reshape(-1, len(_RULES)).T
    off, alone = np.abs(step / true - 1), rules[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        overhead = (off * true / (true - alone))[true > alone]
    long = sync > HIDDEN * true
    inside = ((low <= true) & (true <= high))[np.isfinite(low)]
    return Score(
        rows=len(rows),
        declined=len(rows) - len(pairs),
        step_error=_median(off),
        worst_step_error=float(off.max()) if len(off) else None,
        overhead_error=_median(overhead),
        exposed_error=_median(np.abs(exposed[long] / sync[long] - 1)),
        inside=float(inside.mean()) if len(inside) else None,
        half_width=_median((high - low) / 2 / step),
        rules={rule: _median(np.abs(values / true - 1)) for rule, values in zip(_RULES, rules, strict=True)},
    )


def _simple_rules(fit: TableFit, truth: MeasuredStep) -> tuple[float | None, ...]:
    """In the order of _RULES: t_1; the step at the largest count of the same batch; a line through its counts over 1/N."""
    unchanged, line = None, None
    if points := [(row.ranks, row.step_us) for row in fit.rows if row.batch_size == truth.batch_size]:
        counts, steps = np.array(points).T
        unchanged = float(np.median(steps[counts == counts.max()]))
        if len(set(counts)) > 1:
            line = float(np.polyval(np.polyfit(1 / counts, steps, 1), 1 / truth.ranks))
    return fit.single.at(truth.batch_size) if fit.single.measured else None, unchanged, line


def _median(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else None


@dataclass(frozen=True)
class TableAnswer:
    """Predictions from a table, each with its series and its row, whose step is 0 if it was not measured.

    By series, `own_error` is of the table's rows, each predicted without those of its device count, and `score` of the measured
    rows. `link_rates` are series, link and bus bandwidth in GB/s, None where compute hides it.
    """

    predictions: Sequence[tuple[str, MeasuredStep, Prediction]]
    own_error: Mapping[str, Score]
    score: Mapping[str, Score]
    link_rates: Sequence[tuple[str, str, float | None]]
    layout: str = ""  # on which nodes the requested devices are, if rows were not given

    @property
    def several(self) -> bool:
        return len({row.identity for _, row, _ in self.predictions}) > 1

    @property
    def measured(self) -> bool:
        return any(row.step_us for _, row, _ in self.predictions)

    def as_json(self) -> str:
        """One entry per configuration, with the errors and scores by series."""
        content: dict[str, object] = {
            "predictions": [{**one.as_plain(), "series": series} for series, _, one in self.predictions],
            "own_error": {series: asdict(one) for series, one in self.own_error.items()},
            "score": {series: asdict(one) for series, one in self.score.items()},
        }
        if self.layout:
            content["layout"] = self.layout
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
    """Every series of a table at the given configurations.

    By default nodes are as full as the fullest in the table, all devices are on one if it names none, and the batch is the one
    measured at most device counts, the largest of several. Raises DpscopeError for an unreadable table, and for a device count
    far beyond all of its rows.
    """
    series, wanted, fullest_nodes = series_of(read_step_table(path)), list[MeasuredStep](), set[int | None]()
    check_reach(devices, max(row.ranks for rows in series.values() for row in rows))
    for identity, rows in series.items():
        batches = [batch for batch, _ in {(row.batch_size, row.ranks) for row in rows}]
        usual = max(batches, key=lambda batch: (batches.count(batch), batch))
        fullest = max(row.most_per_node for row in rows) if any(row.placed for row in rows) else None
        for batch in batch_sizes or [usual]:
            for count in devices:
                most = min(count, per_node or fullest or count)
                fullest_nodes.add(per_node or fullest)
                wanted.append(MeasuredStep(count, -(-count // most), most, batch, 0.0, None, count == 1, identity))
    return replace(_answer(series, wanted, gradient_bytes), layout=_layout(per_node, fullest_nodes, max(devices)))


def _layout(per_node: int | None, fullest: set[int | None], most: int) -> str:
    if per_node is not None:
        return "Layout: devices per node as stated."
    if None in fullest:
        return (
            f"Layout assumed: one node with all {counted(most, 'device')}, as the table names no nodes; for several give "
            "--per-node, and a column nodes."
        )
    return (
        f"Layout: full nodes of {' or '.join(map(str, sorted(one or 0 for one in fullest)))} devices, as in the table."
    )


def score_table(path: Path, measured: Path, gradient_bytes: float | None = None) -> TableAnswer:
    """Every row of `measured` predicted from the table alone, in its order, and compared with its time where it has one."""
    rows, truths = comparable(read_step_table(path), read_step_table(measured, times=False))
    return _answer(series_of(rows), truths, gradient_bytes)


def _answer(
    table: Mapping[Identity, Sequence[MeasuredStep]], rows: Sequence[MeasuredStep], gradient_bytes: float | None
) -> TableAnswer:
    fits = {identity: fit_table(mine) for identity, mine in table.items()}
    known = [_label(identity) for identity in fits]
    listed = "; ".join(known[:_MOST_SERIES]) + f" and {len(known) - _MOST_SERIES} more" * (len(known) > _MOST_SERIES)
    predictions = []
    for row in rows:
        unknown = f"the table has no rows of {_label(row.identity)}; it has {listed}"
        predictions.append((_label(row.identity), row, predict_step(fits.get(row.identity, unknown), row)))
    fitted = {identity: fit for identity, fit in fits.items() if isinstance(fit, TableFit)}
    truths = {of: [(row, one) for _, row, one in predictions if row.step_us and row.identity == of] for of in fitted}
    return TableAnswer(
        predictions,
        {_label(of): score(fit, fit.left_out) for of, fit in fitted.items() if fit.left_out},
        {_label(of): score(fit, truths[of]) for of, fit in fitted.items() if truths[of]},
        [
            (_label(of), name, fit.link_rate_gb_per_s(link, gradient_bytes))
            for of, fit in fitted.items()
            for link, name in enumerate(LINKS)
            if gradient_bytes is not None and fit.largest(link)
        ],
    )


def _label(identity: Identity) -> str:
    return ", ".join(value or "-" for _, value in identity) if any(dict(identity).values()) else _ALL


def prediction_table(answer: TableAnswer) -> TextTable:
    """The predictions with their bands, and what each rests on or why there is none."""
    fields = [Field("series", itemgetter(0))] if answer.several else []
    fields += prediction_fields(itemgetter(2))
    if answer.measured:
        fields += [Field("measured", lambda row: row[1].step_us or None, MS), Field("error [%]", _error)]
    by_series: dict[str, list[Prediction]] = {}
    for series, _, one in answer.predictions:
        by_series.setdefault(f"{series}: " * answer.several, []).append(one)
    notes = [prefix + text for prefix, mine in by_series.items() for text in grounds(mine)]
    return table_of("Steps that were not measured, estimated from the table", fields, answer.predictions, notes)


def _error(row: tuple[str, MeasuredStep, Prediction]) -> str | None:
    _, measured, one = row
    return f"{100 * (one.step_us / measured.step_us - 1):+.1f}" if one.step_us and measured.step_us else None


def table_answer_sentences(answer: TableAnswer) -> list[str]:
    """The answer in words; for measured rows, how well they were predicted."""
    if answer.measured:
        return [_of(series) + _score_sentence(one) for series, one in answer.score.items()]
    batches = {row.batch_size for _, row, _ in answer.predictions}
    labels = [
        f"{series}, " * answer.several
        + counted(row.ranks, "device")
        + f" with {counted(row.batch_size, 'sample')} each" * (len(batches) > 1)
        for series, row, _ in answer.predictions
    ]
    return [answer.layout, *answer_sentences(labels, [one for _, _, one in answer.predictions])]


def error_sentences(answer: TableAnswer) -> list[str]:
    """The model's error on the table's own rows, and the fitted rates of its links."""
    sentences = [
        f"{_of(name)}{counted(one.rows, 'measured row')} predicted without the rows of the same device count: {_errors(one)}."
        for name, one in answer.own_error.items()
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
