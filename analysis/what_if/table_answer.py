"""`dpscope whatif TABLE.csv`: configurations that nobody ran, from a table of measured steps, with the method's own error."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.what_if.forecasts import LINKS
from dpscope.analysis.what_if.from_table import TableFit, fit_table, link_rate, predict_step
from dpscope.analysis.what_if.prediction import BAND, Prediction, answer_sentences
from dpscope.analysis.what_if.score import Score, score
from dpscope.analysis.what_if.series import Identity, comparable, measures, series_of, without
from dpscope.analysis.what_if.step_table import MeasuredStep, Placement, read_step_table
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.errors import DpscopeError

_ALL = "all series"
_MOST_SERIES = 4  # that a sentence names


@dataclass(frozen=True)
class Question:
    """What is asked of a table: device counts, devices per node and batches per device; None: as the table has them."""

    devices: tuple[int, ...]
    per_node: int | None = None
    batch_sizes: tuple[int, ...] | None = None


@dataclass(frozen=True)
class LinkRateTold:
    """The bus bandwidth of one link by the fit and the bytes of the gradients; None where computing hides what it costs."""

    series: str
    link: str
    gb_per_s: float | None


@dataclass(frozen=True)
class TableAnswer:
    """`predictions` with the series each is of; `own_errors`: left-out rows by series; `score`: where truths were given."""

    predictions: tuple[tuple[str, Prediction], ...]
    own_errors: Mapping[str, Score]
    scores: Mapping[str, Score]
    truths_us: tuple[float | None, ...] = ()  # none where no row of the other table has its time
    rates: tuple["LinkRateTold", ...] = ()

    def as_json(self) -> str:
        """One entry a configuration; errors and scores beside them."""
        return json.dumps(
            {
                "predictions": [{**said.as_plain(), "series": series} for series, said in self.predictions],
                "own_error": {name: asdict(one) for name, one in self.own_errors.items()},
                "score": {name: asdict(one) for name, one in self.scores.items()},
                **({"link_rates": [asdict(one) for one in self.rates]} if self.rates else {}),
            },
            indent=1,
            allow_nan=False,
        )


def ask_table(path: Path, question: Question, gradient_bytes: float | None = None) -> TableAnswer:
    """Predictions of every series of a table at the configurations asked for. Raises DpscopeError for an unreadable table."""
    rows = read_step_table(path)
    fits = _fits(without(rows, measures(rows)))
    predictions = []
    for identity, (rows, fit) in fits.items():
        for batch in question.batch_sizes or _usual_batches(rows):
            for count in question.devices:
                place = _place(rows, count, question.per_node)
                predictions.append((_label(identity), _predict(fit, place, batch)))
    return TableAnswer(tuple(predictions), _own_errors(fits), {}, rates=_rates(fits, gradient_bytes))


def score_table(path: Path, measured: Path, gradient_bytes: float | None = None) -> TableAnswer:
    """Every row of `measured` predicted from the table alone, in its order, and set beside its time where it has one."""
    rows, truths = comparable(read_step_table(path), read_step_table(measured, times=False))
    fits = _fits(rows)
    predictions = []
    for truth in truths:
        fit = fits[truth.identity][1] if truth.identity in fits else _no_series(path, fits, truth.identity)
        said = _predict(fit, truth.placement, truth.batch_size, truth.single)
        predictions.append((_label(truth.identity), said))
    scores = {}
    for identity, (_, fit) in fits.items():
        mine = [index for index, truth in enumerate(truths) if truth.identity == identity and truth.step_us > 0]
        if mine and isinstance(fit, TableFit):
            scores[_label(identity)] = score(fit, [predictions[i][1] for i in mine], [truths[i] for i in mine])
    times = tuple(truth.step_us or None for truth in truths) if any(truth.step_us for truth in truths) else ()
    return TableAnswer(tuple(predictions), _own_errors(fits), scores, times, _rates(fits, gradient_bytes))


def _no_series(path: Path, fits: Collection[Identity], identity: Identity) -> str:
    known = [_label(one) for one in fits]
    if known == [_ALL]:
        return f"{path} has no rows of {_label(identity)}: its columns do not tell what it is of"
    listed = "; ".join(known[:_MOST_SERIES]) + (
        f" and {len(known) - _MOST_SERIES} more" if len(known) > _MOST_SERIES else ""
    )
    return f"{path} has no rows of {_label(identity)}; it has {listed}"


def _fits(rows: Sequence[MeasuredStep]) -> dict[Identity, tuple[list[MeasuredStep], TableFit | str]]:
    return {identity: (mine, fit_table(mine)) for identity, mine in series_of(rows).items()}


def _rates(
    fits: Mapping[Identity, tuple[list[MeasuredStep], TableFit | str]], gradient_bytes: float | None
) -> tuple[LinkRateTold, ...]:
    if gradient_bytes is None:
        return ()
    return tuple(
        LinkRateTold(_label(identity), link, link_rate(fit, link, gradient_bytes))
        for identity, (_, fit) in fits.items()
        if isinstance(fit, TableFit)
        for link in LINKS[1:]
        if fit.largest(link) > 1
    )


def _predict(fit: TableFit | str, place: Placement, batch_size: int, single: bool | None = None) -> Prediction:
    if isinstance(fit, str):
        return Prediction(place.ranks, place.nodes, batch_size or None, reason=fit)
    said = predict_step(fit, place, batch_size, single)
    return said if batch_size else replace(said, batch_size=None)


def _own_errors(fits: Mapping[Identity, tuple[list[MeasuredStep], TableFit | str]]) -> dict[str, Score]:
    """Each series' rows predicted without their own device count."""
    found = {}
    for identity, (_, fit) in fits.items():
        if isinstance(fit, TableFit) and fit.left_out:
            said = [
                Prediction(
                    one.row.placement.ranks,
                    one.row.placement.nodes,
                    one.row.batch_size,
                    step_us=one.step_us,
                    exposed_us=one.exposed_us,
                )
                for one in fit.left_out
            ]
            found[_label(identity)] = score(fit, said, [one.row for one in fit.left_out])
    return found


