"""Builds the virtual node's libraries with the system's compiler, once per environment.

    python -m tests.virtual_gpu.build

Prints the folder of the libraries, or the reason why they cannot be built here.
"""

import fcntl
import hashlib
import importlib.util
import os
import platform
import runpy
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.paths import ROOT
from tests.virtual_gpu.stubs import LIBRARIES, NVML, write_sources

PINNED_TORCH = "2.14"  # whose calls the sources know
_HERE = Path(__file__).parent
_SOURCES = _HERE / "sources"
_CACHE = ROOT / ".pytest_cache" / "virtual_gpu"
# Each library is compiled as one file: CUDA's headers, most of what is compiled, are read once.
_NVML_SOURCES = ("nvml.cpp", "node.cpp", "json.cpp", "truth.cpp")
_GPU_SOURCES = sorted(path.name for path in _SOURCES.glob("*.cpp") if path.stem != "nvml")
_FLAGS = (
    "-O1",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Wno-missing-field-initializers",
    "-Wno-deprecated-declarations",
)
_MOST_COMPILERS = 2


@dataclass(frozen=True)
class Wheels:
    """The installed torch, without importing it."""

    packages: Path  # site-packages
    version: str
    cuda: str | None


def find_wheels() -> Wheels | None:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    values: dict[str, Any] = runpy.run_path(str(folder / "version.py"))
    return Wheels(folder.parent, values["__version__"], values["cuda"])


def why_not(wheels: Wheels | None) -> str | None:
    """Why the node cannot be built or used here; None if it can."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return f"the virtual GPU is for Linux on x86-64, not {sys.platform} on {platform.machine()}"
    if wheels is None or wheels.cuda is None:
        return "the virtual GPU needs a CUDA build of torch"
    if wheels.version.split(".")[:2] != PINNED_TORCH.split("."):
        return f"the virtual GPU is for torch {PINNED_TORCH}, not {wheels.version}"
    if not (wheels.packages / "nvidia/cu13/include/cuda_runtime_api.h").exists():
        return "the virtual GPU needs the headers of torch's CUDA 13 wheels"
    missing = [tool for tool in ("c++", "cc", "nm") if shutil.which(tool) is None]
    return (
        f"the virtual GPU needs a compiler: no {' and no '.join(missing)} here" if missing else None
    )


def build(wheels: Wheels) -> Path:
    """The folder of the libraries, built unless they exist; takes twenty seconds on one core."""
    folder = _CACHE / _fingerprint(wheels)
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may come at once
        if not folder.exists():
            partial = Path(tempfile.mkdtemp(prefix="partial-", dir=_CACHE))
            try:
                _compile(wheels, partial)
                os.rename(partial, folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return folder


def _fingerprint(wheels: Wheels) -> str:
    digest = hashlib.sha256(f"{wheels}".encode())
    digest.update(subprocess.run(["c++", "--version"], capture_output=True, check=True).stdout)
    for path in sorted([*_SOURCES.iterdir(), *_HERE.glob("*.py")]):
        if path.name in ("stubs.py", "build.py") or path.parent == _SOURCES:
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(wheels: Wheels, folder: Path) -> None:
    write_sources(wheels.packages, folder)
    nvidia = wheels.packages / "nvidia"
    includes = [
        f"-I{folder}",
        *(f"-I{nvidia / name / 'include'}" for name in ("cu13", "cudnn", "nccl")),
    ]
    # crt/host_defines.h is in a wheel of CUDA's that torch does not install; Triton's has it, too.
    includes += ["-idirafter", str(wheels.packages / "triton/backends/nvidia/include")]
    for name, sources in (("vgpu", _GPU_SOURCES), ("nvml", _NVML_SOURCES)):
        lines = [f'#include "{_SOURCES / source}"\n' for source in sources]
        (folder / f"{name}.cpp").write_text("".join(lines))
    commands = [
        ["cc", "-fPIC", "-c", f"{folder / name}.c", "-o", f"{folder / name}.o"]
        for name in ("stubs", "nvml_stubs")
    ]
    compiler = ["c++", "-std=c++20", *_FLAGS, *includes, "-c"]
    commands += [
        [*compiler, f"{folder / name}.cpp", "-o", f"{folder / name}.o"] for name in ("vgpu", "nvml")
    ]
    with ThreadPoolExecutor(_MOST_COMPILERS) as pool:
        list(pool.map(_run, commands))
    objects = [str(folder / name) for name in ("vgpu.o", "stubs.o")]
    versions = f"-Wl,--version-script={folder / 'versions.map'}"
    _run(
        [
            "c++",
            "-shared",
            *objects,
            "-o",
            str(folder / "libvgpu.so"),
            versions,
            "-lpthread",
            "-ldl",
        ]
    )
    for library in LIBRARIES:  # one file without a soname: the loader takes it for each of them
        (folder / library.soname).symlink_to("libvgpu.so")
    nvml = [str(folder / name) for name in ("nvml.o", "nvml_stubs.o")]
    _run(["c++", "-shared", *nvml, "-o", str(folder / NVML.soname)])


def _run(command: list[str]) -> None:
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{ran.stderr}")
    if ran.stderr:
        sys.stderr.write(ran.stderr)


if __name__ == "__main__":
    found = find_wheels()
    reason = why_not(found)
    sys.stdout.write(f"{reason or build(found)}\n" if found else f"{reason}\n")
