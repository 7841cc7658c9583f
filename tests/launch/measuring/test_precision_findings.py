"""Precisions that GPUs have no units for."""

import pytest
import torch

from dpscope.launch.measuring.cell import precision_findings

GPUS = (torch.device("cuda", 0), torch.device("cuda", 1))


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: [(7, 0), (8, 0)][device.index])
    monkeypatch.setattr(
        torch.cuda, "get_device_name", lambda device: ["Tesla V100-SXM2-16GB", "NVIDIA A100"][device.index]
    )
    monkeypatch.setattr(torch.version, "hip", None)


def test_bf16_on_a_v100_is_emulated(two_gpus: None) -> None:
    (finding,) = precision_findings("bf16", GPUS)
    assert (finding.code, finding.severity) == ("bf16_emulated", "warning")
    assert finding.message == "Tesla V100-SXM2-16GB has no units for bf16: it is emulated there."


def test_other_precisions_and_devices_are_computed_as_they_are(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert precision_findings("fp16", GPUS) == []
    assert precision_findings("off", GPUS) == []
    assert precision_findings("bf16", GPUS[1:]) == []
    assert precision_findings("bf16", (torch.device("cpu"),)) == []
    monkeypatch.setattr(torch.version, "hip", "6.4")  # AMD's numbers of capability mean something else
    assert precision_findings("bf16", GPUS) == []
