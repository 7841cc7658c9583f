"""The step time and memory of a strategy versus the plainer one: FSDP versus DDP, DDP on one device versus none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from dpscope.analysis.cells.row import CellRow, minus
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.variant_savings import shared_options
from dpscope.analysis.stats.samples import Estimate, Spread, ratio_estimate
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.strategies import traits_of


@dataclass(frozen=True)
class StrategyCost:
    """Two cells of equal devices and batch: `ratio` is the median step of `cell` over that of `against`, with its interval.

    `saved_bytes` is how much more `memory` a device of `against` holds: peak is that of torch's allocator over the timed
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


def strategy_costs(
    measured: Sequence[CellData], rows: Mapping[str, CellRow], spread: Spread
) -> tuple[StrategyCost, ...]:
    """Each measured cell with its plainer one: DDP for FSDP and replicate, a single device for DDP on one device.

    The plainer one has DDP's defaults; that of a sharded cell DDP's hook of the same type, in which both then reduce.
    """
    planned = {data.cell: data for data in measured if isinstance(data.cell, Cell)}
    costs = []
    for cell, data in planned.items():
        plainer = cell.traits.plainer
        if plainer is None or (traits_of(plainer).baseline and cell.devices > 1):
            continue
        kept = shared_options(cell.options)
        if cell.traits.sharded:
            kept = msgspec.structs.replace(kept, comm_hook=cell.options.comm_hook)
        other = planned.get(Cell(plainer, cell.devices, cell.batch_size, options=kept, nodes=cell.nodes))
        if other is None:
            continue
        more, less = rows[other.cell.name], rows[cell.name]
        memory: Literal["peak", "state"] = "peak"
        saved = minus(more.peak_allocated_bytes, less.peak_allocated_bytes)
        if saved is None:
            saved, memory = minus(more.state_bytes, less.state_bytes), "state"
        costs.append(
            StrategyCost(
                cell=cell.name,
                against=other.cell.name,
                strategy=cell.strategy,
                devices=cell.devices,
                batch_size=cell.batch_size,
                ratio=ratio_estimate(data.step_samples(), other.step_samples(), spread),
                saved_bytes=saved,
                memory=memory,
                nodes=data.nodes,
            )
        )
    return tuple(costs)
