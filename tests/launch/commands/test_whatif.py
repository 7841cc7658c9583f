"""`dpscope whatif` of tables, run folders and traces: what is printed and written; test_cli.py has what is refused."""

import csv
import gzip
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dpscope.launch.cli import app
from tests.helpers.paths import DATA, EXAMPLE_RUN, ROOT

A100 = DATA / "a100x2_ddp_resnet50_rank0.json.gz"
V100 = DATA / "scaling" / "ddp_v100_pytorch_benchmark.csv"
KEYS = {
    *("devices", "nodes", "batch_size", "step_us", "low_us", "high_us", "exposed_us", "efficiency"),
    *("bound_by", "rests_on", "reason"),
}


def whatif(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["whatif", *map(str, arguments)])


def answer(*arguments: object) -> Any:
    return json.loads(whatif(*arguments, "--format", "json").stdout)


def printed(*arguments: object) -> str:
    return " ".join(whatif(*arguments).stdout.split())


def table_of(tmp_path: Path, content: str, name: str = "steps.csv") -> Path:
    path = tmp_path / name
    path.write_text(content)
    return path


def test_json_has_an_entry_per_configuration() -> None:
    prediction = answer(V100, "--devices", "8,32,1024")
    entries = prediction["predictions"]
    assert [entry["devices"] for entry in entries] == [8, 32, 1024] * 2
    assert {frozenset(entry) for entry in entries} == {frozenset({*KEYS, "series"})}
    assert {entry["nodes"] for entry in entries} == {1, 4, 128}  # nodes of 8, the most that the table has
    far = entries[2]
    assert far["step_us"] is None
    assert far["reason"]
    assert prediction["own_error"]["resnet50, 25"]["rows"] == 3
    for output_format in ("table", "csv"):
        shown = whatif(V100, "--devices", "8", "--format", output_format).stdout
        assert "resnet101" in shown
        assert "NA" not in shown.splitlines()[0]


def test_measured_rows_are_predicted_in_their_order(tmp_path: Path) -> None:
    rows = V100.read_text().splitlines()
    known, held = tmp_path / "known.csv", tmp_path / "held.csv"
    known.write_text("\n".join(line for line in rows if line.split(",")[1] not in ("8", "16")))
    held.write_text("\n".join([rows[0], *(line for line in rows[:0:-1] if line.split(",")[1] in ("8", "16"))]))
    prediction = answer(known, "--measured", held)
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
        prediction.append(answer(known, "--measured", held))
    assert prediction[0]["predictions"] == prediction[1]["predictions"] == prediction[2]["predictions"]
    assert [one["score"].get("all series", {}).get("rows") for one in prediction] == [2, 1, None]
    assert "measured [ms]" not in printed(known, "--measured", held)


def test_the_first_thing_said_is_the_answer(tmp_path: Path) -> None:
    prediction = printed(table_of(tmp_path, "ranks,step_ms\n1,100\n2,104\n4,104\n8,104\n"), "--devices", "16,128")
    first = (
        r"Layout assumed: .*? column nodes\. "
        r"16 devices: 10[456]\.\d ms a step \(90% band 9\d\.\d to 11\d\.\d\), 9[456]% of perfect scaling\. "
    )
    assert re.match(first, prediction)
    assert "128 devices: between 100.0 and " in prediction
    assert printed(tmp_path / "steps.csv", "--devices", "1").count("1 device: basis: t_1, measured") == 1
    assert "measured at 0 samples" not in printed(tmp_path / "steps.csv", "--devices", "1")
    refused = printed(table_of(tmp_path, "ranks,step_ms\n1,100\n2,80\n4,81\n"), "--devices", "8")
    assert ". 8 devices: no number: 2 devices take 0.8x the time of one" in refused


def test_devices_are_on_the_nodes_that_a_table_names_or_on_one(tmp_path: Path) -> None:
    # 8 devices on the fullest node, whether it is named or assumed: 16 are on two.
    partly = table_of(tmp_path, "nodes,ranks,step_ms\n,1,100\n,8,110\n2,4,120\n")
    assert [entry["nodes"] for entry in answer(partly, "--devices", "16")["predictions"]] == [2]
    # Nothing shows where the devices are, before or after: 16 are predicted from 2, 4 and 8, not refused as two nodes.
    table = table_of(tmp_path, "ranks,step_ms\n1,100\n2,104\n4,106\n8,109\n")
    entry = answer(table, "--devices", "16")["predictions"][0]
    assert (entry["nodes"], entry["reason"]) == (1, None)
    assert 105e3 < entry["step_us"] < 115e3
    stated = answer(table, "--devices", "16", "--per-node", "8")["predictions"][0]
    assert (stated["nodes"], stated["step_us"]) == (2, None)


def test_a_column_or_a_batch_that_one_table_lacks_hinders_nothing(tmp_path: Path) -> None:
    known, other = tmp_path / "known.csv", tmp_path / "other.csv"
    known.write_text("site,ranks,batch_per_rank,step_ms\na,1,32,100\na,2,32,104\na,4,32,106\n")
    other.write_text("day,ranks,step_ms\nmonday,8,110\n")
    prediction = answer(known, "--measured", other)
    assert prediction["predictions"][0]["reason"] is None
    assert prediction["score"]["all series"]["step_error"] < 0.05
    other.write_text("day,ranks,step_ms\nmonday,8,110\nmonday,16,112\ntuesday,8,111\n")  # a setting
    assert "has no rows of monday" in printed(known, "--measured", other)


