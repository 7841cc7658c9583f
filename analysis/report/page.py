"""report.html: one self-contained page that opens offline, with everything from traces and files escaped.

A content security policy with the hashes of the page's own scripts keeps anything else from running or being fetched.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

import jinja2
from markupsafe import Markup, escape

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.figures.colours import COLOURS
from dpscope.analysis.findings.answers import QUESTIONS, Verdict
from dpscope.analysis.report.glossary import GLOSSARY
from dpscope.analysis.report.meanings import meanings
from dpscope.analysis.report.sections import SECTIONS, Section
from dpscope.analysis.report.timeline import TimelineView, as_plain
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA, sentence
from dpscope.profiling.records.finding import Finding, counted

TEMPLATE = "page.html"
_LONG = 16  # letters; no number takes so many
_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*(?:[ =](?![-(])[\w./,:+-]*[\w/])?)")


@dataclass(frozen=True)
class PageFigure:
    """A figure of the page: inline SVG of our own making, its caption, and what it shows in words."""

    name: str
    svg: str
    caption: str


@dataclass(frozen=True)
class PageTable:
    """A table with a meaning for each of its headings."""

    name: str
    table: TextTable
    meanings: tuple[str, ...]

    @property
    def words(self) -> tuple[bool, ...]:
        """Which columns hold words: they are aligned to the left."""
        columns = ({row[index] for row in self.table.rows} - {NA, ""} for index in range(len(self.table.headings)))
        return tuple(
            any(len(value) > _LONG for value in column)
            or (bool(column) and all(value[0].isalpha() for value in column))
            for column in columns
        )


@dataclass(frozen=True)
class PageSection:
    """What is shown of a section."""

    section: Section
    figures: tuple[PageFigure, ...]
    tables: tuple[PageTable, ...]


@dataclass(frozen=True)
class PageAnswers:
    """What comes first: the verdict, the tables that it rests on, and FIRST_FIGURES."""

    verdict: Verdict
    tables: tuple[PageTable, ...]
    figures: tuple[PageFigure, ...]


@dataclass(frozen=True)
class Page:
    """All that the template needs."""

    name: str
    headline: str
    setting: str
    answers: PageAnswers | None  # None for trainings alone
    environment: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]
    sections: tuple[PageSection, ...]
    timelines: tuple[TimelineView, ...]  # the first is shown
    measures: tuple[tuple[str, str], ...]
    definitions: tuple[tuple[str, str], ...]
    data_file: str = "comparison.csv"  # beside the page, with every number


def page_sections(
    comparison: Comparison,
    tables: Mapping[str, TextTable],
    figures: Mapping[str, PageFigure],
    timelines: Sequence[TimelineView],
    sections: Sequence[Section] = SECTIONS,
) -> Iterator[PageSection]:
    """The sections that have something to show."""
    for section in sections:
        drawn = tuple(figures[name] for name in section.figures if name in figures)
        shown = tuple(
            PageTable(name, tables[name], meanings(name, tables[name], comparison))
            for name in section.tables
            if name in tables and has_values(tables[name])
        )
        if drawn or shown or (section.block == "timeline" and timelines):
            yield PageSection(section, drawn, shown)


def has_values(table: TextTable) -> bool:
    """Whether any cell but those of the first column holds a value."""
    return any(value not in (NA, "") for row in table.rows for value in row[1:]) or len(table.headings) == 1


def unbroken(text: str) -> Markup:
    """Text as HTML in which no option, such as --batch-size 8, breaks across lines."""
    return Markup(_OPTION.sub(r'<span class="option">\1</span>', str(escape(text))))


def render_page(page: Page) -> str:
    """The page as HTML text."""
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(_source),
    )
    environment.filters["unbroken"] = unbroken
    environment.globals["counted"] = counted
    scripts = [_source("tables.js")] + ([_source("timeline.js")] if page.timelines else [])
    return environment.get_template(TEMPLATE).render(
        page=page,
        style=Markup(_source("page.css")),
        colours=COLOURS,
        scripts=[Markup(script) for script in scripts],
        policy=_policy(scripts),
        timelines=script_json([as_plain(view) for view in page.timelines]),
        sentence=sentence,
        na=NA,
        questions=QUESTIONS,
        glossary=GLOSSARY,
    )


def _source(name: str) -> str:
    return (resources.files("dpscope.analysis.report") / name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str]) -> str:
    """Nothing is fetched from anywhere, and no script runs but these."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {hashes}"


def script_json(value: object) -> Markup:
    """JSON that no string in it can end the script element of, or open a comment in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
