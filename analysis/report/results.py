"""What a report is made of: a run, its comparison, and the chapters on NCCL and what-if."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.predicted import CollectivePrediction
from dpscope.analysis.report.nccl_tables import NcclChapter
from dpscope.analysis.runs.run_data import RunData
from dpscope.profiling.records.calibration import Choice

if TYPE_CHECKING:
    from dpscope.analysis.what_if.answer import RunAnswer


@dataclass(frozen=True)
class Results:
    """From these every view makes its table."""

    run: RunData
    comparison: Comparison
    nccl: NcclChapter

    @cached_property
    def what_if(self) -> "RunAnswer | None":
        """The largest DDP cell on more devices, replayed when a table or figure of it is first
        asked for; None for runs without a base for predictions, which import no module of it.
        """
        if self.run.recorded is None:
            return None
        if not any(job.traits.reducer and job.devices > 1 for job in self.run.measured):
            return None
        from dpscope.analysis.what_if.answer import chapter_of

        return chapter_of(self.run, self.comparison.collective_costs)

    def choice(self, one: CollectivePrediction) -> Choice | None:
        """What NCCL chose for a collective, if its log is known."""
        nodes = self.run.cells[one.cell].nodes
        return self.nccl.choice(one.ranks, nodes, one.kind, one.size_bytes)
