"""Every finding has a registered code: raised somewhere, described once, listed in
docs/findings.md.
"""

import ast
from collections.abc import Iterator
from typing import get_args

import pytest

from docs._tools.pages import REGISTERED
from dpscope.profiling.records.finding import FindingCode, Trait
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.trace_codes import TraceCode
from tests.helpers.paths import ROOT
from tests.helpers.sources import SOURCES, syntax_nodes, syntax_tree

CODES = {f"{codes.__name__}.{code.name}": code for codes in REGISTERED for code in codes}


def raised(tree: ast.AST) -> Iterator[str]:
    """The codes a file names, such as ``RunCode.DRIFT``, but for those it only compares with or
    keeps in a set.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Compare | ast.Set):
            continue
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"
        yield from raised(node)


def test_every_code_is_raised_somewhere() -> None:
    found = {name for path in SOURCES for name in raised(syntax_tree(path))}
    assert len(CODES) > 100
    assert set(CODES) - found == set()


def test_every_code_is_registered_once_and_described() -> None:
    of_dpscope = {
        codes for codes in FindingCode.__subclasses__() if codes.__module__.startswith("dpscope.")
    }
    assert set(REGISTERED) == of_dpscope
    # An enum drops what equals an earlier member.
    assert all(len(codes.__members__) == len(codes) for codes in REGISTERED)
    assert len({code.code for code in CODES.values()}) == len(CODES)
    assert {trait for code in CODES.values() for trait in code.traits} <= set(get_args(Trait))
    assert "estimates" in RunCode.with_trait("in_tables") - RunCode.with_trait("of_many_cells")
    for name, code in CODES.items():
        assert code.severity in (None, "info", "warning", "error"), name
        assert code.meaning.endswith("."), name
        assert code.meaning[0].isupper() or code.meaning.startswith("dp-host"), name
        assert len(code.next_step) > 10, name


def test_findings_are_made_by_their_codes_alone() -> None:
    made = {
        str(path.relative_to(ROOT))
        for path in SOURCES
        for node in syntax_nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Finding"
    }
    assert made == {"profiling/records/finding.py"}


def test_a_code_knows_its_severity_and_next_step() -> None:
    found = TraceCode.NO_STEPS.finding("t.json marks no ProfilerStep")
    assert (found.severity, found.code, found.next_step) == (
        "warning",
        "no_steps",
        TraceCode.NO_STEPS.next_step,
    )
    assert type(found.code) is str  # as it is stored
    assert (
        RunCode.STRAGGLER.finding("rank 1 is late", "look at rank 1").next_step == "look at rank 1"
    )
    assert TraceCode.FUSED_RANKS.finding("2 ranks", severity="info").severity == "info"
    with pytest.raises(AssertionError, match="severity"):
        TraceCode.FUSED_RANKS.finding("2 ranks")
    with pytest.raises(AssertionError, match="severity"):
        TraceCode.NO_STEPS.finding("t.json", severity="error")
