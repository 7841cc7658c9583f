"""The documentation: its commands parse, its links lead somewhere, its generated pages are
current.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import typer

from docs._tools.commands_docs import commands_page, parameters
from docs._tools.pages import PAGES as GENERATED
from dpscope.analysis.report.sections import SECTIONS
from dpscope.launch.contents import COMMANDS, app
from dpscope.launch.jobs.assignment import read_assignment
from dpscope.launch.planning.run_config import load_config
from dpscope.profiling.records.matrix import VARIANTS
from dpscope.profiling.records.strategies import Strategy
from tests.helpers.paths import ROOT

_FOLDERS = (
    "*.md",
    "docs/*.md",
    "benchmarks/*.md",
    "examples/*.md",
    "examples/*/*.md",
    "tests/*.md",
    "tests/gpu/*.md",
    "tests/virtual_gpu/*.md",
)
PAGES = sorted(path for pattern in _FOLDERS for path in ROOT.glob(pattern))
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
_REPOSITORY_FILE = re.compile(r"^(?:tests|examples|docs|launch|analysis|profiling|benchmarks)/")
COMMAND = typer.main.get_command(app)


def lines() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Page and words of the commands in fenced shell blocks, continued lines joined, without
    comments and generated pages.
    """
    for page in PAGES:
        if page.name == "commands.md":
            continue
        for language, text in _FENCE.findall(page.read_text()):
            if language in ("", "bash", "sh"):
                for line in text.replace("\\\n", " ").splitlines():
                    if words := shlex.split(line, comments=True):
                        yield page.name, tuple(word.removeprefix(".venv/bin/") for word in words)


LINES = list(lines())


def behind(*names: str) -> list[tuple[str, tuple[str, ...], list[str]]]:
    """The lines with one of these words: page, words, and the words behind it."""
    found = [
        (page, words, [index for index, word in enumerate(words) if word in names])
        for page, words in LINES
    ]
    return [(page, words, list(words[places[0] + 1 :])) for page, words, places in found if places]


def test_dpscope_commands_parse() -> None:
    assert {"README.md", "getting-started.md", "whole-job.md", "gpu-and-slurm.md"} <= {
        page.name for page in PAGES
    }
    found = [(page, rest) for page, _, rest in behind("dpscope") if rest]
    assert len(found) > 30
    for page, (name, *rest) in found:
        assert name in COMMAND.commands, f"{page}: dpscope {name}"  # type: ignore[attr-defined]
        COMMAND.commands[name].make_context(name, rest)  # type: ignore[attr-defined]


def test_worker_commands_parse() -> None:
    found = behind("dpscope.launch.worker")
    assert len(found) >= 2
    for _, words, rest in found:
        assignment = read_assignment(rest)
        assert "dpscope.launch.torchrun" in words
        if assignment.options is not None:
            load_config(None, dict(assignment.options))


def test_inline_commands_name_options_that_exist() -> None:
    spans = [
        (page.name, span)
        for page in PAGES
        for span in re.findall(r"`(dpscope [a-z]+[^`\n]*)`", page.read_text())
    ]
    assert len(spans) > 20
    for page, span in spans:
        _, name, *rest = shlex.split(span)
        assert name in COMMANDS, f"{page}: {span}"
        known = {
            one for parameter in parameters(name) for one in re.split(r", |/", parameter.written)
        }
        options = {word.partition("=")[0] for word in rest if word.startswith("-")}
        assert options <= known | {"--help", "--"}, f"{page}: {span}"


def test_make_targets_and_files_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = {words[1] for _, words in LINES if words[0] == "make"}
    assert made
    assert made <= targets
    named = {
        (page, word) for page, words in LINES for word in words if _REPOSITORY_FILE.match(word)
    }
    assert len(named) > 5
    assert [(page, word) for page, word in sorted(named) if not (ROOT / word).exists()] == []


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in _HEADING.findall(_FENCE.sub("", page.read_text()))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(_FENCE.sub("", page.read_text())):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(linked), f"{page.name}: {target}"


