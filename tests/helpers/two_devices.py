"""Two devices of PrivateUse1 in this process, called ``twin``, on which torch's own nn.DataParallel
runs its Python paths.

What torch allows from Python is one device: the guard that it registers for a backend in Python
(`torch._C._acc.DeviceGuard`) has a type and nothing else, and autograd starts a thread for each
device that the guard counts. So the guard is a few lines of C++ (two_devices.cpp), compiled against
torch's headers alone. Tensors are Python's, over a tensor of the host each; an operator whose
tensors lie on different devices fails. The three functions that torch has in C++ for CUDA alone
(scatter, gather, coalesced broadcast) are doubles that record their arguments; reducing, its chunks
included, is torch's.
"""

import ctypes
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import library as operators
from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import rename_privateuse1_backend

from tests.helpers.paths import ROOT

NAME = "twin"
_KEPT: list[Any] = []  # the registration ends when the object is freed
SOURCE = ROOT / "tests" / "helpers" / "two_devices.cpp"


def compile_guard(folder: Path) -> Path:
    """The guard as a library; takes a C++ compiler some seconds."""
    torch_folder = Path(torch.__file__).parent
    library = folder / "two_devices.so"
    found = (f"-I{torch_folder / 'include'}", f"-L{torch_folder / 'lib'}", "-lc10")
    flags = ("-O0", "-std=c++20", "-shared", "-fPIC", *found)
    subprocess.run(["g++", str(SOURCE), "-o", str(library), *flags], check=True, timeout=120)
    return library


class TwinTensor(torch.Tensor):
    """A tensor that claims to be on a device; `host` has its values."""

    host: torch.Tensor
    calls: list[tuple[Any, ...]]  # what was done between devices, of the whole process

    @staticmethod
    def __new__(cls: Any, host: torch.Tensor, index: int) -> "TwinTensor":
        strides, offset, device = host.stride(), host.storage_offset(), torch.device(NAME, index)
        made: TwinTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=strides,
            storage_offset=offset,
            dtype=host.dtype,
            device=device,
        )
        made.host = host
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        aten, given = torch.ops.aten, dict(kwargs or {})
        if func is aten.record_stream.default:
            cls.calls.append(("record_stream", args[0].device.index))
            return None
        if func is aten._to_copy.default:
            source, device = args[0], given.pop("device", None) or args[0].device
            values = (source.host if isinstance(source, TwinTensor) else source).clone()
            cls.calls.append(
                ("copy", source.device.index, device.index, values.numel() * values.element_size())
            )
            moved = func(values, **given)
            return moved if device.type == "cpu" else TwinTensor(moved, device.index)
        devices: set[int] = set()

        def hosted(value: Any) -> Any:
            if isinstance(value, TwinTensor):
                devices.add(value.device.index)
                return value.host
            if isinstance(value, torch.device) and value.type == NAME:
                devices.add(value.index)
                return torch.device("cpu")
            return value

        values = func(*tree_map(hosted, args), **tree_map(hosted, given))
        assert len(devices) == 1, f"{func} of tensors on devices {sorted(devices)}"
        if func._schema.name.endswith("_"):
            return args[0]
        (index,) = devices
        return tree_map(
            lambda one: TwinTensor(one, index) if isinstance(one, torch.Tensor) else one, values
        )


def install(library: Path) -> list[tuple[Any, ...]]:
    """Register the backend and the doubles of torch's C++ functions, for good; returns where calls
    are noted.
    """
    ctypes.CDLL(str(library))
    rename_privateuse1_backend(NAME)

    class Hooks(torch._C._acc.PrivateUse1Hooks):
        def is_available(self) -> bool:
            return True

        def has_primary_context(self, device: int) -> bool:
            return True

        def is_built(self) -> bool:
            return True

    module = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 2,
        current_device=lambda: torch.accelerator.current_device_index(),
        manual_seed_all=lambda seed: None,
        _is_in_bad_fork=lambda: False,
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        hooks=Hooks(),
    )
    torch._register_device_module(NAME, module)  # type: ignore[arg-type]
    torch._C._acc.register_python_privateuseone_hook(module.hooks)
    # Autocast casts nothing on a backend without a list of operators; without a way through,
    # operators fail within it.
    through = operators.Library("_", "IMPL")  # type: ignore[no-untyped-call]
    through.fallback(operators.fallthrough_kernel, "AutocastPrivateUse1")  # type: ignore[no-untyped-call]
    _KEPT.append(through)
    TwinTensor.calls = []
    for name, double in (
        ("_scatter", _scatter),
        ("_gather", _gather),
        ("_broadcast_coalesced", _broadcast),
    ):
        setattr(torch._C, name, double)
    return TwinTensor.calls


def move_to_first(model: nn.Module) -> nn.Module:
    """A model with its parameters and buffers on the first device."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            twin = TwinTensor(parameter.detach().clone(), 0)
            module._parameters[name] = nn.Parameter(twin, requires_grad=parameter.requires_grad)
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = TwinTensor(buffer.clone(), 0)
    return model


def _scatter(
    tensor: torch.Tensor, devices: list[int], sizes: Any, dim: int, streams: Any
) -> list[torch.Tensor]:
    TwinTensor.calls.append(("scatter", devices, threading.get_native_id()))
    host = tensor.host if isinstance(tensor, TwinTensor) else tensor
    parts = host.chunk(len(devices), dim) if sizes is None else torch.split(host, list(sizes), dim)
    return [TwinTensor(part.clone(), device) for part, device in zip(parts, devices, strict=True)]


def _gather(tensors: list[TwinTensor], dim: int, device: int) -> torch.Tensor:
    TwinTensor.calls.append(("gather", [one.device.index for one in tensors], device))
    return TwinTensor(torch.cat([one.host for one in tensors], dim), device)


def _broadcast(
    tensors: list[TwinTensor], devices: list[int], chunk_bytes: int
) -> list[list[torch.Tensor]]:
    size_bytes = sum(one.numel() * one.element_size() for one in tensors)
    TwinTensor.calls.append(("broadcast", devices, size_bytes, chunk_bytes))
    return [
        [
            TwinTensor(one.host if device == one.device.index else one.host.clone(), device)
            for one in tensors
        ]
        for device in devices
    ]
