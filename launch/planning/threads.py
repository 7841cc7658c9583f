"""Threads of a job's processes against the cores of the host they run on. Imports no torch."""

from dpscope.launch.jobs.devices import Devices
from dpscope.profiling.machine.environment import usable_cores
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.run import Cell
from dpscope.profiling.store.errors import DpscopeError


def threads_by_default(devices_here: int, devices: Devices) -> int:
    """Threads of each process of a run that begins with a cell of so many devices on this host.

    What the largest cell will leave each: that is on all GPUs, as for `dpscope run`; on the CPU on two devices or, where
    it begins with more, on as many.
    """
    return max(1, usable_cores() // max(2, devices_here, devices.count or 1))


def check_threads(cell: Cell, processes_here: int, threads: int, where: str) -> None:
    """Raise DpscopeError, beginning with `where`, when this host's share of a cell has more threads than cores.

    One thread each is as few as there can be: where that is too many, a finding of the run says so.
    """
    if threads < 1:
        raise DpscopeError(f"{where}: must be 1 or more")
    shares, cores = cell.devices if cell.traits.host_copies else processes_here, usable_cores()
    if threads > 1 and shares * threads > cores:
        raise DpscopeError(
            f"{where}: {cell.name} would compute with {shares} x {counted(threads, 'thread')} on the "
            f"{counted(cores, 'core')} of this host; give "
            f"every cell --threads {max(1, cores // shares)}, in a new --out if others are measured"
        )
