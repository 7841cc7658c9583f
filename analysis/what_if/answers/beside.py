"""How much computing and collectives beside each other slow a base: as calibrated, as its own transfers tell, or assumed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from dpscope.analysis.costs.contention import contention_of
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.runs.variant_savings import single_device_baselines
from dpscope.analysis.what_if.profiles.shared_link import buckets_overlap, slowdown_of
from dpscope.analysis.what_if.replay.step_profile import SHARES_THE_LINK, StepProfile
from dpscope.analysis.what_if.scenarios.scenario import Base
from dpscope.profiling.records.calibration import Calibration

_NO_CONTENTION = (
    "how collectives slow computing, as no calibration under load was made: computing is assumed to be no slower"
)
_UNKNOWN_GAMMA = (0.0, 0.3)  # assumed; fits of public jobs gave 0.05 to 0.6 (Pollux, OSDI 2021)
_NOT_TWO = ", and two collectives in flight to share the link"


@dataclass(frozen=True)
class Beside:
    """`gamma`: how much slower computing is beside a collective; `slowdown`: how much longer each of two in flight takes.

    Each with what it may be; `measured`: the slowdown was; `lacks` is what is assumed, in words.
    """

    gamma: float
    gamma_band: tuple[float, float]
    slowdown: float
    slowdown_band: tuple[float, float]
    measured: bool
    lacks: tuple[str, ...]

    def on(self, base: Base) -> Base:
        """The base with them."""
        return replace(
            base,
            gamma=self.gamma,
            gamma_band=self.gamma_band,
            slowdown=self.slowdown,
            slowdown_band=self.slowdown_band,
            slowdown_measured=self.measured,
            lacks=(*base.lacks, *self.lacks),
        )


def beside_of_run(
    run: RunData, data: CellData, profiles: Sequence[StepProfile], calibration: Calibration | None
) -> Beside:
    """Of a cell; `calibration` is what was timed on as many nodes."""
    ratios = contention_of(calibration, data.cell.devices)
    if ratios is None:
        return beside_of_traces(profiles)
    found = [
        gamma_of(run, data, max(0.0, one - 1))
        for one in (ratios.compute.value, ratios.compute.low, ratios.compute.high)
    ]
    two = [max(1.0, one) for one in (ratios.two_in_flight.value, ratios.two_in_flight.low, ratios.two_in_flight.high)]
    return Beside(found[0], (found[1], found[2]), two[0], (two[1], two[2]), True, ())


def beside_of_traces(profiles: Sequence[StepProfile]) -> Beside:
    """Of traces alone: transfers that overlap tell how much they slow each other, and nothing tells of computing."""
    own = slowdown_of(profiles)
    if own is not None:
        return Beside(0.0, _UNKNOWN_GAMMA, own[0], own[1:], True, (_NO_CONTENTION,))
    alone = not any(buckets_overlap(one) for one in profiles)  # else transfers told that they share the link
    band = (1.0 if alone else SHARES_THE_LINK, SHARES_THE_LINK)
    told = _NO_CONTENTION + ("" if _one_stream(profiles) else _NOT_TWO)
    return Beside(0.0, _UNKNOWN_GAMMA, SHARES_THE_LINK, band, False, (told,))


def _one_stream(profiles: Sequence[StepProfile]) -> bool:
    return all(one.servers == 1 for one in profiles)


def _ddp_alone(run: RunData, data: CellData) -> CellData | None:
    """The same training under DDP on one device."""
    cell = data.cell
    return next(
        (
            one
            for one in run.measured
            if one.cell.traits.reducer
            and one.cell.devices == 1
            and (one.cell.batch_size, one.cell.options) == (cell.batch_size, cell.options)
        ),
        None,
    )


def gamma_of(run: RunData, data: CellData, calibrated: float) -> float:
    """How much slower computing is beside a collective: as calibrated, but no more than this cell's computing is slower than one
    device's. A calibration computes on every core it has, and a model that waits on its device hardly slows.

    One device's is that of DDP, which copies gradients into its buckets there, too; where that was not measured, one without it.
    """
    single = _ddp_alone(run, data) or single_device_baselines(run, data.cell).get(data.cell.batch_size)
    own, alone = data.whole_windows, single.whole_windows if single is not None else pd.DataFrame()
    if alone.empty or own.empty:
        return calibrated
    slower = float(own["compute_us"].mean()) - float(alone["compute_us"].mean())
    beside = float((own["communication_us"] - own["exposed_us"]).mean())
    return min(calibrated, max(0.0, slower / beside)) if beside > 0 else calibrated
