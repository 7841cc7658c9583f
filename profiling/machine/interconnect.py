"""The links between the GPUs by NVML: NVLinks and PCIe, of each GPU and between each pair. Imports no
torch.

Values that NVML does not report are None.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from dpscope.profiling.machine.link_specifications import nvlink, pcie_link
from dpscope.profiling.machine.nvml import bare_uuid, decoded_text, gpu_handles, query
from dpscope.profiling.records.links import DeviceLinks, Interconnect, LinkRate, PairLink

# NVML_NVLINK_MAX_LINKS of current drivers; a GPU rejects the numbers it does not have
_MOST_NVLINKS = 36

_NVLINK_GENERATIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}
"""nvmlNvlinkVersion_t is an enumeration, not a version number: 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0,
6.0. An A100 has 5.
"""

_NEWEST_NVLINK = {4: 1, 5: 2, 6: 2, 7: 3, 8: 3, 9: 4, 10: 5, 13: 6}
"""The newest generation of each architecture, Pascal (4) to Rubin (13). Some drivers report 5.0 for
an H100.
"""

_QUERIES = {
    "uuid": "UUID",
    "name": "Name",
    "pcie_generation": "MaxPcieLinkGeneration",
    "pcie_width": "MaxPcieLinkWidth",
}
"""Fields of DeviceLinks as nvmlDeviceGet... answers them."""

_READ = 0  # NVML_P2P_CAPS_INDEX_READ
_TO_SWITCH, _TO_UNKNOWN = 2, 255  # nvmlIntNvLinkDeviceType_t


@dataclass(frozen=True)
class _Gpu:
    handle: Any
    links: DeviceLinks
    address: str | None  # on the PCI bus
    far_ends: tuple[str | None, ...]  # PCI address at the other end of each active NVLink
    # its NVLinks lead to NVSwitches, so that all of them connect it to any other GPU there
    on_switch: bool


def interconnect(nvml: Any | None, torch_uuids: Sequence[str] = ()) -> Interconnect:
    """Links of each GPU of the machine that responds, and between each pair of them; empty without
    NVML.

    `torch_uuids` are those of torch's devices in torch's order; a GPU that is not among them has no
    `torch_index`.
    """
    handles = {}
    for index, handle in enumerate(gpu_handles(nvml)):
        if handle is not None:
            handles[index] = handle
    addresses = {
        index: _address(query(nvml, "nvmlDeviceGetPciInfo", handle))
        for index, handle in handles.items()
    }
    torch_indices = {bare_uuid(uuid): index for index, uuid in reversed([*enumerate(torch_uuids)])}
    gpu_addresses = {address for address in addresses.values() if address is not None}
    gpus = []
    for index, handle in handles.items():
        active = active_nvlinks(nvml, handle)
        links = _device_links(nvml, handle, index, active, torch_indices)
        far_ends = tuple(
            _address(query(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link))
            for link in active
        )
        kinds = [
            query(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) for link in active
        ]
        on_switch = bool(active) and all(
            _leads_to_switch(kind, end in gpu_addresses)
            for kind, end in zip(kinds, far_ends, strict=True)
        )
        gpus.append(_Gpu(handle, links, addresses[index], far_ends, on_switch))
    pairs = tuple(_pair(nvml, first, second) for first, second in combinations(gpus, 2))
    return Interconnect(devices=tuple(gpu.links for gpu in gpus), pairs=pairs)


def _leads_to_switch(kind: int | None, to_gpu: bool) -> bool:
    """Whether an active NVLink whose far end is of this kind leads to an NVSwitch.

    Virtual machines, such as most cloud instances, do not see the switches: a link whose far end is
    of unknown kind and not a visible GPU is taken to lead to one, as NCCL does (src/graph/xml.cc:
    "Assume NVSwitch").
    """
    return kind == _TO_SWITCH or (kind in (None, _TO_UNKNOWN) and not to_gpu)


def _device_links(
    nvml: Any | None,
    handle: Any,
    index: int,
    active: Sequence[int],
    torch_indices: Mapping[str, int],
) -> DeviceLinks:
    version = None
    if active:
        reported = query(nvml, "nvmlDeviceGetNvLinkVersion", handle, active[0])
        version = _NVLINK_GENERATIONS.get(reported)
        architecture = query(nvml, "nvmlDeviceGetArchitecture", handle)
        newest = _NEWEST_NVLINK.get(architecture)
        if version is not None and newest is not None:
            version = min(version, newest)
    fields = {
        field: query(nvml, f"nvmlDeviceGet{what}", handle) for field, what in _QUERIES.items()
    }
    torch_index = None
    if fields["uuid"] is not None:
        torch_index = torch_indices.get(bare_uuid(fields["uuid"]))
    return DeviceLinks(
        **fields,
        index=index,
        torch_index=torch_index,
        active_nvlinks=len(active),
        nvlink_version=version,
    )


def active_nvlinks(nvml: Any | None, handle: Any) -> list[int]:
    return [
        link
        for link in range(_MOST_NVLINKS)
        if query(nvml, "nvmlDeviceGetNvLinkState", handle, link)
    ]


def _pair(nvml: Any | None, first: _Gpu, second: _Gpu) -> PairLink:
    status = query(nvml, "nvmlDeviceGetP2PStatus", first.handle, second.handle, _READ)
    direct = 0 if second.address is None else first.far_ends.count(second.address)
    switched = first.on_switch and second.on_switch
    links = direct
    if switched:
        links = min(first.links.active_nvlinks, second.links.active_nvlinks)
    if links:
        rate = nvlink(first.links.nvlink_version, links, first.links.name)
    else:
        rate = _slower([_pcie(first.links), _pcie(second.links)])
    return PairLink(
        first=first.links.index,
        second=second.links.index,
        direct_nvlinks=direct,
        through_nvswitch=switched,
        peer_access=None if status is None else status == 0,
        rate=rate,
    )


def _pcie(device: DeviceLinks) -> LinkRate | None:
    return pcie_link(device.pcie_generation, device.pcie_width)


def _slower(rates: Iterable[LinkRate | None]) -> LinkRate | None:
    """The slowest of these links; unknown when one of them is."""
    slowest = None
    for rate in rates:
        if rate is None:
            return None
        if slowest is None or rate.gb_per_s < slowest.gb_per_s:
            slowest = rate
    return slowest


def group_rate(links: Interconnect, torch_indices: Iterable[int]) -> LinkRate | None:
    """The rate that bounds a ring through these GPUs (torch's indices) in one direction; None if
    unknown.

    If NVLinks connect them in a ring, this is the rate of all NVLinks from a GPU to others of the
    group (a library runs several rings at once), of the GPU with the lowest one. Otherwise it is
    the slowest PCIe link: one hop without NVLink limits the ring.
    """
    wanted = set(torch_indices)
    members = {device.index: device for device in links.devices if device.torch_index in wanted}
    if len(members) < len(wanted) or len(members) < 2:
        return None
    inside = [pair for pair in links.pairs if pair.first in members and pair.second in members]
    fast = [pair for pair in inside if pair.direct_nvlinks or pair.through_nvswitch]
    if not _has_ring(sorted(members), {frozenset((pair.first, pair.second)) for pair in fast}):
        return _slower(_pcie(device) for device in members.values())
    return _slower(_nvlinks_within(device, fast) for device in members.values())


def _nvlinks_within(device: DeviceLinks, pairs: Sequence[PairLink]) -> LinkRate | None:
    """All NVLinks from a GPU to others of the group, of which these are the pairs with NVLinks."""
    links = [pair for pair in pairs if device.index in (pair.first, pair.second)]
    switched = any(pair.through_nvswitch for pair in links)
    count = device.active_nvlinks if switched else sum(pair.direct_nvlinks for pair in links)
    return nvlink(device.nvlink_version, count, device.name)


def _has_ring(members: Sequence[int], joined: set[frozenset[int]]) -> bool:
    """Whether the joined pairs contain a ring through all members; two members need one pair."""
    if len(joined) == len(members) * (len(members) - 1) // 2:
        return True

    def closes(path: list[int]) -> bool:
        if len(path) == len(members):
            return frozenset((path[-1], path[0])) in joined
        following = [
            member
            for member in members
            if member not in path and frozenset((path[-1], member)) in joined
        ]
        return any(closes([*path, device]) for device in following)

    return closes([members[0]])


def _address(pci: Any) -> str | None:
    return None if pci is None else decoded_text(pci.busId)
