"""`dpscope whatif` as a command: its JSON, its refusals."""

import json
import re
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
    prediction = json.loads(whatif(V100, "--devices", "8,32,1024", "--format", "json").stdout)
    entries = prediction["predictions"]
    assert [entry["devices"] for entry in entries] == [8, 32, 1024] * 2
    assert {frozenset(entry) for entry in entries} == {frozenset(KEYS)}
    assert {entry["nodes"] for entry in entries} == {1, 4, 128}  # nodes of 8, the most that the table has
    far = entries[2]
    assert far["step_us"] is None
    assert far["reason"]
    assert prediction["own_error"]["resnet50, 25"]["rows"] == 3


def test_measured_rows_are_predicted_in_their_order(tmp_path: Path) -> None:
    rows = V100.read_text().splitlines()
    known, held = tmp_path / "known.csv", tmp_path / "held.csv"
    known.write_text("\n".join(line for line in rows if line.split(",")[1] not in ("8", "16")))
    held.write_text("\n".join([rows[0], *(line for line in rows[:0:-1] if line.split(",")[1] in ("8", "16"))]))
    prediction = json.loads(whatif(known, "--measured", held, "--format", "json").stdout)
    assert [entry["devices"] for entry in prediction["predictions"]] == [16, 8, 16, 8]
    assert [entry["step_us"] is None for entry in prediction["predictions"]] == [True, False, True, False]
    assert prediction["score"]["resnet50, 25"]["declined"] == 1
    text = whatif(known, "--measured", held).stdout
    assert text.startswith("resnet50, 25: 1 of 2 rows predicted: median error of the step ")


def test_predictions_do_not_depend_on_the_times_of_the_rows_predicted(tmp_path: Path) -> None:
    known, held = tmp_path / "known.csv", tmp_path / "held.csv"
    known.write_text("ranks,step_ms\n1,100\n2,104\n4,106\n")
    prediction = []
    for text in ("ranks,step_ms\n8,110\n4,106\n", "ranks,step_ms\n8,5\n4,\n", "ranks\n8\n4\n"):
        held.write_text(text)
        prediction.append(json.loads(whatif(known, "--measured", held, "--format", "json").stdout))
    assert prediction[0]["predictions"] == prediction[1]["predictions"] == prediction[2]["predictions"]
    assert [one["score"].get("all series", {}).get("rows") for one in prediction] == [2, 1, None]
    assert "measured [ms]" not in printed(known, "--measured", held)


def test_wrong_use_is_one_line(tmp_path: Path) -> None:
    nothing = tmp_path / "none.csv"
    cases = {
        (V100,): "name what to predict",
        (V100, "--devices", "4", "--measured", V100): "one of them",
        (V100, "--devices", "4,x"): "--devices 'x': give whole numbers",
        (V100, "--devices", "4", "--batch-size", "0"): "--batch-size '0': give whole numbers",
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


def printed(*arguments: object) -> str:
    return " ".join(whatif(*arguments).stdout.split())


def test_the_first_thing_said_is_the_answer(tmp_path: Path) -> None:
    table = tmp_path / "steps.csv"
    table.write_text("ranks,step_ms\n1,100\n2,104\n4,104\n8,104\n")
    prediction = printed(table, "--devices", "16,128")
    assert re.match(
        r"16 devices: 10[456]\.\d ms a step \(90% band 9\d\.\d to 11\d\.\d\), 9[456]% of perfect scaling\. ", prediction
    )
    assert "128 devices: between 100.0 and " in prediction
    refused = table.with_name("faster.csv")
    refused.write_text("ranks,step_ms\n1,100\n2,80\n4,81\n")
    assert printed(refused, "--devices", "8").startswith("8 devices: no number: 2 devices take 0.80x the time of one")


def test_a_table_that_names_no_nodes_is_asked_for_devices_alone(tmp_path: Path) -> None:
    # Nothing shows where the devices are, before or after: 16 are predicted from 2, 4 and 8, not refused as two nodes.
    table = tmp_path / "steps.csv"
    table.write_text("ranks,step_ms\n1,100\n2,104\n4,106\n8,109\n")
    entry = json.loads(whatif(table, "--devices", "16", "--format", "json").stdout)["predictions"][0]
    assert (entry["nodes"], entry["reason"]) == (1, None)
    assert 105e3 < entry["step_us"] < 115e3
    stated = json.loads(whatif(table, "--devices", "16", "--per-node", "8", "--format", "json").stdout)["predictions"][
        0
    ]
    assert (stated["nodes"], stated["step_us"]) == (2, None)


def test_a_column_or_a_batch_that_one_table_lacks_hinders_nothing(tmp_path: Path) -> None:
    known, other = tmp_path / "known.csv", tmp_path / "other.csv"
    known.write_text("site,ranks,batch_per_rank,step_ms\na,1,32,100\na,2,32,104\na,4,32,106\n")
    other.write_text("day,ranks,step_ms\nmonday,8,110\n")
    prediction = json.loads(whatif(known, "--measured", other, "--format", "json").stdout)
    assert prediction["predictions"][0]["reason"] is None
    assert prediction["score"]["all series"]["step_error"] < 0.05
    other.write_text("day,ranks,step_ms\nmonday,8,110\nmonday,16,112\ntuesday,8,111\n")  # a setting
    assert "has no rows of monday" in printed(known, "--measured", other)


def test_bytes_of_gradients_tell_the_rate_of_the_link(tmp_path: Path) -> None:
    # 100 MB take 200 ms over the wire: 0.5 GB/s. A ring of N takes 2(N-1)/N of that, 60 ms of which hide: 140, 240, 290 ms stay.
    table = tmp_path / "steps.csv"
    steps = "".join(f"{n},{n},{40 + 400 * (n - 1) / n},{400 * (n - 1) / n - 60}\n" for n in (2, 4, 8))
    table.write_text(f"nodes,ranks,step_ms,sync_ms\n1,1,100,\n{steps}")
    prediction = json.loads(whatif(table, "--devices", "16", "--gradient-bytes", "100MB", "--format", "json").stdout)
    (rate,) = prediction["link_rates"]
    assert rate["link"] == "between nodes"
    assert rate["gb_per_s"] == pytest.approx(0.5, rel=0.2)
    table.write_text("ranks,step_ms\n1,100\n2,101\n4,101\n")
    assert "hides under compute" in printed(table, "--devices", "8", "--gradient-bytes", "1e8")
    ended = whatif(table, "--devices", "8", "--gradient-bytes", "0")
    assert "--gradient-bytes 0: give a size above 0" in str(ended.exception)