def test_columns_of_two_tables_may_be_arranged_differently(tmp_path: Path) -> None:
    known = table_of(tmp_path, "model,net,ranks,step_ms\na,x,1,100\na,x,2,104\na,y,2,105\nb,x,1,50\nb,x,2,52\n")
    other = table_of(tmp_path, "net,model,ranks,step_ms\nx,a,4,106\nx,b,4,53\n", "other.csv")
    prediction = answer(known, "--measured", other)
    assert [(one["series"], one["reason"]) for one in prediction["predictions"]] == [("a, x", None), ("b, x", None)]


def test_bytes_of_gradients_tell_the_rate_of_the_link(tmp_path: Path) -> None:
    # 100 MB take 200 ms over the wire: 0.5 GB/s. A ring of N takes 2(N-1)/N of that, 60 ms of which hide: 140, 240, 290 ms stay.
    table = tmp_path / "steps.csv"
    steps = "".join(f"{n},{n},{40 + 400 * (n - 1) / n},{400 * (n - 1) / n - 60}\n" for n in (2, 4, 8))
    table.write_text(f"nodes,ranks,step_ms,sync_ms\n1,1,100,\n{steps}")
    prediction = answer(table, "--devices", "16", "--gradient-bytes", "100MB")
    (rate,) = prediction["link_rates"]
    assert rate["link"] == "between nodes"
    assert rate["gb_per_s"] == pytest.approx(0.5, rel=0.2)
    table.write_text("ranks,step_ms\n1,100\n2,101\n4,101\n")
    assert "hides under compute" in printed(table, "--devices", "8", "--gradient-bytes", "1e8")
    ended = whatif(table, "--devices", "8", "--gradient-bytes", "0")
    assert "--gradient-bytes 0: give a size above 0" in str(ended.exception)


def test_series_of_one_label_stay_apart(tmp_path: Path) -> None:
    """A value in one column is another setting than the same value in another: each series has its own link and error."""
    rows = (f"a,,{n},{100 + n}\n,a,{n},{200 + n}\n" for n in (1, 2, 4))
    table = table_of(tmp_path, "".join(["model,net,ranks,step_ms\n", *rows]))
    found = answer(table, "--devices", "8", "--gradient-bytes", "100MB")
    assert [one["series"] for one in found["link_rates"]] == ["a, -", "-, a"]
    assert list(found["own_error"]) == ["a, -", "-, a"]


@pytest.mark.long
def test_lists_make_a_table_and_the_base_is_predicted_as_measured() -> None:
    stated = answer(EXAMPLE_RUN, "--devices", "2,4", "--overlap", "on,off")
    prediction = stated["predictions"]
    assert all(one.keys() >= KEYS for one in prediction)
    pairs = [(one["devices"], one["scenario"]["overlap"]) for one in prediction]
    assert pairs == [(2, "on"), (2, "off"), (4, "on"), (4, "off")]
    ledgers = [one["ledger"] for one in (stated["base"], *prediction)]
    assert ledgers[0] == pytest.approx(ledgers[1])  # of the base, and of it predicted
    parts = ("compute_us", "exposed_wait_us", "exposed_transfer_us", "exposed_other_us", "idle_us", "tracer_us")
    for ledger, step_us in zip(ledgers[1:], (one["step_us"] for one in prediction), strict=True):
        assert sum(ledger[part] for part in parts) == pytest.approx(step_us)
    assert stated["savings"]["devices"] == 4
    assert stated["savings"]["changes"][0]["is_part"]
    assert prediction[0]["step_us"] == pytest.approx(stated["base"]["step_us"])
    assert abs(stated["base"]["replay_error"]) <= 0.01
    assert prediction[0]["low_us"] < prediction[0]["step_us"] < prediction[0]["high_us"]
    near, far = (prediction[index]["high_us"] / prediction[index]["low_us"] for index in (0, 2))
    assert far > near  # further from what was measured


@pytest.mark.long
def test_csv_has_the_base_and_each_prediction_and_the_figure_is_drawn(tmp_path: Path) -> None:
    figure, arguments = tmp_path / "efficiency.svg", (EXAMPLE_RUN, "--devices", "2,4")
    ended = whatif(*arguments, "--figure", figure, "--format", "csv")
    assert ended.exit_code == 0, ended.exception
    assert "<svg" in figure.read_text()[:600]
    rows, found = list(csv.DictReader(io.StringIO(ended.stdout))), answer(*arguments)
    assert [row["configuration"] for row in rows] == ["base: ddp-d2-b8", "2 devices", "4 devices"]
    for row, known in zip(rows, (found["base"], *found["predictions"]), strict=True):
        expected = {name: us for name, us in {**known["ledger"], "step_us": known["step_us"]}.items() if us is not None}
        assert {name: float(row[name]) for name in expected} == pytest.approx(expected)


