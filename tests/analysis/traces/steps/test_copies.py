"""Copies by direction: from and to the host, within a device, and between devices, by name or by the tracer's argument."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.reader import read_trace
from dpscope.analysis.traces.steps.event_kind import Kind, event_kinds
from tests.helpers.made_traces import on_device, write
from tests.helpers.paths import DATA


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Memcpy HtoD (Pageable -> Device)", Kind.HOST_COPY),
        ("Memcpy DtoH (Device -> Pinned)", Kind.HOST_COPY),
        ("Memcpy DtoD (Device -> Device)", Kind.DEVICE_COPY),
        ("Memcpy PtoP (Device -> Device)", Kind.PEER_COPY),
        ("CopyHostToDevice", Kind.HOST_COPY),
        ("CopyDeviceToHost", Kind.HOST_COPY),
        ("CopyDeviceToDevice", Kind.DEVICE_COPY),
        ("Memcpy M2D(Memory -> Device)", Kind.HOST_COPY),
        ("Memcpy D2M(Device -> Memory)", Kind.HOST_COPY),
        ("Memcpy D2D(Device -> Device)", Kind.DEVICE_COPY),
        ("Memset (Device)", Kind.DEVICE_COPY),
    ],
)
def test_a_copys_name_has_its_direction(tmp_path: Path, name: str, kind: Kind) -> None:
    category = "gpu_memset" if "set" in name else "gpu_memcpy"
    assert kinds_of(tmp_path, (category, name, {})) == [kind]


def test_the_direction_may_be_an_argument(tmp_path: Path) -> None:
    """As tracers on CUPTI write it that call every copy "Memcpy": by name, or by CUPTI's number (10 is PtoP)."""
    copies = [("gpu_memcpy", "Memcpy", {"copy kind": kind}) for kind in ("PtoP", 10, "HtoD", 2, "DtoD", 8, 99)]
    assert kinds_of(tmp_path, *copies, ("gpu_memcpy", "Memcpy", {})) == [
        Kind.PEER_COPY, Kind.PEER_COPY, Kind.HOST_COPY, Kind.HOST_COPY, *[Kind.DEVICE_COPY] * 4,
    ]  # fmt: skip


def kinds_of(folder: Path, *copies: tuple[str, str, dict[str, Any]]) -> list[int]:
    path = write(
        folder,
        [
            on_device(name, 10.0 * at, 5.0, category=category, **args)
            for at, (category, name, args) in enumerate(copies)
        ],
    )
    kinds: list[int] = event_kinds(read_trace(path).events).tolist()
    return kinds


def test_a_real_trace_without_copies_from_the_host_has_none() -> None:
    """Its copies all lie within the device: 960 events "Memcpy DtoD", 114 memsets."""
    path = DATA / "a100x2_ddp_resnet50_rank0.json.gz"
    steps = analyze_traces([path]).steps
    assert steps["host_copy_us"].tolist() == [0.0] * len(steps)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = {one["name"] for one in events if one.get("cat") in ("gpu_memcpy", "gpu_memset")}
    assert names == {"Memcpy DtoD (Device -> Device)", "Memset (Device)"}
    assert (steps["device_copy_us"] > 0).all()
    assert (steps["device_copy_us"] <= steps["idle_us"]).all()
