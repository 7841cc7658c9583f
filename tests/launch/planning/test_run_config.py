"""Configuration from TOML and flags."""

from pathlib import Path

import pytest

from dpscope.launch.jobs.devices import Devices
from dpscope.launch.planning.cells import make_plan, resolve
from dpscope.launch.planning.run_config import load_config, published_of, read_published
from dpscope.profiling.records.config import RunConfig
from dpscope.profiling.records.run import Cell, CellOptions
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import PUBLISHED, ROOT


def load_file(folder: Path, content: str, **flags: object) -> RunConfig:
    path = folder / "run.toml"
    path.write_text(content)
    return load_config(path, flags)


def test_flags_overlay_the_file(tmp_path: Path) -> None:
    content = 'strategy = "ddp,single"\nbatch-size = [64, 8]\nsteps = 7\nlr = 0.5\nlink = "PCIe 4.0 x16"\n'
    config = load_file(tmp_path, content, steps=9, batch_size=None, devices="2,1", link="100Gb/s")
    assert (config.matrix.strategies, config.matrix.batch_sizes) == (("single", "ddp"), (8, 64))
    assert (config.measurement.steps, config.optimizer.learning_rate, config.matrix.devices) == (
        9,
        0.5,
        (1, 2),
    )
    assert (config.reporting.link, load_file(tmp_path, content).reporting.link) == (
        "100Gb/s",
        "PCIe 4.0 x16",
    )


def test_a_file_may_begin_with_the_mark_of_an_editor_on_windows(tmp_path: Path) -> None:
    assert load_file(tmp_path, "\ufeffsteps = 7\r\nrepeats = 2\r\n").measurement.steps == 7


