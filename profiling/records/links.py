"""Types for the links between GPUs. Imports no torch. None is unknown; rates are of one direction,
1e9 B/s.
"""

from dpscope.profiling.records.stored import Stored

REACHED_RATE = "reached, as the user measured"  # the source of a rate that is not a specification


class LinkRate(Stored, frozen=True):
    """The specified or reached rate of a link in one direction, with its source."""

    gb_per_s: float  # 1e9 B/s
    name: str  # such as "NVLink 4 x18"
    source: str


class DeviceLinks(Stored, frozen=True):
    """Links of one GPU."""

    index: int  # NVML's
    uuid: str | None = None
    name: str | None = None
    torch_index: int | None = None  # the same GPU's index in this process's torch, matched by UUID
    active_nvlinks: int = 0
    nvlink_version: int | None = None  # generation, 1 to 5
    # the highest that device and slot support; the current one drops at idle
    pcie_generation: int | None = None
    pcie_width: int | None = None
    # in folders of earlier versions
    nvlink_gb_per_s: float | None = None
    current_pcie_generation: int | None = None
    current_pcie_width: int | None = None


class PairLink(Stored, frozen=True):
    """The connection between two GPUs."""

    first: int  # NVML's indices
    second: int
    direct_nvlinks: int = 0  # from one to the other without a switch
    through_nvswitch: bool = False
    peer_access: bool | None = None
    rate: LinkRate | None = None
    # in folders of earlier versions
    topology: str | None = None
    peer_status: str | None = None


class Interconnect(Stored, frozen=True):
    """The links of a machine's visible GPUs."""

    devices: tuple[DeviceLinks, ...] = ()
    pairs: tuple[PairLink, ...] = ()
