"""`dpscope whatif` of run folders and traces: what is printed and written; test_cli.py has what is
refused.
"""

import functools
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from dpscope.analysis.costs.calibration_files import calibration_of_run
from dpscope.analysis.output import run_screen
from dpscope.analysis.what_if import bases
from dpscope.launch.contents import app
from tests.helpers.examples import loaded
from tests.helpers.paths import DATA, EXAMPLE_RUN, ROOT

NOISY_RUN = ROOT / "examples" / "run_cpu"
A100 = DATA / "a100x2_ddp_resnet50_rank0.json.gz"
KEYS = {
    *("devices", "nodes", "batch_size", "step_us", "low_us", "high_us", "exposed_us", "efficiency"),
    *("rests_on", "reason"),
}


@pytest.fixture(scope="module", autouse=True)
def _each_run_is_read_once() -> Iterator[None]:
    """No command changes what is read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_screen, "load", functools.cache(run_screen.load))
        patch.setattr(bases, "calibration_of_run", functools.cache(calibration_of_run))
        yield


def whatif(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["whatif", *map(str, arguments)])


def answer(*arguments: object) -> Any:
    return json.loads(whatif(*arguments, "--format", "json").stdout)


def printed(*arguments: object) -> str:
    return " ".join(whatif(*arguments).stdout.split())


@pytest.mark.long
def test_lists_make_a_table_and_the_base_is_predicted_as_measured() -> None:
    stated = answer(NOISY_RUN, "--devices", "2,4", "--overlap", "on,off")
    prediction = stated["predictions"]
    assert all(one.keys() >= KEYS for one in prediction)
    pairs = [(one["devices"], one["scenario"]["overlap"]) for one in prediction]
    assert pairs == [(2, "on"), (2, "off"), (4, "on"), (4, "off")]
    assert prediction[0]["step_us"] == pytest.approx(stated["base"]["step_us"])
    assert abs(stated["base"]["replay_error"]) <= 0.01
    assert stated["base"]["valid_for_gpus"] is False
    assert stated["method_error"] == {"half_band": 0.04, "assumed": True}
    assert [finding["code"] for finding in stated["findings"]] == ["calibration_noisy"]
    assert prediction[0]["low_us"] < prediction[0]["step_us"] < prediction[0]["high_us"]
    near, far = (prediction[index]["high_us"] / prediction[index]["low_us"] for index in (0, 2))
    assert far > near  # further from what was measured


def contradiction(prediction: Any) -> str:
    """What the run's own all-reduces took over their costs."""
    parts = prediction["rests_on"] or prediction["reason"].split("; ")
    (clause,) = (part for part in parts if "own all-reduces took" in part)
    return str(clause)


def test_a_slower_link_is_no_improvement_and_noise_widens_the_band() -> None:
    """The all-reduces of this run took three times what its calibration gives, 0.31 GB/s: less than
    measured would be an artefact of that.
    """
    links = answer(NOISY_RUN, "--link", "1Gb/s,reached 0.31GB/s")
    counts = answer(NOISY_RUN, "--devices", "3,8")
    measured_us = links["base"]["step_us"]
    slower, equal = (one["step_us"] for one in links["predictions"])
    assert slower > 1.03 * measured_us
    assert equal == pytest.approx(measured_us, rel=0.01)
    near, far = counts["predictions"]
    assert near["high_us"] > 1.5 * near["step_us"]
    assert far["high_us"] / far["low_us"] > near["high_us"] / near["low_us"]
    own = "the base's own link counts as 0.31 GB/s, which its calibration reached"
    assert all(own in one["rests_on"] for one in links["predictions"])
    # one number, whatever the costs of the scenario rest on
    every = [*links["predictions"], near, far]
    assert len({contradiction(prediction) for prediction in every}) == 1


def test_one_device_is_shown_as_it_was_measured() -> None:
    """With a band that holds nine of ten of its repeats, here all five."""
    (alone,) = answer(NOISY_RUN, "--devices", "1")["predictions"]
    single = loaded(NOISY_RUN).cells["single-d1-b128"]
    medians = [float(np.median(samples)) for samples in single.step_samples()]
    assert alone["step_us"] == pytest.approx(np.median(np.concatenate(single.step_samples())))
    assert alone["low_us"] < min(medians) < max(medians) < alone["high_us"]
    assert alone["rests_on"] == ["one device's measured step, with the band of its repeats"]
    assert alone["efficiency"] == 1


def test_a_cell_that_is_none_is_refused_before_the_run_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dpscope.analysis.output.run_screen.load", None)
    refused = whatif(NOISY_RUN, "--cell", "ddp-d2-b12")
    assert "has no measured cell ddp-d2-b12; did you mean ddp-d2-b128?" in str(refused.exception)


def test_trainings_alone_are_no_base() -> None:
    refused = whatif(DATA / "trained_tiny", "--devices", "4")
    assert "trained_tiny holds trainings alone, which trace no step: measure" in str(
        refused.exception
    )