def test_python_blocks_compile() -> None:
    blocks = [
        (page.name, text)
        for page in PAGES
        for language, text in _FENCE.findall(page.read_text())
        if language == "python"
    ]
    assert {"variants.md", "own-traces.md", "python-api.md"} <= {page for page, _ in blocks}
    for page, text in blocks:
        compile(text, page, "exec")


def test_generated_pages_are_current_and_made_by_make_docs() -> None:
    for name, made in {"commands": commands_page, **GENERATED}.items():
        assert (ROOT / f"docs/{name}.md").read_text() == made(), "run: make docs"
    recipe = re.search(r"^docs:.*?\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    by = re.compile(r"(?:Made|Generated) by `python ((?:docs/_tools|examples/published)/\w+\.py)`")
    generated = {page.name: module[1] for page in PAGES if (module := by.search(page.read_text()))}
    assert set(generated) == {
        "columns.md",
        "commands.md",
        "findings.md",
        "glossary.md",
        "calibration.md",
        "results.md",
    }
    assert all(module in recipe[1] for module in generated.values())


def test_every_option_has_a_meaning_and_the_list_of_commands_cuts_nothing() -> None:
    assert [
        (name, one.written) for name in COMMANDS for one in parameters(name) if not one.meaning
    ] == []
    context = COMMAND.make_context("dpscope", [], resilient_parsing=True)
    assert "..." not in COMMAND.get_help(context).partition("Commands:")[2]


def test_versions_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        COMMAND.main(["--version"], prog_name="dpscope")
    assert ended.value.code == 0
    assert re.fullmatch(r"dpscope [\d.]+\S*, torch [\d.]+\S*\n", capsys.readouterr().out)


def test_every_section_of_the_report_is_explained() -> None:
    explained = set(_HEADING.findall((ROOT / "docs/reading-the-report.md").read_text()))
    assert {section.title for section in SECTIONS} <= explained, (
        "explain it under its title in docs/reading-the-report.md"
    )
    assert len(SECTIONS) > 5


def test_every_strategy_and_variant_is_explained() -> None:
    page = (ROOT / "docs/variants.md").read_text()
    options = {f"--{name.replace('_', '-')}" for name in VARIANTS}
    assert {name for name in {*get_args(Strategy), *options} if f"`{name}`" not in page} == set(), (
        "add a row to the table of docs/variants.md"
    )


def test_contributing_names_every_folder_and_files_that_exist() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    tops = ("profiling", "launch", "analysis")
    named = re.findall(r"^\| `((?:profiling|launch|analysis)[a-z_/]*)` \|", page, re.MULTILINE)
    folders = {
        str(path.parent.relative_to(ROOT)) for top in tops for path in (ROOT / top).rglob("*.py")
    }
    assert sorted(named) == sorted(folders), (
        "a row for each folder, in the table of CONTRIBUTING.md"
    )
    files = set(re.findall(r"`((?:profiling|launch|analysis|tests)/[a-z_/]+\.py)`", page))
    assert len(files) > 10
    assert [name for name in files if not (ROOT / name).exists()] == []
    stages = set(
        re.findall(
            r"`([a-z_]+/[a-z_/]+)`", "".join(line for line in page.splitlines() if " -> " in line)
        )
    )
    assert len(stages) > 30
    places = {stage: [ROOT / stage, *(ROOT / top / stage for top in tops)] for stage in stages}
    assert [
        stage
        for stage, found in places.items()
        if not any(one.is_dir() or one.with_suffix(".py").exists() for one in found)
    ] == []


def test_recipes_for_slurm_give_the_task_its_cores() -> None:
    """srun takes --cpus-per-task from sbatch no longer: what measures would have one core for all
    its processes.
    """
    texts = [
        *(page.read_text() for page in PAGES),
        *(path.read_text() for path in ROOT.glob("examples/cluster/*.sbatch")),
    ]
    joined = [
        line
        for text in texts
        for line in text.replace("\\\n", " ").splitlines()
        if line.startswith("srun ")
    ]
    measuring = [
        line
        for line in joined
        if re.search(r"\b(?:dpscope (?:run|train|attach|calibrate)|torchrun)\b", line)
    ]
    assert len(measuring) >= 4
    assert [line for line in measuring if "--cpus-per-task=" not in line] == []
