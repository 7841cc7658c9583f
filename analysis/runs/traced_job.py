"""A job known only by its traces: its size and strategy."""

from dataclasses import dataclass, field
from typing import Literal

from dpscope.analysis.traces.ranks.parallelism import traced_strategy
from dpscope.analysis.traces.ranks.trace_analysis import TraceAnalysis
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.run import CellOptions
from dpscope.profiling.records.strategies import CellStrategy, StrategyTraits, traits_of

JobStrategy = CellStrategy | Literal["other"]


@dataclass(frozen=True)
class TracedJob:
    """A job known only by its traces; `strategy` is "other" if they show none of dpscope's strategies.

    `devices` and `processes` count the whole job, also where traces of some ranks are missing. The batch size is unknown: check
    `knows_batch` before reading it.
    """

    name: str
    strategy: JobStrategy
    devices: int
    processes: int
    options: CellOptions = field(default_factory=CellOptions)
    variant: str = ""
    device_name: str | None = field(default=None, compare=False)

    @property
    def traits(self) -> StrategyTraits:
        return traits_of(self.strategy)

    @property
    def batch_size(self) -> int:
        raise AssertionError("traces do not record the batch")

    @property
    def global_batch_size(self) -> int:
        raise AssertionError("traces do not record the batch")


def traced_job(analysis: TraceAnalysis) -> TracedJob:
    """Ranks and devices as the traces show them; a trace that shows neither is of one process."""
    evidence, collectives = [one.parallelism for one in analysis.summaries], analysis.tables.collectives
    ranks = [one.rank for one in analysis.summaries if one.rank is not None]
    sizes = [one.world_size for one in evidence if one.world_size is not None]
    groups, read = collectives["group_size"].tolist() if len(collectives) else [], len(evidence)
    processes = max([read, *sizes, *(rank + 1 for rank in ranks), *groups])
    ranks_read = counted(read, "rank") if processes == read else f"{read} of {counted(processes, 'rank')}"
    return TracedJob(
        name=f"traces of {ranks_read}" if processes > 1 else "trace of one process",
        strategy=traced_strategy(evidence, collectives),
        devices=max(processes, *(one.devices for one in evidence)),
        processes=processes,
        device_name=next((one.device_name for one in analysis.summaries if one.device_name is not None), None),
    )
