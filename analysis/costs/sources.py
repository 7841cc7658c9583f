"""What a prediction may rest on: a calibration of the machine, else the link's specification. The two are never mixed."""

from dataclasses import dataclass
from typing import Literal

from dpscope.analysis.costs.calibration_fit import find_fit, predict_us
from dpscope.analysis.costs.formulas import ring_us
from dpscope.profiling.machine.link_text import parse_link
from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.records.run import Manifest

Source = Literal["calibration", "specification"]


@dataclass(frozen=True)
class CostSources:
    """A calibration's fits, else what the link is specified for."""

    stated: LinkRate | None = None  # by the user
    calibration: Calibration | None = None

    def link(self, devices: int) -> LinkRate | None:
        """What bounds a ring through so many devices in one direction; None where it is not known."""
        return self.stated

    def source(self, devices: int) -> Source | None:
        """What predictions of cells on so many devices rest on."""
        if self.calibration is not None:
            return "calibration"
        return "specification" if self.link(devices) is not None else None

    def cost(self, kind: str, ranks: int, size_bytes: float) -> float | None:
        """Microseconds of one collective; None where the source does not know that kind on so many ranks."""
        if self.calibration is not None:
            fit = find_fit(self.calibration, kind, ranks)
            return predict_us(fit, size_bytes).time_us if fit is not None else None
        link = self.link(ranks)
        return ring_us(kind, size_bytes, ranks, link.gb_per_s) if link is not None else None

    def why_unknown(self, kind: str, ranks: int) -> str:
        """Why `cost` is None."""
        if self.calibration is not None:
            return f"the calibration holds no {kind} on {ranks} ranks"
        return f"there is no ring model of {kind}"

    def extrapolated(self, kind: str, ranks: int, size_bytes: float) -> str | None:
        """Set where a size lies outside those calibrated: its cost is the fit's nearest line extended."""
        fit = find_fit(self.calibration, kind, ranks) if self.calibration is not None else None
        return predict_us(fit, size_bytes).extrapolated if fit is not None else None


def cost_sources(manifest: Manifest, stated: LinkRate | None, calibration: Calibration | None) -> CostSources:
    """What the predictions of a run may rest on: the link as it is stated now, else as it was when the run was measured."""
    told = manifest.config.link
    return CostSources(stated or (parse_link(told) if told is not None else None), calibration)
