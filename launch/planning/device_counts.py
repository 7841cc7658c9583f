"""How many devices, and of how many nodes, cells have: by default, and what cannot be. Imports no torch."""

from collections.abc import Sequence

from dpscope.launch.jobs.devices import Devices
from dpscope.profiling.machine.environment import usable_cores
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.matrix import Layout, parse_layout
from dpscope.profiling.records.strategies import spans_nodes
from dpscope.profiling.store.errors import DpscopeError


def default_device_counts(devices: Devices) -> tuple[int, ...]:
    if devices.count is None:
        return (1, 2)
    powers = [2**exponent for exponent in range(devices.count.bit_length())]
    return tuple(sorted({count for count in powers if count <= devices.count} | {devices.count}))


def default_layouts(per_node: int, nodes: int) -> tuple[str, ...]:
    """Whole nodes: 2, 4, 8, ... and all of them."""
    doubling = [2**exponent for exponent in range(1, nodes.bit_length())]
    return tuple(str(Layout(count, per_node)) for count in sorted({*doubling, nodes}) if 1 < count <= nodes)


def check_layouts(counts: Sequence[int], layouts: Sequence[str], strategies: Sequence[str], nodes: int) -> None:
    """Raise DpscopeError for cells over more nodes than there are, for none over the nodes that there are."""
    written = ",".join((*map(str, counts), *layouts))
    most = max((parse_layout(one).nodes for one in layouts), default=1)
    if layouts and not spans_nodes(strategies):
        raise DpscopeError(
            f"--devices {written}: only strategies with a process for each device span nodes, and --strategy "
            f"{','.join(strategies)} has none; add ddp"
        )
    if most > nodes:
        there = "one node is" if nodes == 1 else f"{counted(nodes, 'node')} are"
        raise DpscopeError(
            f"--devices {written}: {there} available, {most} are needed; start the same command on {counted(most, 'node')}, with "
            f"--nodes {most} or --nodes auto"
        )
    if nodes > most:
        raise DpscopeError(
            f"--nodes {nodes} with --devices {written}: only {most} of the nodes would be used; name counts over "
            f"all of them, such as {nodes}x{max(counts, default=1)}, or give --nodes {most}"
            if most > 1
            else f"--nodes {nodes} with --devices {written} and --strategy {','.join(strategies)}: nothing spans nodes; "
            f"name counts over all of them, such as --devices {nodes}x{max(counts, default=1)} with ddp, or omit --nodes"
        )


def check_device_count(flag: str, count: int, devices: Devices) -> None:
    if devices.count is not None and count > devices.count:
        raise DpscopeError(
            f"{flag} {count}: this machine has {counted(devices.count, 'GPU')} that torch can use; "
            f"ask for {devices.count} at most"
        )
    most = max(8, 4 * usable_cores())
    if devices.count is None and count > most:
        raise DpscopeError(
            f"{flag} {count}: on the CPU a device is a process, and {counted(usable_cores(), 'core')} are there "
            f"for them; use {usable_cores()}; up to {most} are accepted, to see how things work"
        )
