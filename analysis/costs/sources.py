"""What a prediction may rest on: a calibration of the machine, else the link's specification. The two are never mixed."""

from dataclasses import dataclass
from typing import Literal

from dpscope.analysis.costs.calibration_fit import find_fit, predict_us
from dpscope.analysis.costs.formulas import ring_us
from dpscope.profiling.records.calibration import Calibration

Source = Literal["calibration", "specification"]


@dataclass(frozen=True)
class CostSources:
    """A calibration's fits, else the link's specification in GB/s one way."""

    link_gbps: float | None = None
    calibration: Calibration | None = None

    @property
    def source(self) -> Source | None:
        if self.calibration is not None:
            return "calibration"
        return "specification" if self.link_gbps is not None else None

    def cost(self, kind: str, ranks: int, size_bytes: float) -> float | None:
        """Microseconds of one collective; None where the source does not know that kind on so many ranks."""
        if self.calibration is not None:
            fit = find_fit(self.calibration, kind, ranks)
            return predict_us(fit, size_bytes).time_us if fit is not None else None
        return ring_us(kind, size_bytes, ranks, self.link_gbps) if self.link_gbps is not None else None

    def why_unknown(self, kind: str, ranks: int) -> str:
        """Why `cost` is None."""
        if self.calibration is not None:
            return f"the calibration holds no {kind} on {ranks} ranks"
        return f"there is no ring model of {kind}"

    def extrapolated(self, kind: str, ranks: int, size_bytes: float) -> str | None:
        """Set where a size lies outside those calibrated: its cost is the fit's nearest line extended."""
        fit = find_fit(self.calibration, kind, ranks) if self.calibration is not None else None
        return predict_us(fit, size_bytes).extrapolated if fit is not None else None
