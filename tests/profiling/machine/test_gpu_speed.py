"""Names of GPUs as torch, the driver and people write them."""

import pytest

from dpscope.profiling.machine.gpu_speed import GPU_SPEEDS, MEMORY, TF32, gpu_speed, parse_flops

TITLES = {
    "NVIDIA H100 80GB HBM3": "H100 SXM5", "H100 SXM": "H100 SXM5", "NVIDIA H100 PCIe": "H100 PCIe",
    "NVIDIA A100-SXM4-40GB": "A100 SXM4 40GB", "NVIDIA A100 80GB PCIe": "A100 PCIe 80GB",
    "Tesla V100-SXM2-16GB": "V100 SXM2", "Tesla T4": "T4", "NVIDIA L40S": "L40S",
    # there are several A100, with different memories
    "A100": None, "NVIDIA A10G": None, None: None,
}  # fmt: skip


def test_names() -> None:
    found = {name: gpu_speed(name) for name in TITLES}
    assert {name: speed.title if speed else None for name, speed in found.items()} == TITLES


def test_a_gpu_without_tf32_computes_it_in_single_precision() -> None:
    old, new = gpu_speed("V100 SXM2"), gpu_speed("A100 SXM4 80GB")
    assert old is not None
    assert new is not None
    assert new.rate(TF32) / old.rate(TF32) == pytest.approx(156 / 15.7)
    assert new.rate(MEMORY) / old.rate(MEMORY) == pytest.approx(2039 / 900)


def test_every_title_is_a_name() -> None:
    assert all(gpu_speed(one.title) is one for one in GPU_SPEEDS)


@pytest.mark.parametrize("text", ["", "0", "-1T", "fast", "1T:int8", "1e400", "nan"])
def test_other_text_than_flops_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="give the FLOPs of one step on one device, such as"):
        parse_flops(text)
