"""dpscope's ledger of each traced step compared with the truth, to 1% or 20 us."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from dpscope.analysis import analyze_traces
from tests.virtual_gpu.node import Truth
from tests.virtual_gpu.true_steps import true_parts, true_steps

LEDGER = (
    *("step_us", "compute_us", "communication_us", "hidden_us"),
    *("exposed_wait_us", "exposed_transfer_us", "exposed_other_us", "idle_us"),
)
_STEP = ["device", "step"]
_PART = [*_STEP, "part", "kind"]


def assert_ledgers_are_true(truth: Truth, traces: Sequence[Path], whole_steps: int) -> None:
    """Every part of every whole step of these traces of one job, and every exposed part by its
    kind.
    """
    analysis = analyze_traces(list(traces))
    true = pd.concat([true_steps(truth, trace) for trace in traces])
    steps = analysis.steps.astype({"device": int, "step": int})
    reported = steps[~steps["partial_window"].astype(bool)]
    assert len(reported) == true["device"].nunique() * whole_steps
    both = _joined(reported, true, _STEP)
    for name in LEDGER:
        _assert_close(both, name)

    parts = pd.concat([true_parts(truth, trace) for trace in traces])
    both = _joined(
        analysis.exposed_parts.groupby(_PART)[["time_us"]].sum().reset_index(), parts, _PART
    )
    _assert_close(both.merge(true[_STEP]), "time_us")


def _joined(reported: pd.DataFrame, true: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    both = reported.astype({"device": int, "step": int}).merge(
        true, on=keys, how="outer", suffixes=("_reported", "_true"), validate="one_to_one"
    )
    return both.sort_values(keys, ignore_index=True)


def _assert_close(both: pd.DataFrame, name: str) -> None:
    reported, true = (
        both[f"{name}_{side}"].astype(float).fillna(0) for side in ("reported", "true")
    )
    wrong = both[(reported - true).abs() > (0.01 * true).clip(lower=20)]
    assert wrong.empty, f"{name}\n{wrong.to_string()}"