def _usual_batches(rows: Sequence[MeasuredStep]) -> list[int]:
    """The batch measured at most device counts; the largest of several."""
    counts: dict[int, set[int]] = {}
    for row in rows:
        counts.setdefault(row.batch_size, set()).add(row.placement.ranks)
    return [max(counts, key=lambda batch: (len(counts[batch]), batch))]


def _place(rows: Sequence[MeasuredStep], count: int, per_node: int | None) -> Placement:
    """Full nodes of so many devices; unless told, of the most that the table has on one node; one node if it names none."""
    if per_node is None and not any(row.placed for row in rows):
        return Placement(count, 1, count)
    each = per_node or max(row.placement.most_per_node for row in rows)
    return Placement(count, -(-count // each), min(count, each))


def _label(identity: Identity) -> str:
    return ", ".join(value for _, value in identity if value) or _ALL


def prediction_table(answer: TableAnswer) -> TextTable:
    """The predictions as a table: what is said, its band, and what it rests on or why nothing is said."""
    several = len({series for series, _ in answer.predictions}) > 1
    truths = answer.truths_us
    headings = (
        *(("series",) if several else ()),
        *("devices", "nodes", "batch", "step [ms]", f"{BAND:.0%} band [ms]", "exposed [ms]", "efficiency [%]"),
        *(("measured [ms]", "error [%]") if truths else ()),
    )
    rows = tuple(
        _cells(series, said, truths[index] if truths else None, bool(truths), several)
        for index, (series, said) in enumerate(answer.predictions)
    )
    return TextTable(
        "Steps that were not measured, estimated from the table", headings, rows, notes=tuple(_grounds(answer))
    )


def _cells(series: str, said: Prediction, truth: float | None, beside: bool, several: bool) -> tuple[str, ...]:
    off = f"{100 * (said.step_us / truth - 1):+.1f}" if said.step_us is not None and truth else "NA"
    return (
        *((series,) if several else ()),
        *(str(said.devices), str(said.nodes), "NA" if said.batch_size is None else str(said.batch_size)),
        *(_ms(said.step_us), _band(said), _ms(said.exposed_us)),
        "NA" if said.efficiency is None else f"{100 * said.efficiency:.1f}",
        *((_ms(truth), off) if beside else ()),
    )


def _grounds(answer: TableAnswer) -> list[str]:
    """What the numbers rest on, or why there is none, each told once with its device counts."""
    counts: dict[tuple[str, str], list[int]] = {}
    for series, said in answer.predictions:
        counts.setdefault((series, said.reason or f"rests on {said.rests_on}"), []).append(said.devices)
    several = len({series for series, _ in answer.predictions}) > 1
    return [
        f"{f'{series}, ' if several else ''}{_devices(devices)}: {text}" for (series, text), devices in counts.items()
    ]


def _devices(counts: Sequence[int]) -> str:
    known = sorted(set(counts))
    listed = ", ".join(map(str, known)) if len(known) <= 6 else f"{known[0]} to {known[-1]}"
    return f"{listed} device{'' if known == [1] else 's'}"


def _ms(value: float | None) -> str:
    return "NA" if value is None else f"{value / 1e3:.1f}"


def _band(said: Prediction) -> str:
    return "NA" if said.low_us is None or said.high_us is None else f"{_ms(said.low_us)} to {_ms(said.high_us)}"


def table_answer_sentences(answer: TableAnswer) -> list[str]:
    """The answer in words; beside measured rows, how well they were predicted."""
    if answer.truths_us:
        return [f"{_of(name)}{_scored(one)}" for name, one in answer.scores.items()]
    several = len({series for series, _ in answer.predictions}) > 1
    batches = len({said.batch_size for _, said in answer.predictions}) > 1
    labels = [
        (f"{series}, " if several else "")
        + counted(said.devices, "device")
        + (f" with {said.batch_size} samples each" if batches else "")
        for series, said in answer.predictions
    ]
    return answer_sentences(labels, [said for _, said in answer.predictions])


def error_sentences(answer: TableAnswer) -> list[str]:
    """How wrong the method was on the table's own rows, each device count left out in turn; the rates of its links."""
    said = [
        f"{_of(name)}{'L' if name == _ALL else 'l'}eaving each device count out in turn, {one.rows} measured rows are predicted "
        f"with a median error of {_percent(one.step_error)}, worst {_percent(one.worst_step_error)} (perfect scaling: "
        f"{_percent(one.rules['perfect scaling'])})."
        for name, one in answer.own_errors.items()
    ]
    return said + [_rate_sentence(one) for one in answer.rates]


def _of(series: str) -> str:
    return "" if series == _ALL else f"{series}: "


def _rate_sentence(one: LinkRateTold) -> str:
    if one.gb_per_s is None:
        return f"{_of(one.series)}{one.link} the gradients' transfer hides under computing, so these rows do not tell its rate."
    return f"{_of(one.series)}{one.link} the gradients travel at {one.gb_per_s:.3g} GB/s (bus bandwidth), estimated from the fit."


def _scored(one: Score) -> str:
    if one.declined == one.rows:
        return f"none of {counted(one.rows, 'row')} predicted, for the reasons below."
    rules = ", ".join(f"{rule} {_percent(off)}" for rule, off in one.rules.items() if off is not None)
    exposed = "" if one.exposed_error is None else f", of exposed communication: {_percent(one.exposed_error)}"
    return (
        f"{one.rows - one.declined} of {one.rows} rows predicted, the step with a median error of {_percent(one.step_error)} "
        f"(worst {_percent(one.worst_step_error)}). {_against_rules(one)} {_percent(one.inside)} of the truths lie in the "
        f"{BAND:.0%} bands, whose median half width is {_percent(one.half_width)}. Median error of the overhead t_N - t_1: "
        f"{_percent(one.overhead_error)}{exposed}. Simple rules on the same rows: {rules}."
    )


def _against_rules(one: Score) -> str:
    """Said plainly where a simple rule does better."""
    known = {rule: off for rule, off in one.rules.items() if off is not None}
    if not known or one.step_error is None:
        return ""
    best = min(known, key=lambda rule: known[rule])
    if known[best] < one.step_error:
        return f"'{best}' does better here: {_percent(known[best])}."
    return f"The best simple rule, '{best}', errs {_percent(known[best])}."


def _percent(share: float | None) -> str:
    return "NA" if share is None else f"{100 * share:.1f}%"


def device_counts(text: str) -> tuple[int, ...]:
    """Such as ``8,16,64``. Raises DpscopeError for what are no counts."""
    return _counts(text, "--devices")


def per_node(text: str) -> int:
    """One number of devices on a node. Raises DpscopeError for another text."""
    found = _counts(text, "--per-node")
    if len(found) > 1:
        raise DpscopeError(f"--per-node {text}: give one number for a table")
    return found[0]


def batch_sizes(text: str) -> tuple[int, ...]:
    """Such as ``32,128``, per device. Raises DpscopeError for what are no batches."""
    return _counts(text, "--batch-size")


def _counts(text: str, option: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= 10_000_000 for word in words):
        raise DpscopeError(f"{option} {text}: give whole numbers of 1 or more, such as 8,16,64")
    return tuple(dict.fromkeys(map(int, words)))