@pytest.mark.long
def test_a_figure_replaces_dpscopes_and_nothing_else(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.svg", tmp_path / "theirs.svg"
    theirs.write_bytes(b"precious")
    for _ in range(2):
        assert whatif(EXAMPLE_RUN, "--figure", ours, "--format", "json").exit_code == 0
    refused = whatif(EXAMPLE_RUN, "--figure", theirs)
    assert "was not written by dpscope, which does not overwrite it" in str(refused.exception)
    assert theirs.read_bytes() == b"precious"
    nothing = whatif(A100, "--figure", tmp_path / "nothing.png", "--devices", "4")  # one rank's trace, and no jitter
    assert "nothing to draw" in str(nothing.exception)
    assert not (tmp_path / "nothing.png").exists()


@pytest.mark.parametrize("option", ["--solve", "--need", "--trace", "--strategy"])
def test_options_of_other_questions_do_not_exist(option: str) -> None:
    refused = whatif(EXAMPLE_RUN, option, "x")
    assert refused.exit_code == 2
    assert f"No such option: {option}" in refused.stderr


@pytest.mark.long
def test_a_foreign_trace_is_told_what_it_lacks_and_what_bounds_it() -> None:
    text = printed(A100, "--devices", "4", "--jitter", "3%")
    assert "1 of 2 ranks: transfers are upper bounds" in text
    # Its launches, of a step of 222 ms, from the README of the data: 169.1 ms are idle. Without them transfers, longer on 4
    # devices, are exposed, and the compute next to them is slower.
    changes = answer(A100, "--devices", "4", "--jitter", "3%")["savings"]["changes"]
    saved_us = {one["change"]: one["saved_us"] for one in changes}
    assert saved_us["idle time of the devices"] == pytest.approx(155.7e3, rel=1e-3)
    assert "NA of wait: the traces of the base do not separate waiting from transfer" in text
    refused = answer(A100, "--devices", "2", "--intra", "NVLink 3")
    assert refused["predictions"][0]["step_us"] is None
    assert "the host bounds this step" in refused["predictions"][0]["reason"]
    shown = whatif(A100, "--devices", "2,4", "--intra", "NVLink 3").stdout
    assert " ".join(shown.split()).count("the host bounds this step") == 1
    assert all(line == line.rstrip() for line in shown.splitlines())


def test_traces_that_are_cut_short_give_a_number_and_status_2(tmp_path: Path) -> None:
    """As of `dpscope analyze`: the last tenth of a file is missing, and its steps are whole."""
    for trace in sorted((ROOT / "examples/run_cpu/cells/ddp-d2-b128/repeat0/traces").iterdir()):
        text = gzip.decompress(trace.read_bytes())
        (tmp_path / trace.stem).write_bytes(text if "0_0" in trace.name else text[: len(text) * 9 // 10])
    cut = whatif(tmp_path, "--devices", "4")
    assert cut.exit_code == 2
    assert "4 devices" in cut.stdout
    assert f"{tmp_path}/0_1.pt.trace.json is cut short or damaged" in cut.stderr


@pytest.mark.long
@pytest.mark.parametrize(("placed", "level"), [("--devices 2", "intra"), ("--devices 4 --per-node 1", "inter")])
def test_one_link_is_that_between_several_nodes_else_that_within_the_node(placed: str, level: str) -> None:
    def predicted(*arguments: str) -> dict[str, object]:
        prediction = answer(EXAMPLE_RUN, *placed.split(), *arguments)["predictions"][0]
        return {name: value for name, value in prediction.items() if name != "scenario"}

    assert predicted("--link", "1GB/s") == predicted(f"--{level}", "1GB/s") != predicted("--link", "2GB/s")


def layout_of(*arguments: object) -> str:
    return str(answer(*arguments)["layout"])


def test_the_layout_is_stated(tmp_path: Path) -> None:
    """More devices than the base's node has are an assumption; so is one node of a table without nodes."""
    assumed = (
        "Layout assumed: one node with all {} devices, linked as the 2 on the base's node; for several nodes give "
        "--per-node."
    )
    assert layout_of(EXAMPLE_RUN, "--devices", "4,8") == assumed.format(8)
    assert layout_of(EXAMPLE_RUN, "--devices", "16,32") == assumed.format(32)  # although there is no number
    assert layout_of(EXAMPLE_RUN, "--devices", "8", "--per-node", "2") == "Layout: devices per node as stated."
    assert layout_of(EXAMPLE_RUN, "--bucket-mb", "5") == "Layout: one node, as the base's 2 devices."
    assert assumed.format(4) in printed(EXAMPLE_RUN, "--devices", "4")
    assert layout_of(V100, "--devices", "32") == "Layout: full nodes of 8 devices, as in the table."
    plain = table_of(tmp_path, "ranks,batch_per_rank,step_ms\n1,8,10\n2,8,11\n4,8,12\n")
    assert layout_of(plain, "--devices", "8") == (
        "Layout assumed: one node with all 8 devices, as the table names no nodes; for several give --per-node, and a "
        "column nodes."
    )
