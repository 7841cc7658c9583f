"""What `dpscope analyze` says of folders that it cannot read as they are."""

from pathlib import Path

import pytest
import typer

import dpscope.analysis as api
from dpscope.analysis.costs.calibration_files import load_calibration
from dpscope.launch.commands.analyze import AnalyzeRequest, analyze, runs_among
from dpscope.profiling.records.equality import EQUALITY_FOLDER
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import SETTINGS_NAME
from tests.helpers.paths import DATA


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            "cells/single-d1-b4/samples.json",
            "{}: manifest.json is missing or not dpscope's, which lists its cells",
        ),
        (
            f"{EQUALITY_FOLDER}/{SETTINGS_NAME}",
            "dpscope equal, without traces: read {}/equality.json or the table",
        ),
        (".lock", "{} is the output folder of a command that has measured nothing"),
    ],
)
def test_what_is_no_folder_of_traces_is_named(tmp_path: Path, made: str, message: str) -> None:
    (tmp_path / made).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / made).write_text("{}")
    with pytest.raises(DpscopeError, match=message.format(tmp_path)):
        analyze(AnalyzeRequest(flags={}, given={}, paths=[tmp_path]))


def test_a_path_that_does_not_exist_is_named_before_others(tmp_path: Path) -> None:
    with pytest.raises(DpscopeError, match=r"nowhere does not exist; .*run_tiny is a run folder"):
        runs_among([DATA / "run_tiny", tmp_path / "nowhere"])
    with pytest.raises(DpscopeError, match=r"run_tiny is a run folder: give it alone, or trace"):
        runs_among([DATA / "run_tiny", DATA / "compiled_ddp"])


def test_mistakes_of_the_python_api_are_named(tmp_path: Path) -> None:
    traces = DATA / "compiled_ddp"
    with pytest.raises(DpscopeError, match="paths is empty; give a run folder, or trace files"):
        api.analyze([])
    with pytest.raises(DpscopeError, match="link fast: fast is no link"):
        api.analyze(traces, link="fast")
    with pytest.raises(DpscopeError, match="traces have no folder for a report; give folder="):
        api.write_report(api.analyze(traces).report)
    with pytest.raises(DpscopeError, match=r"missing\.csv does not exist"):
        api.read_epoch_times(str(tmp_path / "missing.csv"))


def test_the_first_screen_counts_the_findings_that_verbose_shows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = [DATA / "v100x8_ddp_dlrm"]
    with pytest.raises(typer.Exit):
        analyze(AnalyzeRequest(flags={}, given={}, paths=paths))
    assert "4 findings and the tables" in capsys.readouterr().out
    with pytest.raises(typer.Exit):
        analyze(AnalyzeRequest(flags={}, given={}, paths=paths, verbose=True))
    findings = capsys.readouterr().out.partition("\nFindings\n")[2]
    assert sum(line.startswith(("warning", "info")) for line in findings.splitlines()) == 4


def test_a_file_that_is_not_there_is_named_with_its_option() -> None:
    trace, nope = DATA / "a100x2_ddp_resnet50_rank0.json.gz", Path("nope")
    with pytest.raises(DpscopeError, match=r"--nccl-log nope does not exist; name NCCL's log"):
        analyze(AnalyzeRequest(flags={}, given={}, paths=[trace], nccl_log=[nope]))


def test_a_file_that_is_no_calibration_is_called_that(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"a": 1}')
    with pytest.raises(DpscopeError, match=r"wrong.json is no calibration that this dpscope reads"):
        load_calibration(wrong)
