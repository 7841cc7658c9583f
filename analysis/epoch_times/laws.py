"""Scaling laws that the sound speedups of a table support."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dpscope.analysis.epoch_times.epoch_time import EpochTime
from dpscope.analysis.epoch_times.estimates import EpochEstimate
from dpscope.analysis.stats.scaling_laws import FARTHEST_FACTOR, Scaling, fit_scaling, predicted_speedup

_SCALINGS: dict[str | None, Scaling] = {"global": "strong", "per_device": "weak"}


class EpochLaw(NamedTuple):
    """The law that the speedups of one series support, and its speedup on twice the largest measured count."""

    study: str | None
    run: str | None
    strategy: str
    batch_size: int
    scaling: Scaling
    law: str
    parameters: Mapping[str, float]
    speedups: Mapping[int, float]  # as measured, by device count
    worst_relative_error: float
    predicted_devices: int
    predicted_speedup: float | None
    note: str  # why nothing is predicted, or how far the law is extrapolated
    devices_per_node: int | None = None  # of a series over several nodes that are not full


def law_fits(rows: Sequence[EpochTime], estimates: Sequence[EpochEstimate]) -> list[EpochLaw]:
    """A law for every series of one study, run, strategy and batch_size with a sound speedup.

    Rows on one node and on full nodes are one series; those on nodes with fewer devices are series of their own.
    """
    row_of = {row.setting: row for row in rows}
    series: dict[tuple[str | None, str | None, str, int, Scaling, int | None], dict[int, float]] = {}
    for one in estimates:
        row = row_of[one.setting]
        scaling = _SCALINGS.get(row.batch_size_is)
        if one.value is None or not one.sound or scaling is None or (one.quantity, one.method) != ("speedup", scaling):
            continue
        key = (one.study, one.run, one.strategy, one.batch_size, scaling, _sparse_nodes(row, rows))
        series.setdefault(key, {})[one.devices] = one.value
    laws = []
    for key, speedups in series.items():
        scaling, sparse = key[4:]
        fit = fit_scaling(speedups, scaling)
        assert fit is not None
        farthest = FARTHEST_FACTOR * fit.largest_devices
        prediction = predicted_speedup(fit, farthest)
        parameters = {name: one.value for name, one in fit.parameters.items() if one.value is not None}
        predicted = farthest, prediction.speedup.value, prediction.note
        measured = dict(sorted(speedups.items()))
        laws.append(EpochLaw(*key[:5], fit.law, parameters, measured, fit.worst_relative_error, *predicted, sparse))
    return laws


def _per_node(row: EpochTime) -> int:
    return -(-row.devices // (row.nodes or 1))


def _sparse_nodes(row: EpochTime, rows: Sequence[EpochTime]) -> int | None:
    """Devices per node of a row over several nodes, if other rows of its study have more on one; else None."""
    if row.nodes is None or row.nodes == 1:
        return None
    fullest = max(_per_node(other) for other in rows if other.study == row.study and other.nodes is not None)
    return _per_node(row) if _per_node(row) < fullest else None
