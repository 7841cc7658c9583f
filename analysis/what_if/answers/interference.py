"""How much computing and collectives slow each other in a base: measured in its traces, calibrated, or assumed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from dpscope.analysis.costs.contention import contention_of
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.runs.variant_savings import single_device_baselines
from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.analysis.what_if.profiles.shared_link import buckets_overlap, slowdown_of
from dpscope.analysis.what_if.replay.step_profile import SHARES_THE_LINK, StepProfile
from dpscope.analysis.what_if.scenarios.scenario import Base
from dpscope.profiling.records.calibration import Calibration

NO_CONTENTION = (
    "how much collectives slow computing: no comparable compute ran both with and without them, and no calibration under load "
    "was made, so computing is assumed to be no slower"
)
_UNKNOWN_GAMMA = (0.0, 0.3)  # assumed; fits of public jobs gave 0.05 to 0.6 (Pollux, OSDI 2021)
_NOT_TWO = "how much two collectives in flight slow each other: they are assumed to share the link"


@dataclass(frozen=True)
class Interference:
    """`gamma`: what computing loses per time next to a collective; `slowdown`: how much longer each of two in flight takes.

    Each with its band. `slowdown_measured` is False where it is assumed; `contention` is the basis of gamma, in words, and
    `lacks` is what is assumed.
    """

    gamma: float
    gamma_band: tuple[float, float]
    slowdown: float
    slowdown_band: tuple[float, float]
    slowdown_measured: bool
    contention: str = ""
    lacks: tuple[str, ...] = ()

    def on(self, base: Base) -> Base:
        """The base with them."""
        return replace(
            base,
            gamma=self.gamma,
            gamma_band=self.gamma_band,
            contention=self.contention,
            slowdown=self.slowdown,
            slowdown_band=self.slowdown_band,
            slowdown_measured=self.slowdown_measured,
            lacks=(*base.lacks, *self.lacks),
        )


def interference_of_run(
    run: RunData,
    data: CellData,
    ledger: Ledger | None,
    profiles: Sequence[StepProfile],
    calibration: Calibration | None,
) -> Interference:
    """Of a cell, whose own contention is preferred; `calibration` is what was timed on as many nodes."""
    found = interference_of_traces(ledger, profiles)
    ratios = contention_of(calibration, data.cell.devices)
    if ratios is None:
        return found
    if not found.contention:
        gamma, low, high = (
            gamma_of(run, data, max(0.0, one - 1))
            for one in (ratios.compute.value, ratios.compute.low, ratios.compute.high)
        )
        found = replace(found, gamma=gamma, gamma_band=(low, high), contention="contention as calibrated")
    both = ratios.two_in_flight
    two, low, high = (max(1.0, one) for one in (both.value, both.low, both.high))
    return replace(found, slowdown=two, slowdown_band=(low, high), slowdown_measured=True, lacks=())


def interference_of_traces(ledger: Ledger | None, profiles: Sequence[StepProfile]) -> Interference:
    """Of traces alone: the ledger's contention, and how much transfers that overlap slow each other."""
    gamma, band, contention = _measured_gamma(ledger) or (0.0, _UNKNOWN_GAMMA, "")
    lacks = () if contention else (NO_CONTENTION,)
    if (own := slowdown_of(profiles)) is not None:
        return Interference(gamma, band, own[0], own[1:], True, contention, lacks)
    overlapping = any(
        buckets_overlap(one) for one in profiles
    )  # and their transfers are evidence that they share the link
    if any(one.servers > 1 for one in profiles):
        lacks = (*lacks, _NOT_TWO)
    least = SHARES_THE_LINK if overlapping else 1.0
    return Interference(gamma, band, SHARES_THE_LINK, (least, SHARES_THE_LINK), False, contention, lacks)


def _measured_gamma(ledger: Ledger | None) -> tuple[float, tuple[float, float], str] | None:
    """The share of hidden communication's time that computing loses, 1 - 1/ratio, with its interval and basis."""
    if ledger is None or ledger.contention_ratio is None or ledger.contention_ratio_interval is None:
        return None
    ratio, bounds = ledger.contention_ratio, ledger.contention_ratio_interval
    gamma, low, high = (max(0.0, 1 - 1 / max(one, 1e-3)) for one in (ratio, bounds.low, bounds.high))
    basis = (
        f"compute next to communication takes {ratio:.2f}x as long ({bounds.low:.2f} to {bounds.high:.2f}, measured)"
    )
    return gamma, (low, high), basis


def _ddp_alone(run: RunData, data: CellData) -> CellData | None:
    """The same training under DDP on one device."""
    alike = (data.cell.batch_size, data.cell.options)
    cells = (one for one in run.measured if one.cell.traits.reducer and one.cell.devices == 1)
    return next((one for one in cells if (one.cell.batch_size, one.cell.options) == alike), None)


def gamma_of(run: RunData, data: CellData, calibrated: float) -> float:
    """What computing loses next to a collective: as calibrated, at most what this cell's computing is slower than one device's.

    A calibration computes on every core it has, and a model that waits on its device hardly slows. One device's computing is that
    of DDP, which copies gradients into its buckets there, too; where that was not measured, that without DDP.
    """
    single = _ddp_alone(run, data) or single_device_baselines(run, data.cell).get(data.cell.batch_size)
    own, alone = data.whole_windows, single.whole_windows if single is not None else pd.DataFrame()
    if alone.empty or own.empty:
        return calibrated
    slower_us = float(own["compute_us"].mean()) - float(alone["compute_us"].mean())
    hidden_us = float((own["communication_us"] - own["exposed_us"]).mean())
    return min(calibrated, max(0.0, slower_us / hidden_us)) if hidden_us > 0 else calibrated
