"""The one question, `Costs.cost`, and the ordered list of sources that it is put to.

A source is a function of a `Call` and of what is `Known` (cost.py), in SOURCES in the order of
trust. It returns a `Cost` with its band and its `Basis`, None where the next source is to be asked,
or raises `Missing` where no other may stand in. Columns, report, `calibrate --predict` and `whatif`
follow. A formula goes into formulas.py with its source, and is tested by hand.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dpscope.analysis.costs.between_nodes import calibrated_link, rate_between_nodes, stated_link
from dpscope.analysis.costs.calibration_fit import Statistic
from dpscope.analysis.costs.contention import ContentionRatios, contention_of
from dpscope.analysis.costs.cost import AS_MEASURED, Basis, Call, Cost, Known, Links, Place, banded
from dpscope.analysis.costs.data_sheet import data_sheet
from dpscope.analysis.costs.other_counts import by_law
from dpscope.analysis.costs.own_transfers import carried_transfers, own_transfers
from dpscope.analysis.costs.timed_here import timed_here
from dpscope.analysis.stats.missing import Missing
from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.records.run import Manifest

Source = Callable[[Call, Known], Cost | None]
"""Answers, returns None where the next source is to be asked, or raises Missing where no other may
stand in for it.
"""

SOURCES: tuple[Source, ...] = (
    stated_link,  # of the question: replaces what was measured
    timed_here,  # a calibration on just these devices
    own_transfers,  # of the measured step
    by_law,  # through a calibration's other counts
    carried_transfers,  # of the measured step, by the ring's formula
    rate_between_nodes,  # with what runs within a node, as a hierarchy
    data_sheet,  # of the link, by the ring's formula: a bound
)


@dataclass(frozen=True)
class Costs(Known):
    """What collectives cost on a machine. Answers are kept: many scenarios ask the same."""

    def cost(
        self,
        kind: str,
        size_bytes: float,
        place: Place,
        links: Links = AS_MEASURED,
        statistic: Statistic = "slowest",
        exact: bool = False,
    ) -> Cost:
        """The cost of one collective, by the first source that has it; raises Missing."""
        call = Call(kind, size_bytes, place, links, statistic, exact)
        return self.once(call, lambda: self.answer(call))

    def answer(self, call: Call) -> Cost:
        if call.place.devices == 1:
            return banded(0.0, 0.0, 0.0, "calibration", "one device")
        for source in SOURCES:
            cost = source(call, self)
            if cost is not None:
                return cost
        raise Missing(self._why_nothing(call))

    def of_measured(self, kind: str, size_bytes: float, place: Place, basis: Basis) -> Cost:
        """One of the measured step's own collectives, by the source that a cost of this basis has,
        so that errors of the source cancel in what the step took over it; raises Missing.
        """
        cost = None
        if basis == "law":
            cost = by_law(Call(kind, size_bytes, place), self)
        elif basis in ("rate", "specification"):
            link = calibrated_link(kind, place, self)
            cost = stated_link(Call(kind, size_bytes, place, Links(intra=link)), self)
        return cost or self.cost(kind, size_bytes, place)

    def basis(self, place: Place) -> Basis | None:
        """What an exact cost on these devices rests on: a calibration of them, else the link's
        specification; None if neither.
        """
        if self.calibrated(place) is not None:
            return "calibration"
        return "specification" if self.link(place) is not None else None

    def contention(self, place: Place) -> ContentionRatios | None:
        """The calibrated slowdown of collectives and computing by each other."""
        return contention_of(self.calibrated(place), place.devices)

    def no_basis(self, place: Place) -> str:
        """Why there is no exact cost on these devices."""
        if self.calibration is None and place.nodes == 1:
            return "no calibration and no link bandwidth known: calibrate, or give --link"
        where = counted(place.devices, "device")
        if place.nodes > 1:
            where = f"{where} over {place.nodes} nodes"
        return f"no calibration timed {where}, and no link bandwidth is known: calibrate there, or give --link"

    def _why_nothing(self, call: Call) -> str:
        devices = call.place.devices
        if call.exact:
            return self.no_basis(call.place)
        where = "over several nodes" if call.place.nodes > 1 else "on one node"
        if self.place is None:
            return f"nothing was measured {where}; measure at {devices}"
        return f"no {call.kind} was measured {where}: run dpscope calibrate with --devices {devices}, or give --link"


def machine_costs(
    manifest: Manifest | None, stated: LinkRate | None, calibration: Calibration | None
) -> Costs:
    """Costs on the machine of a run: the link as stated now, else as when it was measured; traces
    have no manifest.
    """
    if manifest is None:
        return Costs(stated, calibration)
    recorded = manifest.config.reporting.link
    stated = stated or (parse_link(recorded) if recorded is not None else None)
    return Costs(stated, calibration, manifest.environment.interconnect)
