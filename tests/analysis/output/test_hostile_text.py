"""A received run folder with hostile text in every string: nothing that is shown controls a
terminal or fakes a line.
"""

import gzip
import json
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

from dpscope.launch.cli import main
from dpscope.launch.contents import app
from dpscope.profiling.mirrors.tensorboard_mirror import EventLog
from dpscope.profiling.records.run import CellResult, Manifest, RankResult
from dpscope.profiling.store.files import decodes
from tests.helpers.paths import EXAMPLE_RUN

HOSTILE = (
    "\x1b]0;title\x07\x9b31m\u202e|\r\n# FAKE\n<img src=x onerror=alert(1)>[x](http://x)\u2028"
)
_BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
_KINDS = {"manifest.json": Manifest, "result.json": CellResult, "rank": RankResult}
_FORMATS = ("table", "json", "csv", "markdown", "latex")
_OF_THE_TRACER = {
    "ph",
    "cat",
    "Collective name",
    "dtype",
    "Process Group Name",
    "Process Group Ranks",
    "cbid",
}


def controls(text: str) -> set[str]:
    """Characters by the Unicode database, apart from those that end lines and cells."""
    return {
        one
        for one in set(text) - set("\n\t")
        if unicodedata.category(one) in ("Cc", "Zl", "Zp")
        or unicodedata.bidirectional(one) in _BIDI
    }


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """The container and the key of every string in plain data."""
    pairs = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, one in list(pairs):
        if isinstance(one, str):
            yield value, key
        else:
            yield from places(one)


def make_hostile(path: Path, kind: type[object]) -> int:
    """Add HOSTILE to every string of a stored file with which it is still read; returns to how
    many.
    """
    content, changed = json.loads(path.read_text()), 0
    if path.name == "manifest.json":
        content["environment"]["settings"] = {f"NCCL{HOSTILE}": "1"}
        content["findings"] = [
            {"severity": "warning", "code": "noisy", "message": "It is noisy", "next_step": "wait"}
        ]
    for container, key in places(content):
        kept = container[key]
        container[key] = kept + HOSTILE
        path.write_text(json.dumps(content))
        readable = kept and key != "created_at" and decodes(path, kind)
        container[key] = container[key] if readable else kept
        changed += bool(readable)
    path.write_text(json.dumps(content))
    return changed


def hostile_trace(path: Path) -> None:
    content = json.loads(gzip.decompress(path.read_bytes()))
    content["host_name"] = "node"
    for container, key in places(content):
        marks = str(container[key]).startswith(("ProfilerStep#", "gloo:", "c10d::", "record_param"))
        if key not in _OF_THE_TRACER and not marks:
            container[key] += HOSTILE
    path.write_bytes(gzip.compress(json.dumps(content).encode()))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("received") / "run"
    shutil.copytree(EXAMPLE_RUN, folder, ignore=shutil.ignore_patterns("repeat1"))
    for path in folder.rglob("*.json"):
        if (kind := _KINDS.get(path.name.partition("_")[0])) is not None:
            changed = make_hostile(path, kind)
            assert changed >= (15 if kind is Manifest else 1 if kind is RankResult else 0), path
    for path in folder.rglob("*.pt.trace.json.gz"):
        hostile_trace(path)
    for path in folder.rglob("log.txt"):
        path.write_text(HOSTILE)
    return folder


def shown(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output


def check(text: str, where: str) -> None:
    assert text
    assert controls(text) == set(), where
    assert "# FAKE" not in {line.strip(" |-") for line in text.splitlines()}, where


@pytest.mark.long
@pytest.mark.parametrize("table_format", _FORMATS)
def test_what_is_printed_controls_no_terminal(run: Path, table_format: str) -> None:
    options = () if table_format == "table" else ("--format", table_format)
    (traces,) = run.glob("cells/ddp-*/repeat0/traces")
    for arguments in ((run, *options), (run, "--tables", *options), (traces, *options)):
        if "--tables" not in arguments or table_format != "json":
            check(shown("analyze", *arguments), str(arguments))


@pytest.mark.long
def test_the_report_and_all_of_its_text(run: Path) -> None:
    check(shown("analyze", run, "--verbose"), "verbose")
    page = (run / "report" / "report.html").read_text()
    assert controls(page) == set()
    assert "title" in page
    assert "<img" not in page
    assert not re.search(r"\\u(00[01][0-9a-f]|009b|202e)", page)  # nor in what its script shows
    markdown = (run / "report" / "comparison.md").read_text()
    check(markdown, "markdown")
    assert "title" in markdown
    assert "<img" not in markdown
    assert "[x](" not in markdown
    check(shown("compare", run, EXAMPLE_RUN, "--force"), "compare")
    check(shown("compare", EXAMPLE_RUN, run, "--format", "github", "--force"), "github")


def test_tensorboards_text_and_hyperparameters(tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        log.text("comparison", f"model {HOSTILE}")
        log.session({"model": HOSTILE}, {}, {})
    tensors = EventAccumulator(str(tmp_path)).Reload().Tensors("comparison/text_summary")
    text = tensors[0].tensor_proto.string_val[0].decode()
    assert text.startswith("model ")
    assert controls(text) == set()
    (events,) = tmp_path.iterdir()
    assert HOSTILE[:12].encode() not in events.read_bytes()


def test_a_mistake_in_a_file_is_one_clean_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(EXAMPLE_RUN, tmp_path / "run")
    manifest = tmp_path / "run" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["config"][f"strategies{HOSTILE}"] = HOSTILE
    manifest.write_text(json.dumps(content))
    monkeypatch.setattr(sys, "argv", ["dpscope", "analyze", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "title" in line
    check(line, "mistake")
