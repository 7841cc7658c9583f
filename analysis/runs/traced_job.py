"""What stands for a run's cell where traces were made without dpscope: what they tell of their job, and no more."""

from dataclasses import dataclass, field
from typing import Literal

from dpscope.profiling.records.run import Cell, CellOptions
from dpscope.profiling.records.strategies import CellStrategy, StrategyTraits, traits_of

TRACES_ALONE = "traces alone: their job tells nothing else"
JobStrategy = CellStrategy | Literal["other"]


@dataclass(frozen=True)
class TracedJob:
    """A job known by its traces alone; `strategy` is other where they show none of dpscope's, or do not tell.

    `devices` are those of the whole job, `processes` its ranks; traces may be missing of some. Traces tell no batch: whoever
    asks for it asks `knows_batch` first.
    """

    name: str
    strategy: JobStrategy
    devices: int
    processes: int
    options: CellOptions = field(default_factory=CellOptions)
    variant: str = ""

    @property
    def traits(self) -> StrategyTraits:
        """What its strategy does."""
        return traits_of(self.strategy)

    @property
    def batch_size(self) -> int:
        raise AssertionError("traces tell no batch")

    @property
    def global_batch_size(self) -> int:
        raise AssertionError("traces tell no batch")


AnyCell = Cell | TracedJob


def knows_batch(cell: AnyCell) -> bool:
    """Whether a cell's samples per device and step are known."""
    return isinstance(cell, Cell)
