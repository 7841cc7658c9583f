"""The tests' own shape: shared things in helpers, modules mirrored, torchrun started in end_to_end alone."""

import ast
import re
from pathlib import Path

from tests.helpers.paths import ROOT

TESTS = ROOT / "tests"
FILES = sorted(TESTS.rglob("*.py"))
MODULES = [path for path in FILES if path.name.startswith("test_")]


def imported(path: Path) -> set[str]:
    """Every module that a file imports, and what it takes from one."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_no_test_module_imports_another() -> None:
    assert len(MODULES) > 100
    assert [str(path) for path in FILES if any(re.search(r"^tests\..*\btest_", name) for name in imported(path))] == []


def test_places_are_named_once() -> None:
    own = {TESTS / "helpers" / "paths.py", Path(__file__)}
    assert [str(path) for path in FILES if "Path(__file__)" in path.read_text() and path not in own] == []


def test_tests_lie_where_what_they_test_lies() -> None:
    others = ("end_to_end", "repository", "generated_traces", "gpu")
    folders = {path.parent.relative_to(TESTS) for path in MODULES}
    assert [str(folder) for folder in folders if not (ROOT / folder).is_dir() and str(folder) not in others] == []


def test_torchrun_is_started_in_end_to_end_alone() -> None:
    started = '"-m", "torch.distributed' + ".run"
    assert {path.parent.name for path in MODULES if started in path.read_text()} == {"end_to_end"}
