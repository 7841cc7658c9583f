"""Scaling and predictions of a comparison as plain Python, for JSON; unknown is None."""

from dataclasses import asdict

from dpscope.analysis.comparison.compare import Comparison
from dpscope.analysis.stats.scaling_laws import ScalingFit


def prediction_records(comparison: Comparison) -> list[dict[str, object]]:
    """A row for each kind and size of collective of each cell: measured, predicted, relative error."""
    return [asdict(one) | {"relative_error": one.relative_error} for one in comparison.predictions]


def scaling_records(comparison: Comparison) -> list[dict[str, object]]:
    """A row for each series: its points with intervals, and its law."""
    return [
        {
            "strategy": series.strategy,
            "variant": series.variant,
            "scaling": series.scaling,
            "batch_size": series.batch_size,
            "points": [
                asdict(point) | {"efficiency": asdict(point.efficiency), "amdahl_misuse": point.misuse}
                for point in series.points
            ],
            "law": _law(series.fit) if series.fit is not None else None,
        }
        for series in comparison.scaling
    ]


def _law(fit: ScalingFit) -> dict[str, object]:
    return {
        "name": fit.law,
        "parameters": {name: asdict(value) for name, value in fit.parameters.items()},
        "worst_relative_error": fit.worst_relative_error,
        "note": fit.note,
    }
