"""`dpscope whatif` as a command: its JSON, its refusals."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dpscope.launch.cli import app
from tests.helpers.paths import DATA

V100 = DATA / "scaling" / "ddp_v100_pytorch_benchmark.csv"
KEYS = {
    *("devices", "nodes", "batch_size", "step_us", "low_us", "high_us", "exposed_us", "efficiency"),
    *("bound_by", "rests_on", "reason", "series"),
}


def whatif(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["whatif", *map(str, arguments)])


def test_json_has_an_entry_per_configuration() -> None:
    said = json.loads(whatif(V100, "--devices", "8,32,1024", "--format", "json").stdout)
    entries = said["predictions"]
    assert [entry["devices"] for entry in entries] == [8, 32, 1024] * 2
    assert {frozenset(entry) for entry in entries} == {frozenset(KEYS)}
    assert {entry["nodes"] for entry in entries} == {1, 4, 128}  # nodes of 8, the most that the table has
    far = entries[2]
    assert far["step_us"] is None
    assert far["reason"]
    assert said["own_error"]["resnet50, 25"]["rows"] == 3


def test_measured_rows_are_predicted_in_their_order(tmp_path: Path) -> None:
    rows = V100.read_text().splitlines()
    known, held = tmp_path / "known.csv", tmp_path / "held.csv"
    known.write_text("\n".join(line for line in rows if line.split(",")[1] not in ("8", "16")))
    held.write_text("\n".join([rows[0], *(line for line in rows[:0:-1] if line.split(",")[1] in ("8", "16"))]))
    said = json.loads(whatif(known, "--measured", held, "--format", "json").stdout)
    assert [entry["devices"] for entry in said["predictions"]] == [16, 8, 16, 8]
    assert [entry["step_us"] is None for entry in said["predictions"]] == [True, False, True, False]
    assert said["score"]["resnet50, 25"]["declined"] == 1
    text = whatif(known, "--measured", held).stdout
    assert "1 of 2 rows predicted" in text


def test_wrong_use_is_one_line(tmp_path: Path) -> None:
    nothing = tmp_path / "none.csv"
    cases = {
        (V100,): "say what to predict",
        (V100, "--devices", "4", "--measured", V100): "one of them",
        (V100, "--devices", "4,x"): "--devices 4,x: give whole numbers",
        (V100, "--devices", "4", "--batch-size", "0"): "--batch-size 0: give whole numbers",
        (nothing, "--devices", "4"): "does not exist",
        (tmp_path, "--devices", "4"): "holds no trace",
    }
    for arguments, expected in cases.items():
        ended = whatif(*arguments)
        assert ended.exit_code != 0
        assert expected in str(ended.exception)
        assert "\n" not in str(ended.exception)


@pytest.mark.parametrize("output_format", ["table", "csv"])
def test_other_formats(output_format: str) -> None:
    shown = whatif(V100, "--devices", "8", "--format", output_format).stdout
    assert "resnet101" in shown
    assert "NA" not in shown.splitlines()[0]
