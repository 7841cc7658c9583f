"""Tables for a paper: what LaTeX must not misread, and what a typesetter expects."""

import re

import pytest

from dpscope.analysis.text.latex import in_latex, latex_table


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("speedup T_1(b)/T_N(b)", "speedup $T_1(b)/T_N(b)$"),
        ("estimate T_N-T_1(G)/N [s]", "estimate $T_N-T_1(G)/N$ [s]"),
        ("speedup T_1(G)/T_N(G/N)", "speedup $T_1(G)/T_N(G/N)$"),
        ("ring, by T_N-T_1/N [GB/s]", "ring, by $T_N-T_1/N$ [GB/s]"),
        ("b=128", "$b=128$"),
        ("N b = G, N-1, GB, 2 N", "$N$ $b$ = $G$, $N-1$, GB, 2 $N$"),
        ("-0.521", "$-0.521$"),
        ("a_b & 5% of #1", r"a\_b \& 5\% of \#1"),
        ("ddp-d2-b128", "ddp-d2-b128"),
        ("[s]", "{[}s]"),  # else the length of a line break before it
        ("12 µs ± 3 < 5", r"12 $\mu$s $\pm$ 3 $<$ 5"),
        ("x^2~y\\z", r"x\textasciicircum{}2\textasciitilde{}y\textbackslash{}z"),
    ],
)
def test_characters_and_formulas(text: str, expected: str) -> None:
    assert in_latex(text) == expected


WIDE = latex_table(
    "Compute of an epoch, 5% (traced)",
    ("strategy", "b", "epoch, traced [s]", "speedup T_1(b)/T_N(b)", "method"),
    (("single", "8", "1.50", "NA", "by eye"), ("[ddp]", "8", "-0.5", "1.8", "NA")),
    ("b: batch per device", "x < y"),
)


def test_a_table_has_rules_label_and_notes() -> None:
    lines = [line.strip() for line in WIDE.splitlines()]
    assert lines[:3] == [r"% needs \usepackage{booktabs}", r"\begin{table}", r"\centering"]
    assert r"\caption{Compute of an epoch, 5\% (traced)}" in lines
    assert r"\label{tab:compute-of-an-epoch-5-traced}" in lines
    assert r"\begin{tabular}{lrrrl}" in lines  # numbers on the right, words on the left
    assert [line for line in lines if "rule" in line] == [r"\toprule", r"\midrule", r"\bottomrule"]
    assert r"single & 8 & 1.50 & -- & by eye \\" in lines  # what is missing is a dash
    assert r"{[}ddp] & 8 & $-0.5$ & 1.8 & -- \\" in lines
    assert "$b$: batch per device\\par" in lines
    assert WIDE.count(r"\begin") == WIDE.count(r"\end") == 3
    assert not re.search(r"\\\\\s*\[", WIDE)