@pytest.mark.parametrize("name", ["steps.csv", "none.TSV"])
def test_a_table_is_for_another_command(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("ranks,step_ms\n1,100\n2,104\n")
    refused = whatif(tmp_path / name, "--devices", "4")
    assert str(refused.exception).endswith("give a table of times to dpscope estimate")


@pytest.mark.parametrize(
    "option", ["--solve", "--trace", "--strategy", "--faster", "--jitter", "--figure"]
)
def test_options_of_other_questions_do_not_exist(option: str) -> None:
    refused = whatif(EXAMPLE_RUN, option, "x")
    assert f"{option}: dpscope whatif has no such option" in str(refused.exception)


@pytest.mark.long
def test_a_foreign_trace_is_told_what_it_lacks_and_what_bounds_it() -> None:
    text = printed(A100, "--bucket-mb", "5")
    assert "1 of 2 ranks; transfers are upper bounds" in text
    assert "give every rank's trace" in printed(A100, "--devices", "4")
    assert text.index("The CPU bounds this step") < text.index("Predicted steps")
    assert "No efficiency: no step of one device was measured" in text
    linked = answer(A100, "--devices", "2", "--link", "NVLink 3")
    assert "the CPU bounds this step" in linked["predictions"][0]["limit"]
    unanswered = whatif(A100, "--devices", "4", "--bucket-mb", "5,25")
    assert unanswered.exit_code == 3
    shown = unanswered.stdout
    assert " ".join(shown.split()).count("give every rank's trace") == 1
    assert shown.startswith("No prediction for 4 devices (--bucket-mb 5, 25): ")
    assert "Predicted steps" not in shown
    assert "What this rests on" not in shown
    assert all(line == line.rstrip() for line in shown.splitlines())


def test_traces_that_are_cut_short_give_a_number_and_status_2(tmp_path: Path) -> None:
    """As of `dpscope analyze`: the last tenth of a file is missing, and its steps are whole."""
    for trace in sorted((NOISY_RUN / "cells/ddp-d2-b128/repeat0/traces").iterdir()):
        text = gzip.decompress(trace.read_bytes())
        (tmp_path / trace.stem).write_bytes(
            text if "0_0" in trace.name else text[: len(text) * 9 // 10]
        )
    cut = whatif(tmp_path, "--devices", "4")
    assert cut.exit_code == 2
    assert cut.stdout.startswith("No prediction for 4 devices: only one rank was read")
    assert f"cut short or damaged: {tmp_path}/0_1.pt.trace.json;" in cut.stderr


def test_too_few_cores_stand_above_the_number() -> None:
    """Of two cores, four processes of the example's run."""
    above, _ = printed(NOISY_RUN, "--devices", "4").split("Predicted steps")
    assert "Too optimistic for this host, which has 2 cores" in above


def layout_of(*arguments: object) -> str:
    return str(answer(*arguments)["layout"])


def test_the_layout_is_stated() -> None:
    """More devices than the base's node has are an assumption."""
    assumed = "Layout assumed: all {} devices on one node, with the links of the base's 2; for several nodes, give --per-node."
    assert layout_of(NOISY_RUN, "--devices", "4,8") == assumed.format(8)
    # of those that are predicted; the largest where none is
    assert layout_of(NOISY_RUN, "--devices", "4,32") == assumed.format(4)
    assert layout_of(NOISY_RUN, "--devices", "32") == assumed.format(32)
    # stated, or that of the base's one node
    assert answer(NOISY_RUN, "--devices", "8", "--per-node", "2")["layout"] is None
    assert answer(NOISY_RUN, "--comm-hook", "fp16")["layout"] is None
    assert assumed.format(4) in printed(NOISY_RUN, "--devices", "4")


def test_layouts_are_compared_as_they_are() -> None:
    """On as many devices and the same link, one node is the shortest layout."""
    link = ("--link", "100Gb/s")
    layouts = answer(NOISY_RUN, "--devices", "4", "--per-node", "4,3,2,1", *link)
    on_one_node, *over_several = (one["step_us"] for one in layouts["predictions"])
    assert all(step_us >= on_one_node for step_us in over_several)
    (as_measured,) = answer(NOISY_RUN, "--devices", "4")["predictions"]
    assert all(step_us >= as_measured["step_us"] for step_us in over_several)


@pytest.mark.parametrize("option", [("--overlap", "on"), ("--devices", "2"), ()])
def test_an_option_that_changes_nothing_is_answered_as_no_question_is(
    option: tuple[str, ...],
) -> None:
    """With the measured base and what to ask for."""
    text = printed(NOISY_RUN, *option)
    assert "35.5 ms a step" in text
    assert ("As measured: " + " ".join(option) + "." in text) is bool(option)
    assert text.endswith(
        "Nothing differs from what was measured: give another scenario, such as --devices 8."
    )
    assert whatif(NOISY_RUN, *option).exit_code == 0
