"""The links of the GPUs as NVML describes them."""

from dataclasses import dataclass
from typing import Any

NVLINK_MAXIMUM_LINKS = 18  # NVML_NVLINK_MAX_LINKS


@dataclass(frozen=True)
class DeviceLinks:
    """Links of one GPU; None where NVML does not say."""

    index: int
    active_nvlinks: int
    nvlink_version: int | None
    pcie_generation: int | None  # the highest that device and slot support; the current one drops at idle
    pcie_width: int | None


def device_links(nvml: Any | None) -> tuple[DeviceLinks, ...]:
    """Links of every GPU of the machine; empty without NVML."""
    if nvml is None:
        return ()
    return tuple(_links(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))


def _links(nvml: Any, index: int) -> DeviceLinks:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    active = [link for link in range(NVLINK_MAXIMUM_LINKS) if _ask(nvml, "nvmlDeviceGetNvLinkState", handle, link)]
    return DeviceLinks(
        index=index,
        active_nvlinks=len(active),
        nvlink_version=_ask(nvml, "nvmlDeviceGetNvLinkVersion", handle, active[0]) if active else None,
        pcie_generation=_ask(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        pcie_width=_ask(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle),
    )


def _ask(nvml: Any, question: str, *arguments: Any) -> int | None:
    try:
        answer: int = getattr(nvml, question)(*arguments)
    except nvml.NVMLError:
        return None
    return answer
