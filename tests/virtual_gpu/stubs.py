"""Generates C sources: a stub for every function that the replaced libraries export and the virtual
node does not have.

A library is loaded only if every name that another one imports from it exists. A stub is a weak
symbol, which a function of sources/ of the same name replaces. It notes its first call in the
truth, and returns "not supported" of its library, except those of `HARMLESS`.
"""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Library:
    """A library that is replaced."""

    soname: str
    folder: str  # within site-packages/nvidia, empty where no wheel has it
    not_supported: int


# CUDA_ERROR_NOT_SUPPORTED and cudaErrorNotSupported, CUBLAS_STATUS_NOT_SUPPORTED,
# CUDNN_STATUS_NOT_SUPPORTED, ncclInvalidUsage, CUPTI_ERROR_NOT_SUPPORTED, NVML_ERROR_NOT_SUPPORTED:
# from the libraries' headers.
LIBRARIES = (
    Library("libcudart.so.13", "cu13/lib", 801),
    Library("libcublas.so.13", "cu13/lib", 15),
    Library("libcublasLt.so.13", "cu13/lib", 15),
    Library("libcudnn.so.9", "cudnn/lib", 3000),
    Library("libnccl.so.2", "nccl/lib", 5),
    Library("libcupti.so.13", "cu13/lib", 27),
    Library("libcuda.so.1", "", 801),
)
NVML = Library("libnvidia-ml.so.1", "", 3)

# They set or free what the virtual node has no use for.
HARMLESS = frozenset(
    {
        "cublasSetWorkspace_v2",
        "cublasLtMatmulDescSetAttribute",
        "cublasLtMatmulPreferenceSetAttribute",
        "cuptiActivityEnableDriverApi",
        "cuptiActivityEnableRuntimeApi",
        "cuptiActivitySetAttribute",
        "cuptiEnableCallback",
        "cuptiEnableDomain",
        "cuptiFinalize",
        "cuptiUnsubscribe",
    }
)

_EXPORTED = re.compile(r"(cu|__cuda|nccl|pnccl)\w*")
_CALLBACK = re.compile(r"CUPTI_(?:RUNTIME|DRIVER)_TRACE_CBID_(\w+)\s*=\s*(\d+)")
_RUNTIME_DOMAIN, _DRIVER_DOMAIN = 2, 1  # CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_CB_DOMAIN_DRIVER_API


def write_sources(packages: Path, folder: Path) -> None:
    """Write stubs.c, nvml_stubs.c, versions.map and callbacks.h, for the wheels in
    site-packages.
    """
    stubs: dict[str, int] = {}
    versions = []
    for library in LIBRARIES:
        names = [name for name in _functions(library, packages) if name not in stubs]
        stubs |= dict.fromkeys(names, library.not_supported)
        # NCCL and the driver have no symbol versions
        if library.folder and library.soname != "libnccl.so.2":
            versions.append(
                f"{library.soname} {{ global: {' '.join(f'{name};' for name in names)} }};\n"
            )
    nvml = dict.fromkeys(
        sorted(set(re.findall(r"""["'](nvml[A-Z]\w*)["']""", _pynvml(packages)))),
        NVML.not_supported,
    )
    (folder / "stubs.c").write_text(_source(stubs))
    (folder / "nvml_stubs.c").write_text(_source(nvml))
    (folder / "versions.map").write_text("".join(versions))
    (folder / "callbacks.h").write_text("".join(_callbacks(packages)))


def _functions(library: Library, packages: Path) -> list[str]:
    if not library.folder:
        return sorted(_driver_functions((packages / "nvidia/cu13/include/cuda.h").read_text()))
    path = packages / "nvidia" / library.folder / library.soname
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(path)], capture_output=True, text=True, check=True
    ).stdout
    symbols = (line.split()[-2:] for line in listing.splitlines())
    names = {name.partition("@")[0] for kind, name in symbols if kind in "TWi"}
    return sorted(filter(_EXPORTED.fullmatch, names))


def _driver_functions(header: str) -> set[str]:
    """The names in cuda.h, with those that its macros rename."""
    names = set(re.findall(r"CUDAAPI (cu[A-Z]\w*)\(", header))
    for renamed in re.findall(r"#define (cu[A-Z]\w*)\s+(?:__CUDA_API_\w+\()?(cu[A-Z]\w*)", header):
        names.update(renamed)
    return names


def _pynvml(packages: Path) -> str:
    return (packages / "pynvml.py").read_text()


def _source(stubs: dict[str, int]) -> str:
    answers = {name: 0 if name in HARMLESS else answer for name, answer in stubs.items()}
    lines = (
        f'STUB int {name}(void) {{ return vgpu_stub("{name}", {answer}); }}\n'
        for name, answer in answers.items()
    )
    return f"int vgpu_stub(const char *name, int answer);\n#define STUB __attribute__((weak))\n{''.join(lines)}"


def _callbacks(packages: Path) -> Iterator[str]:
    """Rows of a table: domain, number and name of every call that CUPTI knows."""
    headers = {_RUNTIME_DOMAIN: "cupti_runtime_cbid.h", _DRIVER_DOMAIN: "cupti_driver_cbid.h"}
    for domain, header in headers.items():
        text = (packages / "nvidia/cu13/include" / header).read_text()
        for name, number in _CALLBACK.findall(text):
            yield f'{{{domain}, {number}, "{name}"}},\n'