def test_a_file_sets_lists_and_switches(tmp_path: Path) -> None:
    content = 'overlap = ["on", "off"]\nbucket-mb = ["default", 4]\nbroadcast-buffers = false\naccumulate = [2, 1]\n'
    matrix = load_file(tmp_path, content).matrix
    assert (matrix.overlap, matrix.bucket_mb, matrix.accumulate) == (
        ("on", "off"),
        ("default", 4.0),
        (1, 2),
    )
    assert matrix.broadcast_buffers == ("off",)
    for text in ('devices = [1, 4, "2x4"]', 'devices = "1,4,2x4"'):
        matrix = load_file(tmp_path, text).matrix
        assert (matrix.devices, matrix.layouts) == ((1, 4), ("2x4",))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"batch_size": "0"}, ["--batch-size", "0", "1 or more"]),
        ({"batch_size": "a,b"}, ["--batch-size a,b", "32,128"]),
        ({"batch_size": "32,100,..."}, ["--batch-size", "before ,... stand two sizes"]),
        ({"devices": "0,1"}, ["--devices", "1 or more"]),
        ({"devices": "two"}, ["--devices two", "1,2,4"]),
        ({"steps": -3}, ["--steps -3", "1 or more"]),
        ({"steps": 3, "epochs": 1}, ["--steps 3", "--epochs 1", "one of them"]),
        ({"warmup": 4}, ["--warmup 4", "5 or more"]),
        ({"strategy": "zero"}, ["--strategy", "zero", "single, dp, ddp"]),
        ({"amp": "off,int8"}, ["int8", "off, bf16, fp16"]),
        ({"lr": "inf"}, ["--lr inf", "a number above 0"]),
        ({"lr": "nan"}, ["--lr nan", "a number above 0"]),
        ({"lr": "fast"}, ["--lr fast", "must be a number"]),
        ({"samples": 0}, ["--samples 0", "an epoch needs 1 sample or more"]),
        ({"momentum": "inf"}, ["--momentum inf", "0 or more and below 1"]),
        ({"momentum": -1}, ["--momentum -1:", "0 or more and below 1"]),
        ({"momentum": 1}, ["--momentum 1:", "0 or more and below 1"]),
        ({"weight_decay": -1}, ["--weight-decay -1:", "must be a number, 0 or more"]),
        (
            {"batch_sizes": [8, 16], "batch_growth": 2},
            ["--batch-growth 2", "growth needs one batch size"],
        ),
        (
            {"strategy": "fsdp,hsdp", "comm_hook": "none,powersgd"},
            ["FSDP has no powersgd, only fp16 and bf16", "add ddp to --strategy fsdp,hsdp"],
        ),
        ({"seed": 2**63}, [f"--seed {2**63}", "below 2^63"]),
        ({"timeout": "inf"}, ["--timeout inf", "at most 1e7"]),
        ({"timeout": 0}, ["--timeout 0", "above 0"]),
        ({"workers_total": "many"}, ["--workers-total many: must be a whole number"]),
        ({"pin_memory": "perhaps"}, ["--pin-memory perhaps: must be true or false"]),
        ({"link": "25"}, ["--link", "25GB/s (1e9 bytes a second)", "25Gb/s (1e9 bits a second)"]),
        ({"target_efficiency": 80}, ["--target-efficiency 80", "write it as 80%"]),
        ({"target_efficiency": 0}, ["--target-efficiency 0", "above 0%"]),
        ({"color": "red"}, ["--color", "no such setting", "batch_size"]),
        ({"comm_hook": "int8"}, ["--comm-hook int8", "none, fp16, bf16, powersgd"]),
        ({"ddp_args": "process_group=1"}, ["process_group", "omit it"]),
        ({"ddp_args": "batched_grad_copy"}, ["not NAME=VALUE"]),
        ({"ddp_args": "bucket_cap_mb_list=" + "[" * 100_000}, ["--ddp-args", "nested too deeply"]),
        (
            {"ddp_args": "bucket_cap_mb=5"},
            ["--ddp-args", "bucket_cap_mb has its own option; use --bucket-mb"],
        ),
        (
            {"ddp_args": "broadcast_buffers=false"},
            ["--ddp-args", "broadcast_buffers has its own option; use --broadcast-buffers"],
        ),
        ({"ddp_args": "mixed_precision=int8"}, ["mixed_precision is bf16 or fp16"]),
        ({"strategy": "single", "ddp_args": "batched_grad_copy=true"}, ["--ddp-args", "only DDP"]),
        ({"overlap": "maybe"}, ["--overlap maybe", "on, off"]),
        ({"bucket_mb": "large"}, ["--bucket-mb large", "not a number", "default,5"]),
        ({"bucket_mb": "0"}, ["--bucket-mb 0", "above 0"]),
        ({"bucket_mb": "nan"}, ["--bucket-mb nan", "above 0"]),
        ({"bucket_mb": "inf"}, ["--bucket-mb inf", "at most"]),
        ({"accumulate": "0"}, ["--accumulate 0", "1 or more"]),
        ({"accumulate": "two"}, ["--accumulate two", "not a whole number", "1,4"]),
        (
            {"accumulate": "1,3", "batch_size": "8"},
            ["--accumulate 1,3", "8 samples per device", "3 equal micro-batches"],
        ),
        (
            {"accumulate": 8, "batch_size": "8", "scaling": "strong", "devices": "1,2"},
            ["--accumulate 8", "4 samples per device"],
        ),
        (
            {"overlap": "off", "bucket_mb": 5},
            ["--bucket-mb 5 with", "--overlap off", "--overlap on,off"],
        ),
        (
            {"strategy": "single,dp", "comm_hook": "fp16"},
            ["--comm-hook fp16", "only DDP", "add ddp"],
        ),
        ({"static_graph": True}, ["--static_graph", "no such setting"]),
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
        ("qqq = 1", "no such setting; known are accumulate, "),
        ("stpes = 1", r"stpes: no such setting; did you mean steps\?"),
        ("batch-sise = 1", r"did you mean batch_size\?"),
        ("steps = 0", "steps ="),
        ('devices = ["two"]', "devices = two: must be a list of values, each a whole number"),
        ("model = 3", "must be text"),
        ("link = 25", "link = 25 has no unit: write 25GB/s"),
        (
            'batch_size = "8"\nbatch-size = "16"',
            "batch_size: set again as batch-size; keep one of them",
        ),
        (
            "[workload]\nlr = 0.1",
            r"\[workload\] is a table; write its settings above all tables, without \[workload\]",
        ),
        (None, r"--config: .* does not exist; check the path"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: str | None, expected: str) -> None:
    with pytest.raises(DpscopeError, match=expected) as caught:
        load_config(tmp_path / "run.toml", {}) if content is None else load_file(tmp_path, content)
    assert str(tmp_path / "run.toml") in str(caught.value)
    assert "\n" not in str(caught.value)


