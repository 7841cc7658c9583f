"""The package's source files, each parsed once for all tests that look at them."""

import ast
from functools import cache
from pathlib import Path

from tests.helpers.paths import ROOT

TOPS = ("profiling", "launch", "analysis")
SOURCES = sorted(path for folder in TOPS for path in (ROOT / folder).rglob("*.py"))


@cache
def syntax_tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def syntax_nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(syntax_tree(path)))
