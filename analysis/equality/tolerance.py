"""How far apart trainings may be that compute the same: measured, because rounding grows as training goes on.

Strategies sum the same terms in another order. Regrouping a sum of B terms of one sign changes it by up to (B - 1) u of
itself (u: unit roundoff; Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 2002, equation 4.4), with
cancellation by more, and from the second step on training amplifies it. How much is measured on the reference itself: trained
once more with every weight moved to a neighbouring number, it differs by what rounding grows to. A single device with batch
norm does so twice, with whole batches and in shares, whose fewer samples let rounding grow faster; the larger one counts.

    tolerance of step k = SAFETY x max((B - 1) u, the largest relative difference to the moved one up to step k)

B: global batch. SAFETY: two trainings are each that far from exact arithmetic (2), a rounded sum of n terms is as good as
moves of about sqrt(n) units or, summed in blocks, of a few (assumed: 5).
"""

import numpy as np
import pandas as pd

from dpscope.profiling.records.equality import EqualitySettings, Precision

SAFETY = 10.0
LARGEST_TOLERANCE = 1e-2
"""Beyond it a step is not judged: what a mistake does could hide in what rounding does."""

_ROUNDOFF: dict[Precision, float] = {"float32": 2.0**-24, "float64": 2.0**-53}
WHATS = ("loss", "gradient", "weight")


def least_tolerance(settings: EqualitySettings) -> float:
    """Of any step."""
    return SAFETY * (settings.global_batch_size - 1) * _ROUNDOFF[settings.precision]


def tolerances(rounding: pd.DataFrame, settings: EqualitySettings) -> pd.DataFrame:
    """Per step (the index) columns `loss`, `gradient`, `weight`, and each with ``_rounding``: what was measured.

    `rounding`: differences of trainings to those that began with moved weights.
    """
    measured = largest_per_step(rounding).cummax()
    table = (SAFETY * measured).clip(lower=least_tolerance(settings))
    return table.join(measured.add_suffix("_rounding"))


def output_tolerance(outputs: pd.DataFrame, settings: EqualitySettings) -> float:
    """Of what modules put out in the first forward; `outputs`: differences to moved weights."""
    measured = float(outputs["relative"].max()) if len(outputs) else 0.0
    return max(least_tolerance(settings), SAFETY * measured)


def largest_per_step(differences: pd.DataFrame) -> pd.DataFrame:
    """The largest relative difference of any tensor: columns `loss`, `gradient`, `weight`, a row per step; NaN counts most."""
    known = differences.assign(relative=differences["relative"].fillna(np.inf))
    table = known.pivot_table(index="step", columns="what", values="relative", aggfunc="max")
    return table.reindex(columns=list(WHATS))


def judged_steps(tolerance: pd.DataFrame, rounding: pd.DataFrame) -> int:
    """How many steps, from the first on, have a finite reference and tolerances that tell mistakes from rounding."""
    usable = (tolerance[list(WHATS)] <= LARGEST_TOLERANCE).all(axis=1)
    unknown = set(rounding.loc[rounding["relative"].isna(), "step"])
    return next((step for step, fine in enumerate(usable) if not fine or step in unknown), len(usable))