HEADING = (
    "source,hardware,model,data,strategy,devices,batch_size,fixed,quantity,value,unit,method\n"
)
ROW = "a report,4x L4,resnet18,cifar10,ddp,2,128,per_device,epoch_seconds,56.3,s,timed\n"


def test_a_path_in_a_file_is_relative_to_it_and_one_of_a_flag_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    studies = tmp_path / "studies"
    studies.mkdir()
    (tmp_path / "values.csv").write_text(HEADING + ROW)
    config = studies / "mine.toml"
    config.write_text('published = "../values.csv"\n')
    assert load_config(config, {}).reporting.published == str(tmp_path / "values.csv")
    monkeypatch.chdir(tmp_path)
    assert load_config(config, {"published": "values.csv"}).reporting.published == "values.csv"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "does not exist"),
        ("source,value\n", "no column hardware"),
        (HEADING + ROW.replace("ddp", "fsdp"), "row 2"),
        (HEADING + ROW + ROW.replace("56.3", "fast"), "row 3"),
        (HEADING + ROW.removesuffix(",s,timed\n") + "\n", "row 2"),
        (HEADING + ROW.replace("timed", "timed,once"), "row 2"),
    ],
)
def test_a_table_that_is_none_is_one_line(
    tmp_path: Path, content: str | None, expected: str
) -> None:
    path = tmp_path / "values.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DpscopeError, match=expected) as caught:
        load_config(None, {"published": str(path)})
    assert str(caught.value).startswith(f"--published {path}")
    assert "\n" not in str(caught.value)


def test_a_study_on_four_gpus_meets_the_published_values_of_its_cells() -> None:
    """From the tables by hand: 19.26 s on 4 devices at a global batch of 128, 56.3 s of DDP on 2 at
    128 each.
    """
    config = resolve(
        load_config(ROOT / "examples/studies/a_epoch_and_speedup.toml", {}),
        Devices(kind="cuda", count=4),
    )
    cells = [one.cell for one in make_plan(config.matrix, config.workload.samples, "cuda")]
    found = published_of(read_published(PUBLISHED / "cell_values.csv"), config.workload, cells)
    epochs = {
        (one.source, one.strategy, one.devices, one.batch_size): one.value
        for one in found
        if one.quantity == "epoch_seconds"
    }
    assert epochs["coursework_l4, first", "dp", 4, 32] == 19.26
    assert epochs["coursework_ddp", "ddp", 2, 128] == 56.3
    assert epochs["coursework_cluster", "single", 1, 128] == 16.0
    assert {one.source for one in found} == {
        "coursework_l4", "coursework_l4, first", "coursework_l4, second_sweep", "coursework_l4, second", "coursework_cluster",
        "coursework_ddp",
    }  # fmt: skip
    assert not [one for one in found if one.model != "resnet18_cifar"]


def test_another_model_a_variant_and_the_stand_in_have_no_published_value() -> None:
    values = read_published(PUBLISHED / "cell_values.csv")
    workload = load_config(None, {"data": "cifar10", "model": "resnet18_cifar"}).workload
    plain = Cell(strategy="ddp", devices=2, batch_size=128)
    assert len(published_of(values, workload, [plain])) == 4  # epoch, speedup, efficiency, accuracy
    overlap = Cell(strategy="ddp", devices=2, batch_size=128, options=CellOptions(overlap="off"))
    stand_in = Cell(strategy="dp-host", devices=2, batch_size=64)
    assert published_of(values, workload, [overlap, stand_in]) == []
    assert (
        published_of(
            values, load_config(None, {"model": "resnet50", "data": "cifar10"}).workload, [plain]
        )
        == []
    )
