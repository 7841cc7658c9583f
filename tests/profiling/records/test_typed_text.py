"""Sizes and words as users type them, in every option that takes one."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpscope.analysis.text.units import show_bytes
from dpscope.launch.commands.options import read_limits
from dpscope.launch.contents import app
from dpscope.launch.planning.run_config import load_config
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.typed_text import (
    MIB,
    choose_from,
    nearest,
    parse_part,
    parse_share,
    parse_size,
)
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import EXAMPLE_RUN

SIZES = {
    "4096": 4096, "4MB": 4_000_000, "4 MB": 4_000_000, "4 MiB": 4_194_304, "4M": 4_194_304, "8k": 8192,
    "44.7 MB": 44_700_000, "1e3": 1000, "512 B": 512, "1.5GiB": 1_610_612_736,
}  # fmt: skip


def test_a_size_has_the_unit_that_it_names_and_a_bare_number_that_of_its_option() -> None:
    assert {text: parse_size(text) for text in SIZES} == SIZES
    assert [parse_size(text, MIB) for text in ("25", "25 B", "25MB")] == [
        26_214_400,
        25,
        25_000_000,
    ]
    printed = (4096, 44_700_000, 3_200_000_000, 7)
    assert [parse_size(show_bytes(size)) for size in printed] == pytest.approx(printed, rel=0.01)


@pytest.mark.parametrize("text", ["", "0", "-1", "4XB", "MB", "4 4", "nan", "1e999", "4Mb/s"])
def test_other_text_than_a_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="give a size above 0, such as 4096, 4MB"):
        parse_size(text)


def test_a_share_is_a_percentage_or_a_number_up_to_one() -> None:
    shares = {"5%": 0.05, "0.05": 0.05, "0": 0.0, "1": 1.0, "0.5%": 0.005, "700%": 7.0}
    assert {text: parse_share(text) for text in shares} == pytest.approx(shares)
    for text in ("much", "nan", "inf", "%", ""):
        with pytest.raises(ValueError, match=r"is not a share: write it as 5% or 0\.05"):
            parse_share(text)
    with pytest.raises(ValueError, match="90 is not a share: write it as 90%"):
        parse_share("90")
    with pytest.raises(ValueError, match="-5%: give a share of 0% or more"):
        parse_share("-5%")
    with pytest.raises(ValueError, match="80 is not a share: write it as 80%"):
        parse_part("80")
    assert parse_part("100%") == 1.0
    for text in ("0", "0%", "101%", "180", "-5%"):
        with pytest.raises(ValueError, match="above 0% and at most 100%"):
            parse_part(text)


@pytest.mark.parametrize(
    "command",
    [
        "compare tests examples --fail-over 90",
        "analyze RUN --target-efficiency 90",
        "train --target-accuracy 90",
        "run --detect 90",
        "run --target-efficiency 90",
    ],
)
def test_every_option_reads_a_share_alike(command: str) -> None:
    refused = CliRunner().invoke(app, command.replace("RUN", str(EXAMPLE_RUN)).split())
    assert "90 is not a share: write it as 90%" in str(refused.exception)


def test_plurals_agree_with_numbers() -> None:
    counts = (
        (1, "process"),
        (8, "process"),
        (1, "epoch"),
        (2, "epoch"),
        (0, "step"),
        (2, "batch"),
        (2, "copy"),
    )
    texts = "1 process, 8 processes, 1 epoch, 2 epochs, 0 steps, 2 batches, 2 copies"
    assert ", ".join(counted(*one) for one in counts) == texts
    assert counted(1200, "backward pass") == "1,200 backward passes"


def test_a_near_word_is_proposed_and_a_far_one_is_not() -> None:
    assert nearest("DPP", ("single", "ddp")) == ["ddp"]
    assert choose_from("ddb", ("single", "ddp")) == "did you mean ddp? Choose from single, ddp"
    assert choose_from("x", ("single", "ddp")) == "choose from single, ddp"


def test_a_bucket_cap_is_read_with_its_unit_from_a_flag_and_from_a_file(tmp_path: Path) -> None:
    assert load_config(None, {"bucket_mb": "4MB,default,25"}).matrix.bucket_mb == (
        "default",
        3.8147,
        25.0,
    )
    (tmp_path / "run.toml").write_text('bucket_mb = ["8MiB", 25]\n')
    assert load_config(tmp_path / "run.toml", {}).matrix.bucket_mb == (8.0, 25.0)


def test_the_limit_of_a_trace_is_a_size() -> None:
    assert read_limits("4GB", None).max_bytes == 4_000_000_000
    with pytest.raises(DpscopeError, match="--max-bytes 4 parsecs: give a size above 0"):
        read_limits("4 parsecs", None)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["run", "--dry-run", "--strategy", "single,ddb"],
            "single,ddb: unknown; did you mean ddp? Choose from",
        ),
        (
            ["calibrate", "--device", "cpu", "--collectives", "all_redcue"],
            "did you mean all_reduce?",
        ),
        (["analyze", str(EXAMPLE_RUN), "--figures", "sgv"], "did you mean svg?"),
        (
            ["analyze", str(EXAMPLE_RUN), "--format", "jsno"],
            "--format jsno: did you mean json? Choose from table, json",
        ),
    ],
)
def test_the_nearest_choice_is_proposed_for_a_mistyped_one(
    arguments: list[str], expected: str
) -> None:
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code != 0
    text = " ".join(re.sub("[│╭╮╰╯─]", " ", f"{ended.output} {ended.exception}").split())
    assert expected in text
