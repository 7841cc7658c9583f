"""Tables for a paper: what LaTeX must not misread, and what a typesetter expects."""

import re
import shutil
import subprocess
from pathlib import Path

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
    assert lines[:2] == [r"\begin{table}", r"\centering"]
    assert r"\caption{Compute of an epoch, 5\% (traced)}" in lines
    assert r"\label{tab:compute-of-an-epoch-5-traced}" in lines
    assert r"\begin{tabular}{lrrrl}" in lines  # numbers on the right, words on the left
    assert [line for line in lines if "rule" in line] == [r"\toprule", r"\midrule", r"\bottomrule"]
    assert r"single & 8 & 1.50 & -- & by eye \\" in lines  # what is missing is a dash
    assert r"{[}ddp] & 8 & $-0.5$ & 1.8 & -- \\" in lines
    assert "b: batch per device.\\par" in lines
    assert WIDE.count(r"\begin") == WIDE.count(r"\end") == 3
    assert not re.search(r"\\\\\s*\[", WIDE)


@pytest.mark.process
@pytest.mark.skipif(
    shutil.which("pdflatex") is None,
    reason="needs pdflatex (apt-get install texlive-latex-recommended)",
)
def test_latex_compiles_it(tmp_path: Path) -> None:
    document = (
        rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{WIDE}\end{{document}}"
    )
    (tmp_path / "table.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert "Overfull" not in ended.stdout


def test_notes_name_missing_values_as_the_cells_and_code_as_code() -> None:
    text = latex_table("T", ("cell",), (("NA",),), ("NA (accuracy): run `dpscope train` here",))
    assert r"-- (accuracy): run \texttt{dpscope train} here." in text
    assert "NA" not in text
