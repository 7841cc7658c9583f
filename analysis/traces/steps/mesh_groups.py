"""The group in which a collective of HSDP ran, where the trace lists the groups and no collective names its own, as gloo's."""

from collections.abc import Sequence
from dataclasses import replace

from dpscope.analysis.traces.reading.event_table import CommunicationArgs, ProcessGroup
from dpscope.analysis.traces.reading.tensor_sizes import group_size

SHARD, REPLICATE = "mesh_shard", "mesh_replicate"  # torch's names for the two dimensions of dpscope's mesh

ToldCollective = tuple[CommunicationArgs, str | None]
"""What is told of a collective, and its kind."""


def in_mesh(told: Sequence[ToldCollective], groups: Sequence[ProcessGroup]) -> list[ToldCollective]:
    """The same, all-gathers and reduce-scatters in the group that shards, and all-reduces of a rank's shards between groups.

    Only where the process is in one group of each and in none besides but that of all ranks, and no collective names a group.
    Source: torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py: HSDP all-reduces what a reduce-scatter leaves to a rank.
    """
    shard, replicate = ([one for one in groups if one.description == name] for name in (SHARD, REPLICATE))
    if (len(shard), len(replicate), len(groups)) != (1, 1, 3) or any(args.group is not None for args, _ in told):
        return list(told)
    within, between = shard[0], replicate[0]
    gathered = [
        kind in ("all_gather", "reduce_scatter") and group_size(args, kind) == len(within.ranks) for args, kind in told
    ]
    shards = {
        min(args.input_elements or 0, args.output_elements or 0)
        for (args, kind), own in zip(told, gathered, strict=True)
        if own and kind == "reduce_scatter"
    }
    found = []
    for (args, kind), own in zip(told, gathered, strict=True):
        of_a_shard = kind == "all_reduce" and args.input_elements in shards
        group = within if own else between if of_a_shard else None
        found.append((args if group is None else _of_group(args, group), kind))
    return found


def _of_group(args: CommunicationArgs, group: ProcessGroup) -> CommunicationArgs:
    return replace(args, group=group.name, group_ranks=str(list(group.ranks)), group_size=len(group.ranks))
