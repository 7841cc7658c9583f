"""What a strategy costs a step beside the plainer one, and what memory it saves: FSDP beside DDP, DDP alone beside none."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from dpscope.analysis.cells.row import Row, minus
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.variant_savings import shared_options
from dpscope.analysis.stats.samples import Estimate, Spread, ratio_estimate
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.strategies import traits_of


@dataclass(frozen=True)
class StrategyCost:
    """Two cells of equal devices and batch: `ratio` is the median step of `cell` over that of `against`, with its interval.

    `saved_bytes` is what a device of `against` holds more of `memory`: peak is that of torch's allocator over the timed
    steps, state that of parameters, buffers and optimizer state between steps, where no peak is known.
    """

    cell: str
    against: str
    strategy: str
    devices: int
    batch_size: int  # per device
    ratio: Estimate
    saved_bytes: float | None
    memory: Literal["peak", "state"]
    nodes: int = 1

    @property
    def alone(self) -> bool:
        """Whether it is DDP on one device, which communicates nothing."""
        return self.devices == 1


def strategy_costs(measured: Sequence[CellData], rows: Mapping[str, Row], spread: Spread) -> tuple[StrategyCost, ...]:
    """Every measured cell that has the plainer one beside it: FSDP and replicate DDP, DDP on one device a single device."""
    return tuple(_cost(cell, data, other, rows, spread) for cell, data, other in _pairs(measured))


def _pairs(measured: Sequence[CellData]) -> Iterator[tuple[Cell, CellData, CellData]]:
    planned = [(data.cell, data) for data in measured if isinstance(data.cell, Cell)]
    for cell, data in planned:
        plainer = _plainer(cell)
        for other_cell, other in planned:
            if plainer is not None and plainer == other_cell:
                yield cell, data, other


def _plainer(cell: Cell) -> Cell | None:
    """The cell that another is compared with, itself with DDP's defaults."""
    kept = shared_options(cell.options)
    if cell.traits.sharded:  # DDP's hook of the same type, in which both then reduce
        kept = msgspec.structs.replace(kept, comm_hook=cell.options.comm_hook)
    plainer = cell.traits.plainer
    if plainer is None or (traits_of(plainer).baseline and cell.devices > 1):
        return None
    return Cell(strategy=plainer, devices=cell.devices, batch_size=cell.batch_size, options=kept, nodes=cell.nodes)


def _cost(cell: Cell, data: CellData, other: CellData, rows: Mapping[str, Row], spread: Spread) -> StrategyCost:
    memory: Literal["peak", "state"] = "peak"
    column = "peak_allocated_bytes"
    both = [rows[name].number(column) for name in (other.cell.name, cell.name)]
    if None in both:
        memory, column = "state", "state_bytes"
        both = [rows[name].number(column) for name in (other.cell.name, cell.name)]
    return StrategyCost(
        cell=cell.name,
        against=other.cell.name,
        strategy=cell.strategy,
        devices=cell.devices,
        batch_size=cell.batch_size,
        ratio=ratio_estimate(data.step_samples(), other.step_samples(), spread),
        saved_bytes=minus(both[0], both[1]),
        memory=memory,
        nodes=data.nodes,
    )
