"""Tables as LaTeX for a paper: rules of the package booktabs, formulas in mathematics, notes below
the table.

A document needs `\\usepackage{booktabs}` alone. Headings are broken into lines, so that wide tables
fit.
"""

import re
from collections.abc import Iterable, Sequence

from dpscope.analysis.text.units import NA
from dpscope.profiling.store.shown_text import one_line

_WIDEST_HEADING = 7  # characters of a line, except for longer words
# for more columns than this many, which are set closer, too
_SIZES = {8: "scriptsize", 5: "footnotesize"}
_SPECIAL = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "\\": "\\textbackslash{}"}
    | {
        "<": "$<$",
        ">": "$>$",
        "|": "$|$",
        "−": "$-$",
        "×": "$\\times$",
        "±": "$\\pm$",
        "·": "$\\cdot$",
        "→": "$\\rightarrow$",
    }
    | {
        "µ": "$\\mu$",
        "≤": "$\\leq$",
        "≥": "$\\geq$",
        "²": "$^2$",
        "–": "--",
        "—": "---",
        "…": "\\ldots{}",
    }
)
_TIMES = r"\d*[Tt]_[A-Za-z0-9](?:\([A-Za-z](?:/[A-Za-z])?\))?"  # such as T_1(G), t_N(b)
_FORMULA = re.compile(
    rf"(?<![\w$])(?:{_TIMES}(?:[-−+/×]{_TIMES})*(?:[-−+/×](?:[A-Z]|\d+)(?!\w))*|[bGN](?:=\d+|[-−]1)?|\d?\(N[-−]1\)(?:/N)?)(?!\w)"
)
_MISSING = "--"
_CODE = re.compile("`([^`]+)`")
_NUMBER = re.compile(r"[-−]\d[\d.]*")
_NUMERIC = re.compile(r"[-−+]?[\d.,]+(?:e[-+]?\d+)?%?(?: ± [\d.,]+)?")


def in_latex(text: str) -> str:
    r"""A text with LaTeX's characters escaped, and formulas and negative numbers in mathematics.

    >>> in_latex("estimate T_N-T_1(G)/N [s], 5% of a_b"), in_latex("-0.5")
    ('estimate $T_N-T_1(G)/N$ [s], 5\\% of a\\_b', '$-0.5$')

    What stands in backticks is typed.

    >>> in_latex("see `dpscope train`")
    'see \\texttt{dpscope train}'
    """
    plain = one_line(text)
    if _NUMBER.fullmatch(plain):
        return f"${plain.replace('−', '-')}$"
    parts, at = [], 0
    for formula in _FORMULA.finditer(plain):
        parts += [plain[at : formula.start()].translate(_SPECIAL), _mathematics(formula[0])]
        at = formula.end()
    escaped = "".join([*parts, plain[at:].translate(_SPECIAL)])
    escaped = _CODE.sub(r"\\texttt{\1}", escaped)
    # else an argument of the line break before it
    return "{[}" + escaped[1:] if escaped.startswith("[") else escaped


def _mathematics(formula: str) -> str:
    return "$" + formula.replace("−", "-").replace("×", " \\times ") + "$"


def latex_table(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], notes: Iterable[str] = ()
) -> str:
    """A floating table with caption and label; missing values are dashes, in notes too, columns of numbers are
    aligned on the right. What stands after a colon is no part of the label.
    """
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(headings)
    numeric = [
        all(cell == NA or _NUMERIC.fullmatch(one_line(cell)) for cell in column)
        for column in columns
    ]
    aligned = ["r" if one and index else "l" for index, one in enumerate(numeric)]
    heads = " & ".join(_heading(one, side) for one, side in zip(headings, aligned, strict=True))
    size = next((size for most, size in _SIZES.items() if len(headings) > most), None)
    label = _slug(title.partition(":")[0])
    below = []
    for note in notes:
        as_in_cells = note.replace(f"{NA} (", f"{_MISSING} (")
        below.append(in_latex(as_in_cells))
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        *([rf"  \{size}\setlength{{\tabcolsep}}{{2pt}}"] if size is not None else []),
        rf"  \caption{{{in_latex(title)}}}",
        rf"  \label{{tab:{label}}}",
        rf"  \begin{{tabular}}{{{''.join(aligned)}}}",
        r"    \toprule",
        rf"    {heads} \\",
        r"    \midrule",
        *map(_row, rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        *([r"  \par\smallskip", r"  \begin{minipage}{\linewidth}\footnotesize"] if below else []),
        *(f"    {note}\\par" for note in below),
        *([r"  \end{minipage}"] if below else []),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    shown = [_MISSING if cell == NA else in_latex(cell) for cell in cells]
    return rf"    {' & '.join(shown)} \\"


def _slug(title: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))


def _heading(text: str, side: str) -> str:
    """In lines of at most _WIDEST_HEADING characters where it has spaces."""
    lines = [""]
    for word in one_line(text).split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > _WIDEST_HEADING:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    shown = list(map(in_latex, lines))
    together = "\\\\".join(shown)
    return shown[0] if len(shown) == 1 else rf"\shortstack[{side}]{{{together}}}"
