"""Trainings loaded, compared and tabulated; every expected number is derived in a comment."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpscope.analysis.cells.row import CellRow, row_of
from dpscope.analysis.cells.view import CellView
from dpscope.analysis.stats.samples import Range
from dpscope.analysis.traces.ranks.job import planned_job
from dpscope.analysis.training.data import TrainingData, load_training
from dpscope.analysis.training.findings import difference_message, training_findings
from dpscope.analysis.training.seed_statistics import (
    chosen_target,
    differences,
    final_accuracy,
    time_to_accuracy,
)
from dpscope.analysis.training.tables import training_tables
from dpscope.launch.contents import app
from dpscope.profiling.records.config import Workload
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run import Cell, CellOptions
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.trainings import plain_epochs, record, write_train_json, write_trained

Epochs = list[dict[str, object]]


def loaded(folder: Path, *epochs: Epochs) -> TrainingData:
    return load_training(write_train_json(folder, [one for part in epochs for one in part]))


def seeds(
    count: int, cell: tuple[str, int], first: float, further: float, epoch_s: float, **more: object
) -> Epochs:
    """One epoch for each seed, whose accuracies are `further` apart."""
    accuracies = [first + further * seed for seed in range(count)]
    return [
        plain_epochs(*cell, seed, [one], [epoch_s])[0] | more for seed, one in enumerate(accuracies)
    ]


def two_strategies(folder: Path) -> TrainingData:
    """Single ends at 90, 92, 91 in epochs of 4 s; ddp at 91, 90.5, 92 in epochs of 2 s (the first
    of seed 0: 3 s).
    """
    single = [
        plain_epochs("single", 1, seed, [80.0, 88.0, last], [4.0] * 3)
        for seed, last in enumerate((90.0, 92.0, 91.0))
    ]
    ddp = [
        plain_epochs("ddp", 2, seed, [70.0, 90.0, last], [2.0 if seed else 3.0, 2.0, 2.0])
        for seed, last in enumerate((91.0, 90.5, 92.0))
    ]
    return loaded(folder, *single, *ddp)


def codes(data: TrainingData) -> dict[str, Finding]:
    """The last finding of each code."""
    return {finding.code: finding for finding in training_findings(data)}


def test_time_to_an_accuracy_is_known_only_if_every_seed_reached_it(tmp_path: Path) -> None:
    data = two_strategies(tmp_path)
    single, ddp = data.cells
    # Seeds of ddp reach 90% in their second epoch: after 3 + 2, 2 + 2 and 2 + 2 seconds.
    found = time_to_accuracy(ddp, 90.0)
    assert (found.reached, found.epoch.value, found.train_s) == (3, 2.0, Range(4.0, 4.0, 5.0, 3))
    # seed 0 ends at 90
    partly, never = (time_to_accuracy(single, target) for target in (91.0, 99.0))
    assert (partly.reached, partly.seeds, partly.train_s.value) == (2, 3, None)
    assert (never.reached, never.train_s.value, never.epoch.value) == (0, None, None)
    assert chosen_target(data) == 90.0  # the worst seed's best is 90
    data = load_training(tmp_path, 91.0)
    assert chosen_target(data) == 91.0
    table = training_tables(data)["time_to_accuracy"]
    # single: 2 of 3; ddp: its seed 1 ends at 90.5
    assert table.rows == (
        ("single-d1", "2 of 3", "NA", "NA", "NA", "NA"),
        ("ddp-d2", "2 of 3", "NA", "NA", "NA", "NA"),
    )
    assert len(table.unknown) == 2
    (reason,) = table.missing
    assert reason.startswith("NA (epoch, time; single-d1, ddp-d2): 1 of 3 seeds did not reach 91%")
    assert "1 of 3 seeds did not reach 91%" in table.missing[0]


def test_a_difference_is_judged_by_the_seed_spread(tmp_path: Path) -> None:
    (one,) = differences(two_strategies(tmp_path))
    assert (one.cell, one.against) == ("ddp-d2", "single-d1")
    # Medians 91 and 91; ranges 92 - 90 = 2 and 92 - 90.5 = 1.5: the wider counts. Epochs of 4 s and
    # 2 s.
    assert (one.points, one.spread_points, one.verdict) == (0.0, 2.0, "no_difference_shown")
    assert (one.speedup.value, one.speedup.count) == (2.0, 9)
    assert "no significant difference in test accuracy (+0.00 points" in difference_message(one)
    # All seeds of a cell have the same median epoch.
    assert difference_message(one).endswith(
        "ddp-d2 trains an epoch 2.00x as fast as single-d1 (95% interval 2.00 to 2.00)"
    )
    data = loaded(
        tmp_path, seeds(3, ("single", 1), 95.0, 0.1, 4.0), seeds(3, ("dp", 2), 93.0, 0.2, 5.0)
    )
    (one,) = differences(data)
    # 93.2 - 95.1 = -1.9, beyond the wider range of 0.4; 4 s / 5 s = 0.8
    assert (one.points, one.spread_points) == pytest.approx((-1.9, 0.4))
    assert (one.verdict, one.speedup.value) == ("below", 0.8)
    found = codes(data)["accuracy_difference"]
    assert (found.severity, "-1.90 points" in found.message) == ("warning", True)


def test_a_variant_is_compared_with_its_default_or_with_a_single_device_of_its_options(
    tmp_path: Path,
) -> None:
    cells = [
        ("single", 1, ""), ("single", 1, "accumulate-2"), ("ddp", 2, ""), ("ddp", 2, "hook-fp16"),
        ("dp", 2, "accumulate-2"),
    ]  # fmt: skip
    data = loaded(
        tmp_path,
        *(
            plain_epochs(strategy, devices, 0, [90.0], [2.0], variant=variant)
            for strategy, devices, variant in cells
        ),
    )
    assert {each.cell: each.against for each in differences(data)} == {
        "single-d1-accumulate-2": "single-d1",
        "ddp-d2": "single-d1",
        "ddp-d2-hook-fp16": "ddp-d2",
        "dp-d2-accumulate-2": "single-d1-accumulate-2",  # no dp without it was trained
    }


@pytest.mark.parametrize("few", [1, 2])
def test_few_seeds_show_no_spread(tmp_path: Path, few: int) -> None:
    data = loaded(
        tmp_path, seeds(few, ("single", 1), 95.0, 1.0, 4.0), seeds(few, ("ddp", 2), 80.0, 1.0, 2.0)
    )
    (one,) = differences(data)
    assert (one.points, one.spread_points, one.verdict) == (-15.0, None, "too_few_samples")
    table = training_tables(data)["training_speedup"]
    assert table.rows[0][4] == "NA"
    assert f"{few} seed" in table.missing[0]
    # an epoch of each seed
    assert table.missing[1].endswith(f"{few} epoch{'s' * (few > 1)}; an interval needs 5")
    assert set(codes(data)) == {"few_seeds"}, "one advice to train more seeds"


def test_a_difference_is_that_of_the_accuracies_next_to_it(tmp_path: Path) -> None:
    """29.974 - 39.776 is -9.802, but 29.97 and 39.78 are shown."""
    data = loaded(
        tmp_path, seeds(3, ("single", 1), 39.776, 0.0, 4.0), seeds(3, ("ddp", 2), 29.974, 0.0, 2.0)
    )
    (one,) = differences(data)
    assert one.points == pytest.approx(-9.802)
    assert one.shown_points == pytest.approx(-9.81)
    assert "(-9.81 points; 3 seeds, spread 0.00 points)" in difference_message(one)
    row = training_tables(data)["training_speedup"].rows[0]
    assert (row[2], row[3]) == ("29.97", "-9.81")


def test_an_incomplete_training_is_left_out_of_accuracy_with_a_finding(tmp_path: Path) -> None:
    """A loss that is not finite is NA with a finding as well."""
    short = plain_epochs("ddp", 2, 1, [99.0], [2.0])
    data = loaded(
        tmp_path, plain_epochs("ddp", 2, 0, [80.0, 90.0], [2.0, 2.0], losses=[1.0, None]), short
    )
    assert final_accuracy(data.cells[0]) == Range(90.0, 90.0, 90.0, 1)
    findings, table = codes(data), training_tables(data)["test_accuracy"]
    assert "seed 1 has 1" in findings["training_incomplete"].message
    assert findings["training_incomplete"].severity == "error"
    assert "epoch 2" in findings["training_diverged"].message
    assert table.rows[0][7] == "NA"


def test_a_planned_training_without_an_epoch_is_an_error(tmp_path: Path) -> None:
    """Of two planned cells one has its two epochs, of the other there is none."""
    cells = [Cell("single", 1, 16), Cell("ddp", 2, 8)]
    first = [record(cells[0].name, epoch=epoch) for epoch in (1, 2)]
    last = [record(cells[1].name, epoch=epoch) for epoch in (1, 2)]
    data = load_training(write_trained(tmp_path / "lacks", cells, first, epochs=2))
    (finding,) = [one for one in training_findings(data) if one.code == "training_incomplete"]
    assert (finding.severity, finding.about) == ("error", f"{cells[1].name}, seed 0")
    assert "of 2 epochs none is trained" in finding.message
    whole = load_training(write_trained(tmp_path / "whole", cells, first + last, epochs=2))
    assert "training_incomplete" not in codes(whole)


GOOD = plain_epochs("ddp", 2, 0, [90.0], [2.0])[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not a"),
        ('{"epochs": []}', "holds no epoch"),
        ([{"strategy": "ddp"}], "devices"),
        ([{**GOOD, "strategy": "horovod"}], "strategy"),
        ([{**GOOD, "test_accuracy": 101.0}], r"<= 100.0 - at `\$.epochs\[0\].test_accuracy`"),
        ([{**GOOD, "devices": 0}], "devices"),
        ([{**GOOD, "devices": 2**63}], "devices"),
        ([{**GOOD, "seed": -1}], "seed"),
        ([{**GOOD, "batch_size": -1}], "batch_size"),
        ([{**GOOD, "train_s": 0.0}], "train_s"),
        ([{**GOOD, "train_s": 1e300}], "train_s"),
        ([{**GOOD, "evaluation_s": -1.0}], "evaluation_s"),
        ([GOOD, GOOD], "epoch 1 follows epoch 1"),
        ([GOOD, {**GOOD, "epoch": 3}], "epoch 3 follows epoch 1"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, content: str | Epochs, message: str) -> None:
    (tmp_path / "train.json").write_text(
        content if isinstance(content, str) else json.dumps({"epochs": content})
    )
    with pytest.raises(DpscopeError, match=message) as caught:
        load_training(tmp_path)
    assert "\n" not in str(caught.value)
    assert "train.json" in str(caught.value)


def accuracy_of(cell: Cell, training: TrainingData | None, model: str = "resnet8_test") -> CellRow:
    return row_of(CellView(planned_job(cell), workload=Workload(model=model), training=training))


def test_measured_cells_get_the_accuracy_of_trained_ones(tmp_path: Path) -> None:
    """Of the cell's batch if it was trained, or else of the trained one, whose batch is recorded;
    else a reason.
    """
    ddp, other = Cell("ddp", 2, 16), Cell("ddp", 2, 64)
    records = [record(seed=seed, test_accuracy=90.0 + seed) for seed in range(3)]
    training = load_training(write_trained(tmp_path, [ddp], records, epochs=1))
    for cell in (ddp, other):
        values = accuracy_of(cell, training).values
        assert values["test_accuracy_percent"] == 91.0  # of 90, 91, 92
        assert (values["test_accuracy_seeds"], values["trained_global_batch_size"]) == (3, 32)
    several = [record(f"ddp-d2-b{batch}") for batch in (16, 32)]
    unclear = load_training(write_trained(tmp_path / "two", [ddp], several, epochs=1))
    for row, reason in (
        (accuracy_of(ddp, None), "nothing was trained"),
        (
            accuracy_of(ddp, training, model="resnet50"),
            "trained with model resnet8_test, measured with resnet50",
        ),
        (accuracy_of(Cell("single", 1, 16), training), "was not trained"),
        (
            accuracy_of(Cell("ddp", 2, 16, options=CellOptions(comm_hook="fp16")), training),
            "was not trained",
        ),
        (accuracy_of(other, unclear), "ddp-d2-b16, ddp-d2-b32"),
    ):
        assert row.test_accuracy_percent is None
        assert reason in row.reasons["test_accuracy_percent"]


@pytest.mark.long
def test_analyze_shows_a_folder_of_trainings_alone(tmp_path: Path) -> None:
    two_strategies(tmp_path)
    ended = CliRunner().invoke(app, ["analyze", str(tmp_path), "--target-accuracy", "90%"])
    assert ended.exit_code == 0, ended.output
    assert "Training time to 90% test accuracy" in ended.output
    assert f"Report: {tmp_path}/report/report.html" in "".join(ended.output.split("\n"))
