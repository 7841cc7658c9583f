"""How much computing and collectives beside each other slow a base: as calibrated, as its own transfers tell, or assumed."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from dpscope.analysis.costs.contention import contention_of
from dpscope.analysis.runs.run_data import CellData, RunData
from dpscope.analysis.runs.variant_savings import single_device_baselines
from dpscope.analysis.what_if.profiles.shared_link import slowdown_of
from dpscope.analysis.what_if.replay.step_profile import SHARES_THE_LINK, StepProfile
from dpscope.profiling.records.calibration import Calibration

_NO_CONTENTION = "a calibration under load: computing is taken to be no slower beside a collective"
_NOT_TWO = ", two in flight to share the link"


@dataclass(frozen=True)
class Beside:
    """`gamma`: how much slower computing is beside a collective; `slowdown`: how much longer each of two in flight takes.

    `slowdown_band` where that was measured; `lacks` is what is assumed, in words.
    """

    gamma: float
    slowdown: float
    slowdown_band: tuple[float, float] | None
    lacks: tuple[str, ...]


def beside_of_run(
    run: RunData, data: CellData, profiles: Sequence[StepProfile], calibration: Calibration | None
) -> Beside:
    """Of a cell; `calibration` is what was timed on as many nodes."""
    ratios = contention_of(calibration, data.cell.devices)
    if ratios is None:
        return beside_of_traces(profiles)
    gamma = gamma_of(run, data, max(0.0, ratios.compute.value - 1))
    two = ratios.two_in_flight
    return Beside(gamma, max(1.0, two.value), (max(1.0, two.low), max(1.0, two.high)), ())


def beside_of_traces(profiles: Sequence[StepProfile]) -> Beside:
    """Of traces alone."""
    own = slowdown_of(profiles)
    if own is not None:
        return Beside(0.0, own[0], own[1:], (_NO_CONTENTION,))
    return Beside(0.0, SHARES_THE_LINK, None, (_NO_CONTENTION + ("" if _one_stream(profiles) else _NOT_TWO),))


def _one_stream(profiles: Sequence[StepProfile]) -> bool:
    return all(one.servers == 1 for one in profiles)


def gamma_of(run: RunData, data: CellData, calibrated: float) -> float:
    """How much slower computing is beside a collective: as calibrated, but no more than this cell's computing is slower than one
    device's. A calibration computes on every core it has, and a model that waits on its device hardly slows."""
    single = single_device_baselines(run, data.cell).get(data.cell.batch_size)
    own, alone = data.whole_windows(), single.whole_windows() if single is not None else pd.DataFrame()
    if alone.empty or own.empty:
        return calibrated
    slower = float(own["compute_us"].mean()) - float(alone["compute_us"].mean())
    beside = float((own["communication_us"] - own["exposed_us"]).mean())
    return min(calibrated, max(0.0, slower / beside)) if beside > 0 else calibrated
