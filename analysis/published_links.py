"""The link of GPUs that have PCIe and nothing else, for judging a stated peak."""

from dpscope.profiling.machine.link_specifications import gpu_model, model_link, pcie_gbps
from dpscope.profiling.records.links import LinkRate

__all__ = ["link_peak", "pcie_gbps"]


def link_peak(hardware: str | None) -> LinkRate | None:
    """The link between GPUs that are known to have PCIe only; None for any other and for unknown hardware."""
    model = gpu_model(hardware)
    return model_link(model) if model is not None and model.nvlink_version is None else None
