"""Every finding has a registered code: raised somewhere, described once, listed in
docs/findings.md.
"""

import ast
from collections.abc import Iterator

import msgspec

from docs._tools.pages import REGISTERED
from dpscope.profiling.records.finding import FindingCode
from dpscope.profiling.records.run_codes import RunCode
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
    assert set(CODES) - found == set(), (
        "make a finding of it with `.finding(...)`, or remove the code"
    )


def test_every_code_is_registered_once_and_described() -> None:
    of_dpscope = {
        codes for codes in FindingCode.__subclasses__() if codes.__module__.startswith("dpscope.")
    }
    assert set(REGISTERED) == of_dpscope, "list the enum in docs/_tools/pages.py"
    # An enum drops what equals an earlier member.
    assert all(len(codes.__members__) == len(codes) for codes in REGISTERED)
    assert len({code.code for code in CODES.values()}) == len(CODES)
    for name, code in CODES.items():
        assert code.value.severity != code.value.other_severity, name
        assert code.value.meaning.endswith("."), name
        assert code.value.meaning[0].isupper(), name
        assert len(code.value.action) > 10, name
        # what a script is advised differs, and names no option of `dpscope run`
        assert code.value.script_action != code.value.action, name
        assert " --" not in code.value.script_action, name


def test_findings_are_made_by_their_codes_alone() -> None:
    made = {
        str(path.relative_to(ROOT))
        for path in SOURCES
        for node in syntax_nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Finding"
    }
    assert made == {"profiling/records/finding.py"}, "declare a Code, and call its `.finding(...)`"


def test_the_next_step_in_a_script_is_the_declared_one() -> None:
    found = RunCode.NO_OVERLAP.finding("little is hidden")
    declared = RunCode.NO_OVERLAP.value
    assert found.advised(in_a_script=False).next_step == declared.action
    assert found.advised(in_a_script=True).next_step == declared.script_action
    own = RunCode.NO_OVERLAP.finding("little is hidden", "use --x", script_action="set x")
    assert own.advised(in_a_script=True).next_step == "set x"
    # advice of the finding's own is not replaced by the code's
    other = RunCode.NO_OVERLAP.finding("little is hidden", "look at the timeline")
    assert other.advised(in_a_script=True).next_step == "look at the timeline"
    # what is stored and shown has one next step
    assert "script_step" not in msgspec.to_builtins(found.advised(in_a_script=True))
    assert "about" not in msgspec.to_builtins(found)
