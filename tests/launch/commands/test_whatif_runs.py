"""`dpscope whatif` of a run folder and of traces: what is printed, written and refused."""

import csv
import gzip
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dpscope.launch.cli import app
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import DATA, EXAMPLE_RUN, ROOT

A100 = DATA / "a100x2_ddp_resnet50_rank0.json.gz"


def whatif(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["whatif", *map(str, arguments)])


@pytest.mark.long
def test_lists_make_a_table_and_the_base_is_predicted_as_measured() -> None:
    stated = json.loads(whatif(EXAMPLE_RUN, "--devices", "2,4", "--overlap", "on,off", "--format", "json").stdout)
    prediction = stated["predictions"]
    assert [(one["devices"], one["scenario"]["overlap"]) for one in prediction] == [
        (2, "on"),
        (2, "off"),
        (4, "on"),
        (4, "off"),
    ]
    assert set(prediction[0]) >= {
        *("devices", "nodes", "batch_size", "step_us", "low_us", "high_us", "exposed_us"),
        *("efficiency", "bound_by", "rests_on", "reason"),
    }
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
    assert (
        prediction[2]["high_us"] / prediction[2]["low_us"] > prediction[0]["high_us"] / prediction[0]["low_us"]
    )  # further from what was measured


@pytest.mark.long
def test_the_terminal_says_the_base_its_error_and_what_saves_most() -> None:
    text = " ".join(whatif(EXAMPLE_RUN, "--devices", "4").stdout.split())
    assert "Base: ddp-d2-b8 on 2 devices" in text
    assert "typical traced steps (" in text
    assert "No other cell measures the method's error here: it is assumed (4%)." in text
    assert "Largest saving on 4 devices, one part removed at a time:" in text
    assert "Where the step goes [" in text
    assert "base: ddp-d2-b8" in text


