"""The examples in docstrings of functions give what they show."""

import doctest
import importlib

import pytest

from tests.helpers.paths import ROOT

FOLDERS = ("profiling", "launch", "analysis")
MODULES = sorted(
    ".".join(("dpscope", *path.relative_to(ROOT).with_suffix("").parts))
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_give_what_they_show(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
