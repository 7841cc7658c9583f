"""report.html: its sections, and a self-contained page that opens offline, with all text from traces and files escaped.

A content security policy with the hashes of the page's scripts prevents anything else from running or being fetched.
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
from dpscope.analysis.figures.style import COLOURS
from dpscope.analysis.findings.answers import QUESTIONS, Verdict
from dpscope.analysis.report.meanings import GLOSSARY, meanings
from dpscope.analysis.report.timeline import TimelineView, as_plain
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA, sentence
from dpscope.analysis.training.tables import TRAINING_TABLES
from dpscope.profiling.records.finding import Finding, counted

FIRST_FIGURES = ("communication", "step_split")
"""Shown with the answers, in this order, rather than in a section."""


@dataclass(frozen=True)
class Section:
    """`figures` and `tables` are names in `figures.draw_all` and `report_tables`; those that a run lacks are omitted.

    `block` is a part of the template shown before them; `terms` are the words of the glossary that it needs. A section that
    is not `open` is folded, with its title and question as the summary. Empty sections are omitted.
    """

    name: str
    title: str
    question: str
    figures: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    block: str = ""
    terms: tuple[str, ...] = ()
    open: bool = False


SECTIONS = (
    Section(
        "timeline",
        "One step, rank by rank",
        "What ran when, what was hidden behind compute, and who waited?",
        block="timeline",
        terms=("step", "hidden", "exposed", "wait", "transfer"),
        open=True,
    ),
    Section(
        "waiting",
        "Who waits for whom",
        "Which rank makes the others wait, and how long?",
        ("waits", "wait_strip"),
        ("ranks",),
        terms=("wait", "straggler"),
        open=True,
    ),
    Section(
        "scaling",
        "Scaling",
        "What do more devices gain, and what do the fitted laws predict for twice as many?",
        ("scaling",),
        terms=("weak", "strong", "efficiency"),
        open=True,
    ),
    Section(
        "learning",
        "Accuracy and speed",
        "Did the faster strategies learn as well, and how long did each take to get there?",
        ("study", "training_accuracy", "training_loss"),
        ("learning", *TRAINING_TABLES),
        open=True,
    ),
    Section(
        "numbers",
        "Steps, ranks and waits as tables",
        "Step times with their spread, pairs of ranks that wait for each other, speedups and fitted laws.",
        ("batch",),
        ("time", "waits", "scaling", "laws"),
        terms=("cell", "step", "repeat", "weak", "strong", "efficiency"),
    ),
    Section(
        "strategies",
        "Strategies compared",
        "Which part of the step differs, what does one option save, and how much memory does each take?",
        ("waterfall",),
        ("gap", "dp_phases", "costs", "memory"),
        terms=("exposed", "idle", "strategy"),
    ),
    Section(
        "breakdown",
        "Phases and traffic of a step",
        "How much time does each phase take, and what was moved?",
        ("phases",),
        ("breakdown", "contention", "phases", "traffic"),
        terms=("communication", "hidden", "exposed", "wait", "transfer", "idle"),
    ),
    Section(
        "device_use",
        "How much of a device is used",
        "How far is a step from what the device could compute, and where does the rest go?",
        ("device_use",),
        ("device_use", "device_points"),
        terms=("step", "exposed", "wait", "transfer", "idle"),
    ),
    Section(
        "estimates",
        "Every estimate and its error",
        "What does each subtraction give per step and per epoch, how far off is it, and why?",
        (),
        ("estimates", "identity", "reasons", "epoch"),
        terms=("exposed", "ring model"),
    ),
    Section(
        "bandwidth",
        "Bandwidth",
        "How fast do messages move, compared with a calibration, the ring's bound and other links?",
        ("busbw",),
        ("bandwidth", "utilisation", "projection"),
        terms=("transfer", "bus bandwidth", "calibration"),
    ),
    Section(
        "models",
        "Models with this run's numbers",
        "What should communication cost, and how far off is each model?",
        (),
        ("formulas", "predictions", "collectives", "nccl_choices", "nccl_job", "nccl_peers"),
        terms=("ring model", "calibration", "transfer"),
    ),
    Section(
        "what_if",
        "What if",
        "The step on more devices, the change that saves most, and the prediction's error on measured cells.",
        ("what_if",),
        ("what_if", "what_if_ledger", "what_if_savings", "what_if_own_error"),
        terms=("step", "exposed", "efficiency"),
    ),
    Section("checks", "Checks", "Can these numbers be trusted?", tables=("checks",)),
)


TEMPLATE = "page.html"
_LONG = 16  # letters: longer than any number
_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*(?:[ =](?![-(])[\w./,:+-]*[\w/])?)")


@dataclass(frozen=True)
class PageFigure:
    """A figure of the page: inline SVG that dpscope drew, and its caption."""

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
        """Whether each column holds words, which are aligned to the left."""
        columns = ({row[index] for row in self.table.rows} - {NA, ""} for index in range(len(self.table.headings)))
        return tuple(
            any(len(value) > _LONG for value in column)
            or (bool(column) and all(value[0].isalpha() for value in column))
            for column in columns
        )


@dataclass(frozen=True)
class PageSection:
    """The content of a section."""

    section: Section
    figures: tuple[PageFigure, ...]
    tables: tuple[PageTable, ...]


@dataclass(frozen=True)
class PageAnswers:
    """The first part of the page: the verdict, the tables that it is based on, and FIRST_FIGURES."""

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
    measures: Mapping[str, str]
    definitions: tuple[tuple[str, str], ...]
    data_file: str = "comparison.csv"  # with every number, in the page's folder


def page_sections(
    comparison: Comparison,
    tables: Mapping[str, TextTable],
    figures: Mapping[str, PageFigure],
    timelines: Sequence[TimelineView],
    sections: Sequence[Section] = SECTIONS,
) -> Iterator[PageSection]:
    """The sections that have content."""
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
    """Whether any column but the first has a value."""
    return any(value not in (NA, "") for row in table.rows for value in row[1:]) or len(table.headings) == 1


def unbroken(text: str) -> Markup:
    """Escape text as HTML in which options, such as --batch-size 8, do not break across lines."""
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
    """A content security policy that allows only these scripts and no requests."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {hashes}"


def script_json(value: object) -> Markup:
    """JSON in which no string can end the script element or open a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