@pytest.mark.long
def test_the_replayed_step_and_the_figure_are_written(tmp_path: Path) -> None:
    trace, figure = tmp_path / "step.json.gz", tmp_path / "efficiency.svg"
    ended = whatif(EXAMPLE_RUN, "--devices", "2,4", "--trace", trace, "--figure", figure, "--format", "csv")
    assert ended.exit_code == 0, ended.exception
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    names = {one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert names == {"measured: ddp-d2-b8", "predicted: devices 2"}
    assert {one["name"] for one in events if one["ph"] == "X"} >= {"forward and backward", "all_reduce", "broadcast"}
    assert "<svg" in figure.read_text()[:600]


@pytest.mark.long
def test_a_foreign_trace_is_told_what_it_lacks_and_what_bounds_it() -> None:
    text = " ".join(whatif(A100, "--devices", "4", "--jitter", "3%").stdout.split())
    assert "1 of 2 ranks: transfers are upper bounds" in text
    # Its launches, of a step of 222 ms, from the README of the data: 169.1 ms are idle. Without them transfers, longer on 4
    # devices, are exposed, and the compute next to them is slower.
    assert "idle time of the devices saves 155.7 ms" in text
    assert "NA of wait, transfer: the traces of the base do not separate waiting from transfer" in text
    refused = json.loads(whatif(A100, "--devices", "2", "--intra", "NVLink 3", "--format", "json").stdout)
    assert refused["predictions"][0]["step_us"] is None
    assert "the host bounds this step" in refused["predictions"][0]["reason"]


@pytest.mark.long
def test_where_there_is_no_number_the_reason_stands_once() -> None:
    refused = whatif(A100, "--devices", "2,4", "--intra", "NVLink 3").stdout
    assert " ".join(refused.split()).count("the host bounds this step") == 1
    assert "exposed [ms]" not in refused
    assert all(line == line.rstrip() for line in refused.splitlines())


@pytest.mark.long
def test_the_inverse_is_answered_in_a_sentence() -> None:
    text = " ".join(whatif(EXAMPLE_RUN, "--solve", "bucket-mb").stdout.split())
    assert "MiB are alike" in text  # 1,072 bytes of gradients are one bucket, whatever the cap
    text = " ".join(whatif(EXAMPLE_RUN, "--solve", "faster", "--need", "step-ms=0.001").stdout.split())
    assert "cannot be reached at any device speed" in text


@pytest.mark.long
def test_the_solved_row_is_printed_next_to_the_base() -> None:
    run = ROOT / "examples" / "run_cpu"
    text = whatif(run, "--solve", "faster", "--need", "step-ms=20").stdout
    rows = [line.split() for line in text.splitlines() if line.startswith("2 ")]
    assert [row[3:5] for row in rows[:2]] == [["as", "measured"], ["1.33", "20.0"]]
    assert "2 devices, faster 1.33  20.00" in text  # its ledger


@pytest.mark.long
def test_the_solution_is_in_json_and_in_csv() -> None:
    run = ROOT / "examples" / "run_cpu"
    arguments = (run, "--solve", "faster", "--need", "step-ms=20", "--format")
    answer = json.loads(whatif(*arguments, "json").stdout)
    solution = answer["solution"]
    assert (solution["variable"], solution["unit"]) == ("faster", "times as fast")
    assert solution["low"] < solution["value"] < solution["high"]
    assert solution["sentence"].startswith("A step of 20 ms on 2 devices needs a device ")
    assert answer["predictions"][-1]["scenario"] == solution["scenario"]
    assert answer["predictions"][-1]["step_us"] == pytest.approx(20e3, rel=0.01)
    ended = whatif(*arguments, "csv")
    rows = list(csv.DictReader(io.StringIO(ended.stdout)))
    assert [row["configuration"] for row in rows] == ["base: ddp-d2-b128", "2 devices", "2 devices, faster 1.33"]
    assert float(rows[-1]["step_us"]) == pytest.approx(answer["predictions"][-1]["step_us"])
    assert ended.stderr == solution["sentence"] + "\n"
    nothing = json.loads(whatif(run, "--solve", "faster", "--need", "step-ms=0.001", "--format", "json").stdout)
    assert (nothing["solution"]["value"], nothing["solution"]["scenario"]) == (None, {})
    assert "cannot be reached" in nothing["solution"]["sentence"]
    assert json.loads(whatif(run, "--devices", "4", "--format", "json").stdout)["solution"] is None


def test_the_csv_carries_the_ledgers_of_base_and_predictions() -> None:
    arguments = (EXAMPLE_RUN, "--devices", "2,4", "--overlap", "off", "--format")
    content = json.loads(whatif(*arguments, "json").stdout)
    rows = list(csv.DictReader(io.StringIO(whatif(*arguments, "csv").stdout)))
    assert [(row["devices"], row["overlap"]) for row in rows] == [("2", ""), ("2", "off"), ("4", "off")]
    for row, known in zip(rows, (content["base"], *content["predictions"]), strict=True):
        expected = {name: "" if us is None else pytest.approx(us) for name, us in known["ledger"].items()}
        assert {name: float(row[name]) if row[name] else "" for name in expected} == expected
        assert float(row["step_us"]) == pytest.approx(known["step_us"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("placed", "level"), [(["--devices", "2"], "intra"), (["--devices", "4", "--per-node", "1"], "inter")]
)
def test_one_link_is_that_between_nodes_if_there_are_several_else_that_within_the_node(
    placed: list[str], level: str
) -> None:
    def predicted(*arguments: str) -> dict[str, object]:
        answer = json.loads(whatif(EXAMPLE_RUN, *placed, *arguments, "--format", "json").stdout)
        return {name: value for name, value in answer["predictions"][0].items() if name != "scenario"}

    assert predicted("--link", "1GB/s") == predicted(f"--{level}", "1GB/s") != predicted("--link", "2GB/s")


@pytest.mark.long
def test_the_link_that_limits_is_solved_for() -> None:
    need = ("--need", "efficiency=0.01")
    assert whatif(EXAMPLE_RUN, "--solve", "link", *need).stdout == whatif(EXAMPLE_RUN, "--solve", "intra", *need).stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--inter", "100Gb/s"], "--inter changes nothing: all of it is on one node; add --per-node"),
        (
            ["--devices", "4", "--per-node", "1", "--intra", "NVLink 3"],
            "--intra changes nothing: every node has one device",
        ),
        (["--inter", "100"], "--inter: '100' has no unit: write 100GB/s"),
        (["--link", "100"], "--link: '100' has no unit: write 100GB/s"),
        (["--link", "1GB/s", "--inter", "1GB/s"], "--link and --inter state the same link"),
        (["--overlap", "offf"], "--overlap 'offf': did you mean off? Choose from on, off"),
        (["--solve", "buckt-mb"], "did you mean bucket-mb?"),
        (["--need", "step_ms=3", "--solve", "faster"], "did you mean step-ms?"),
        (["--jitter", "3"], "--jitter '3' has no unit: write 3%"),
        (["--devices", "0"], "--devices '0': give whole numbers of 1 or more"),
        (["--bucket-mb", "-1"], "--bucket-mb -1: give a size above 0, such as 25 (MiB)"),
        (["--overlap", "maybe"], "--overlap 'maybe': choose from on, off"),
        (["--solve", "luck"], "--solve 'luck': choose from link, inter"),
        (["--solve", "inter"], "--solve inter needs a target"),
        (["--solve", "inter", "--need", "efficiency=95"], "an efficiency is at most 1"),
        (["--solve", "inter", "--need", "speed=2"], "give efficiency=0.95 or step-ms=100"),
        (["--solve", "bucket-mb", "--bucket-mb", "5"], "--solve bucket-mb finds that itself: leave --bucket-mb out"),
        (["--solve", "bucket-mb", "--devices", "2,4"], "--solve answers for one scenario"),
        (["--cell", "ddp-d8-b8"], "has no measured cell ddp-d8-b8; did you mean ddp-d2-b8? It has"),
        (["--cell", "single-d1-b8"], "cannot be the base"),
        (["--trace", "step.txt"], "must end in .json"),
        (["--figure", "nowhere/x.png"], "nowhere does not exist"),
    ],
)
def test_wrong_use_of_a_run_is_one_line(arguments: list[str], expected: str) -> None:
    ended = whatif(EXAMPLE_RUN, *arguments)
    assert isinstance(ended.exception, DpscopeError)
    assert expected in str(ended.exception)
    assert "\n" not in str(ended.exception)
    assert ended.stdout == ""  # nothing is answered first
