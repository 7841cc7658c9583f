"""Where a process of an attached script stands in its job, and the name that the processes of a job share."""

import os
import time
import uuid
from dataclasses import dataclass

import torch
from torch import distributed

_KEY = "dpscope/attached"
_LONGEST_WAIT_S = 10.0  # for processes that never communicate, and so need not begin together
_COUNT = "dpscope/attached/processes"


@dataclass(frozen=True)
class AttachedPlace:
    """This process's place among those that train together."""

    rank: int
    local_rank: int
    world_size: int
    node: int
    nodes: int = 1  # hosts of the job, as torchrun says it


@dataclass(frozen=True)
class Transport:
    """What the processes of a job communicate by; None for one that trains alone."""

    backend: str | None = None
    nccl_engine: str | None = None  # the class of torch's process group, on GPUs


def transport_of(place: AttachedPlace, device: torch.device) -> Transport:
    """Asked while the script's process group is there: at its end a script destroys it."""
    if place.world_size == 1:
        return Transport()
    group = distributed.distributed_c10d._get_default_group()
    engine = type(group._get_backend(device)).__name__ if device.type == "cuda" else None
    return Transport(str(distributed.get_backend()), engine)


def attached_place() -> AttachedPlace | None:
    """By the script's process group; None where a job's processes have none and so train alone, in each other's way."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    node = int(os.environ.get("GROUP_RANK", "0"))
    if distributed.is_available() and distributed.is_initialized():
        rank = distributed.get_rank()
        nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
        return AttachedPlace(rank, local_rank, distributed.get_world_size(), node, nodes)
    return AttachedPlace(0, local_rank, 1, node) if int(os.environ.get("WORLD_SIZE", "1")) == 1 else None


def name_of_job(place: AttachedPlace) -> str:
    """A name that the processes of this job have in common and no other job has.

    They agree on it through the store of the script's process group: nobody waits for anybody, as they would in a
    collective, which a script with uneven inputs might never reach.
    """
    name = uuid.uuid4().hex
    if place.world_size > 1:
        store = distributed.distributed_c10d._get_default_store()
        name = store.compare_set(_KEY, "", name).decode()
    return name


def join_job(place: AttachedPlace) -> None:
    """Count this process among those of its job that are measured."""
    if place.world_size > 1:
        distributed.distributed_c10d._get_default_store().add(_COUNT, 1)


def missing_processes(place: AttachedPlace) -> int:
    """How many processes of a job that torchrun did not start run the script without dpscope; 0 where that is not known.

    Those that train together have all joined by the time that one has been traced; others are waited for, some seconds at most.
    """
    if place.world_size == 1 or "TORCHELASTIC_RUN_ID" in os.environ or not distributed.is_initialized():
        return 0
    store = distributed.distributed_c10d._get_default_store()
    given_up_s = time.monotonic() + _LONGEST_WAIT_S
    while (missing := place.world_size - int(store.add(_COUNT, 0))) and time.monotonic() < given_up_s:
        time.sleep(0.05)
    return missing
