"""A process's place in its job, from torchrun's variables."""

from collections.abc import Mapping
from dataclasses import dataclass

from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.run import Cell
from dpscope.profiling.store.errors import DpscopeError


@dataclass(frozen=True)
class TorchrunPlace:
    """This process's ranks, and the sizes of its job."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node: int
    nodes: int = 1


def torchrun_place(environment: Mapping[str, str]) -> TorchrunPlace:
    """Read torchrun's variables; raises DpscopeError when this process was not started by it."""
    try:
        return TorchrunPlace(
            rank=int(environment["RANK"]),
            local_rank=int(environment["LOCAL_RANK"]),
            world_size=int(environment["WORLD_SIZE"]),
            local_world_size=int(environment["LOCAL_WORLD_SIZE"]),
            node=int(environment["GROUP_RANK"]),
            nodes=int(environment.get("GROUP_WORLD_SIZE", "1")),
        )
    except KeyError as missing:
        raise DpscopeError(
            f"{missing.args[0]} is not set: the worker runs under torchrun; start it with "
            "torchrun --standalone --nproc-per-node=N launch/worker.py ..."
        ) from missing


def check_process_count(cell: Cell, place: TorchrunPlace) -> None:
    """Raise DpscopeError unless torchrun started as many processes as the cell has."""
    if cell.processes != place.world_size:
        raise DpscopeError(
            f"{cell.name} needs {cell.processes} process(es) and torchrun started {place.world_size}; "
            f"use --nproc-per-node={cell.processes}, over several nodes their share of it"
        )


def check_nodes(cell: Cell, place: TorchrunPlace) -> None:
    """Raise DpscopeError unless the job spans as many nodes as the cell that it is to measure."""
    if cell.per_device and cell.nodes != place.nodes:
        raise DpscopeError(
            f"{cell.name} is a cell of {counted(cell.nodes, 'node')} and torchrun started {place.nodes}: give the flags of the "
            "cell instead of --cell, and it is entered as one of its own"
        )
