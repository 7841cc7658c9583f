"""Compares the trainings of `dpscope equal`: a verdict on every pair, a finding for every difference."""

import itertools
from pathlib import Path

import pandas as pd

from dpscope.analysis.equality.data import EqualityData, RecordedTraining
from dpscope.analysis.equality.differences import (
    judged_steps,
    output_differences,
    output_tolerance,
    tolerances,
    training_differences,
)
from dpscope.analysis.equality.findings import (
    batch_norm_finding,
    rank_mistakes,
    recorded_setting_findings,
    sample_mistakes,
    statistics_of,
    unexplained_findings,
)
from dpscope.analysis.equality.pairs import JudgedPair, judge_pair, known, pair_result, plain_rows, rank_result
from dpscope.analysis.equality.result import EQUALITY_SCHEMA_VERSION, EqualityReport, RankAgreement, StepTolerance
from dpscope.profiling.records.equality import EQUALITY_NAME
from dpscope.profiling.store.files import write_json


def compare_trainings(data: EqualityData) -> EqualityReport:
    """Compare all pairs of strategies, and the ranks of each, with a tolerance measured on the reference."""
    settings, reference = data.settings, data.compared[0]
    moved = _moved(data)
    rounding = pd.concat([training_differences(*pair) for pair in moved], ignore_index=True)
    tolerance = tolerances(rounding, settings)
    of_outputs = output_tolerance(pd.concat([output_differences(*pair) for pair in moved]), settings)
    judged = judged_steps(tolerance, rounding)
    pairs = [judge_pair(*pair, tolerance, judged) for pair in itertools.combinations(data.compared, 2)]
    ranks = [_rank_result(training, data) for training in data.compared if len(training.ranks) > 1]
    samples = {training.name: training.samples() for training in data.compared}

    mistakes = [*sample_mistakes(samples, reference.ranks[0].record.shuffled), *rank_mistakes(ranks)]
    expected = {
        _names(pair): batch_norm_finding(pair, pairs, data, tolerance, of_outputs) for pair in pairs if not pair.agree
    }
    explained = {names: finding for names, finding in expected.items() if finding is not None}
    unexplained = [pair for pair in pairs if not pair.agree and _names(pair) not in explained]
    return EqualityReport(
        schema_version=EQUALITY_SCHEMA_VERSION,
        settings=settings,
        reference=reference.name,
        losses={training.name: tuple(map(known, training.losses().tolist())) for training in data.compared},
        tolerances=tuple(StepTolerance(**row) for row in plain_rows(tolerance.reset_index())),
        pairs=tuple(pair_result(pair, _names(pair) in explained) for pair in pairs),
        ranks=tuple(ranks),
        findings=(
            *(mistake.finding for mistake in mistakes),
            *unexplained_findings(unexplained, mistakes, of_outputs),
            *explained.values(),
            *recorded_setting_findings(data, samples, judged, pairs),
        ),
    )


def save_report(report: EqualityReport, out: Path) -> Path:
    """Write equality.json into the run folder; returns its path."""
    write_json(out / EQUALITY_NAME, report)
    return out / EQUALITY_NAME


def _moved(data: EqualityData) -> list[tuple[RecordedTraining, RecordedTraining]]:
    """Each training that was repeated with moved weights, and its repetition."""
    moved = [(data.compared[0], data.rounding)]
    if data.in_shares is not None and data.rounding_in_shares is not None:
        moved.append((data.in_shares, data.rounding_in_shares))
    return moved


def _rank_result(training: RecordedTraining, data: EqualityData) -> RankAgreement:
    """Compare the ranks of a training, and with a training that should agree with it, if there is one."""
    scope = statistics_of(training, data.settings)
    same_scope = [one for one in data.compared if one is not training and statistics_of(one, data.settings) == scope]
    if scope == "share" and data.in_shares is not None:
        same_scope.append(data.in_shares)
    return rank_result(training, same_scope[-1] if same_scope else data.compared[0])


def _names(pair: JudgedPair) -> tuple[str, str]:
    return pair.reference.name, pair.other.name
