"""Configuration from TOML and flags."""

from pathlib import Path

import pytest

from dpscope.launch.planning.run_config import load_config
from dpscope.profiling.records.config import Optimizer
from dpscope.profiling.records.matrix import parse_batch_sizes, parse_devices
from dpscope.profiling.store.errors import DpscopeError


def test_flags_overlay_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('strategy = "ddp,single"\nbatch-size = [64, 8]\nsteps = 7\nlr = 0.5\n')
    config = load_config(path, {"steps": 9, "batch_size": None, "devices": "2,1"})
    assert (config.matrix.strategies, config.matrix.batch_sizes, config.measurement.steps) == (
        ("single", "ddp"),
        (8, 64),
        9,
    )
    assert (config.optimizer.learning_rate, config.matrix.devices) == (0.5, (1, 2))


def test_defaults_are_the_documented_ones() -> None:
    config = load_config(None, {})
    assert config.optimizer == Optimizer(learning_rate=0.1, momentum=0.9, weight_decay=5e-4)
    assert (config.workload.workers, config.measurement.warmup_steps, config.workload.model) == (2, 5, "auto")


def test_settings_of_the_report_may_stand_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('link = "PCIe 4.0 x16"\ntarget_efficiency = 0.8\n')
    config = load_config(path, {})
    assert (config.reporting.link, config.reporting.target_efficiency) == ("PCIe 4.0 x16", 0.8)
    assert load_config(path, {"link": "100Gb/s"}).reporting.link == "100Gb/s"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("link = 25", "link = '25' has no unit: write 25GB/s"),
        ("link_gbps = 25.0", 'link = "25GB/s" (bytes) or link = "200Gb/s" (bits)'),
    ],
)
def test_a_link_without_a_unit_is_refused(tmp_path: Path, line: str, expected: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f"{line}\n")
    with pytest.raises(DpscopeError) as caught:
        load_config(path, {})
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_batch_sizes_and_growth() -> None:
    assert parse_batch_sizes("128,32,32") == ((32, 128), None)
    assert parse_batch_sizes("32x4") == ((32,), 4)
    assert parse_devices("4,1,2") == (1, 2, 4)
    assert load_config(None, {"batch_size": "32x4"}).matrix.batch_growth == 4


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"batch_size": "0"}, ["--batch-size", "0", "1 or more"]),
        ({"batch_size": "a,b"}, ["--batch-size a,b", "32,128"]),
        ({"batch_size": "32x1"}, ["--batch-size", "growth must be 2 or more"]),
        ({"devices": "0,1"}, ["--devices", "1 or more"]),
        ({"devices": "two"}, ["--devices two", "1,2,4"]),
        ({"steps": -3}, ["--steps -3", "1 or more"]),
        ({"steps": 3, "epochs": 1}, ["--steps 3", "--epochs 1", "one of them"]),
        ({"warmup": 4}, ["--warmup 4", "5 or more"]),
        ({"strategy": "zero"}, ["--strategy", "zero", "single, dp, ddp"]),
        ({"amp": "int8"}, ["--amp int8", "off, bf16, fp16"]),
        ({"lr": "inf"}, ["--lr inf", "a number above 0"]),
        ({"lr": "nan"}, ["--lr nan", "a number above 0"]),
        ({"lr": "fast"}, ["--lr fast", "must be a number"]),
        ({"momentum": "inf"}, ["--momentum inf", "0 or more"]),
        ({"seed": 2**63}, [f"--seed {2**63}", "below 2^63"]),
        ({"seed": -1}, ["--seed -1", "0 or more"]),
        ({"timeout": "inf"}, ["--timeout inf", "at most 1e7"]),
        ({"workers_total": "many"}, ["--workers-total many: must be a whole number"]),
        ({"pin_memory": "perhaps"}, ["--pin-memory perhaps: must be true or false"]),
        ({"timeout": 0}, ["--timeout 0", "above 0"]),
        ({"link": "25"}, ["--link", "25GB/s (1e9 bytes a second)", "25Gb/s (1e9 bits a second)"]),
        ({"target_efficiency": 80}, ["--target-efficiency 80", "0.8 is 80%"]),
        ({"target_efficiency": 0}, ["--target-efficiency 0", "above 0"]),
        ({"color": "red"}, ["--color", "no such setting", "batch_size"]),
    ],
)
def test_a_mistake_is_named_with_its_fix(flags: dict[str, object], expected: list[str]) -> None:
    with pytest.raises(DpscopeError) as caught:
        load_config(None, flags)
    message = str(caught.value)
    assert "\n" not in message
    assert [part for part in expected if part not in message] == []
    assert "null" not in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("steps = [", "not TOML"),
        ("speed = 1", "no such setting"),
        ("qqq = 1", "no such setting; known are accumulate, "),
        ("stpes = 1", r"stpes: no such setting; did you mean steps\?"),
        ("batch-sise = 1", r"did you mean batch_size\?"),
        ("steps = 0", "steps ="),
        ('devices = ["two"]', "devices = two: must be a list of values, each a whole number"),
        ("model = 3", "must be text"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(content)
    with pytest.raises(DpscopeError, match=expected) as caught:
        load_config(path, {})
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DpscopeError, match=r"--config: .*absent\.toml does not exist; check the path"):
        load_config(tmp_path / "absent.toml", {})
