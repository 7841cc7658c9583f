"""The checks of the acceptance, in the order in which they run: a table of contents. Imports no torch.

Each is a function `module:function` of this folder that takes a Workplace and returns its verdicts. The time limits of a part add
up to more than the part may take: a check that no time is left for is skipped, and says so.
"""

from dataclasses import dataclass
from typing import Literal

Part = Literal[1, 2]
ACCEPTANCE_PARTS: tuple[Part, ...] = (1, 2)
PART_S = 570.0  # of the ten minutes that a part may take, with half a minute to end and to report


@dataclass(frozen=True)
class AcceptanceCheck:
    """`limit_s` is how long it may take; it is begun only where `expected_s` are left."""

    name: str
    function: str
    part: Part
    expected_s: float
    limit_s: float
    least_gpus: int = 1

    def why_not(self, gpus: int, left_s: float) -> str | None:
        """Why it is not run here and now, None where it is."""
        if gpus == 0:
            return "no GPU that torch can use"
        if gpus < self.least_gpus:
            return f"needs {self.least_gpus} GPUs, {gpus} here"
        if left_s < self.expected_s:
            return f"only {max(0.0, left_s):.0f} s of part {self.part} are left, and it takes about {self.expected_s:.0f} s"
        return None


CHECKS = (
    AcceptanceCheck("a.machine", "machine:machine", 1, 40, 150),
    AcceptanceCheck("b.single_and_ddp", "cells:single_and_ddp", 1, 90, 200),
    AcceptanceCheck("c.options", "cells:options", 1, 290, 450),
    AcceptanceCheck("d.clocks", "measures:clocks", 1, 20, 60),
    AcceptanceCheck("e.memory", "measures:memory", 1, 20, 60),
    AcceptanceCheck("f.tracer", "measures:tracer", 1, 10, 60),
    AcceptanceCheck("g.two_nccl_ranks", "ranks:two_nccl_ranks", 2, 30, 90),
    AcceptanceCheck("h.two_gloo_ranks", "ranks:two_gloo_ranks", 2, 30, 90),
    AcceptanceCheck("i.data_parallel", "replicas:two_replicas", 2, 15, 60),
    AcceptanceCheck("j.out_of_memory", "ranks:out_of_memory", 2, 30, 100),
    AcceptanceCheck("k.endings", "endings:endings", 2, 90, 200),
    AcceptanceCheck("l.resume", "endings:resume", 2, 90, 200),
    AcceptanceCheck("m.calibration", "ranks:calibration", 2, 30, 100),
    AcceptanceCheck("n.data_parallel_counts", "several:data_parallel_counts", 2, 60, 150, least_gpus=2),
    AcceptanceCheck("o.overlap", "several:overlap", 2, 90, 200, least_gpus=2),
    AcceptanceCheck("p.links", "several:links", 2, 10, 60, least_gpus=2),
    AcceptanceCheck("q.nccl_tests", "several:nccl_tests", 2, 60, 150, least_gpus=2),
    AcceptanceCheck("r.straggler", "several:straggler", 2, 40, 100, least_gpus=2),
    AcceptanceCheck("s.order_of_devices", "several:order_of_devices", 2, 40, 100, least_gpus=2),
)
