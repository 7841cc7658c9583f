"""What the tool of the table of weights allows."""

import ast

import pytest

from tests.repository import weights


def test_weights_may_fall_and_never_rise() -> None:
    before = {"a.py": 5.2, "b.py": 4.8}
    assert weights.risen(before, {"a.py": 5.3, "b.py": 4.8, "c.py": 4.6}) == {
        "a.py": "5.2 -> 5.3",
        "c.py": "4.6, not in the table",
    }
    assert weights.stale(before, {"a.py": 5.15}, weights.SLACK) == {"b.py": "4.8 -> 0"}
    assert weights.stale(before, {"a.py": 5.0, "b.py": 4.8}, weights.SLACK) == {"a.py": "5.2 -> 5"}
    assert weights.rewritten(before, {"a.py": 5.0, "c.py": 4.9}) == {"a.py": 5.0, "c.py": 4.9}, (
        "b.py moved"
    )
    with pytest.raises(ValueError, match=r"risen: \{'a.py': '5.2 -> 5.3'\}"):
        weights.rewritten(before, {"a.py": 5.3})
    with pytest.raises(ValueError, match=r"2 entries would be 3, new: \['c.py'\]"):
        weights.rewritten(before, {**before, "c.py": 4.6})


def test_decisions_are_counted_with_those_of_functions_inside() -> None:
    code = """
class A:
    def f(self, values):
        def g(value):
            return 1 if value else 2
        return [g(value) for value in values if value and values or None]
def h():
    try:
        pass
    except ValueError:
        while True:
            pass
"""
    # f: the ternary, the comprehension, `and` and `or`; g: the ternary; h: the handler and the loop
    assert weights.decisions_of(ast.parse(code)) == {"A.f": 4, "A.f.g": 1, "h": 2}
