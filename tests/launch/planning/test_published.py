"""A table of values that others published: read, checked, and what of it is of a run's cells."""

from pathlib import Path

import pytest

from dpscope.launch.jobs.devices import Devices
from dpscope.launch.planning.cells import make_plan, resolve
from dpscope.launch.planning.published import published_of, read_published
from dpscope.launch.planning.run_config import load_config
from dpscope.profiling.records.run import Cell, CellOptions
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import PUBLISHED, ROOT

HEADING = "source,hardware,model,data,strategy,devices,batch_size,fixed,quantity,value,unit,method\n"
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
def test_a_table_that_is_none_is_one_line(tmp_path: Path, content: str | None, expected: str) -> None:
    path = tmp_path / "values.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DpscopeError, match=expected) as caught:
        load_config(None, {"published": str(path)})
    assert str(caught.value).startswith(f"--published {path}")
    assert "\n" not in str(caught.value)


def test_a_study_on_four_gpus_meets_the_published_values_of_its_cells() -> None:
    """From the tables by hand: 19.26 s on 4 devices at a global batch of 128, 56.3 s of DDP on 2 at 128 each."""
    config = resolve(load_config(ROOT / "examples/studies/a_epoch_and_speedup.toml", {}), Devices(kind="cuda", count=4))
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
    assert published_of(values, load_config(None, {"model": "resnet50", "data": "cifar10"}).workload, [plain]) == []
