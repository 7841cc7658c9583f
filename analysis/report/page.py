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

    `terms` are the words of the glossary that it needs. A section that is not `open` is folded, with its title and question as
    the summary. Empty sections are omitted.
    """

    name: str
    title: str
    question: str
    figures: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()
    open: bool = False


SECTIONS = (
    Section(
        "timeline",
        "One step, rank by rank",
        "What ran when, what was hidden behind compute, and who waited?",
        terms=("step", "hidden", "exposed", "wait", "transfer"),
        open=True,
    ),
    Section(
        "waiting",
        "Who waits for whom",
        "Which rank makes the others wait, and how long?",
        ("waits", "wait_strip"),
        ("ranks",),
        ("wait", "straggler"),
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
        ("cell", "step", "repeat", "weak", "strong", "efficiency"),
    ),
    Section(
        "strategies",
        "Strategies compared",
        "Which part of the step differs, what does one option save, and how much memory does each take?",
        ("waterfall",),
        ("gap", "dp_phases", "costs", "memory"),
        ("exposed", "idle", "strategy"),
    ),
    Section(
        "breakdown",
        "Phases and traffic of a step",
        "How much time does each phase take, and what was moved?",
        ("phases",),
        ("breakdown", "contention", "phases", "traffic"),
        ("communication", "hidden", "exposed", "wait", "transfer", "idle"),
    ),
    Section(
        "device_use",
        "How much of a device is used",
        "How far is a step from what the device could compute, and where does the rest go?",
        ("device_use",),
        ("device_use", "device_points"),
        ("step", "exposed", "wait", "transfer", "idle"),
    ),
    Section(
        "estimates",
        "Every estimate and its error",
        "What does each subtraction give per step and per epoch, how far off is it, and why?",
        (),
        ("estimates", "identity", "reasons", "epoch"),
        ("exposed", "ring model"),
    ),
    Section(
        "bandwidth",
        "Bandwidth",
        "How fast do messages move, compared with a calibration, the ring's bound and other links?",
        ("busbw",),
        ("bandwidth", "utilisation", "projection"),
        ("transfer", "bus bandwidth", "calibration"),
    ),
    Section(
        "models",
        "Models with this run's numbers",
        "What should communication cost, and how far off is each model?",
        (),
        ("formulas", "predictions", "collectives", "nccl_choices", "nccl_job", "nccl_peers"),
        ("ring model", "calibration", "transfer"),
    ),
    Section(
        "what_if",
        "What if",
        "The step on more devices, the change that saves most, and the prediction's error on measured cells.",
        ("what_if",),
        ("what_if", "what_if_ledger", "what_if_savings", "what_if_own_error"),
        ("step", "exposed", "efficiency"),
    ),
    Section("checks", "Checks", "Can these numbers be trusted?", tables=("checks",)),
)


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
    """A table by its name: `meanings` has a sentence for each heading, `words` whether it is a column of words, aligned left."""

    name: str
    table: TextTable

    @property
    def meanings(self) -> tuple[str, ...]:
        return meanings(self.name, self.table)

    @property
    def words(self) -> tuple[bool, ...]:
        columns = [{row[index] for row in self.table.rows} - {NA, ""} for index in range(len(self.table.headings))]
        return tuple(
            any(len(one) > _LONG for one in column) or (bool(column) and all(one[0].isalpha() for one in column))
            for column in columns
        )


@dataclass(frozen=True)
class PageSection:
    """The content of a section."""

    section: Section
    figures: tuple[PageFigure, ...]
    tables: tuple[PageTable, ...]


@dataclass(frozen=True)
class Page:
    """All that the template needs.

    Without a `verdict`, of trainings alone, the page opens with the `headline`, else with the verdict and what it is based on:
    `first_tables` and `first_figures`.
    """

    name: str
    setting: str
    environment: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]
    sections: tuple[PageSection, ...]
    measures: Mapping[str, str]
    headline: str = ""
    verdict: Verdict | None = None
    first_tables: tuple[PageTable, ...] = ()
    first_figures: tuple[PageFigure, ...] = ()
    timelines: tuple[TimelineView, ...] = ()  # the first is shown
    definitions: tuple[tuple[str, str], ...] = ()
    data_file: str = "comparison.csv"  # with every number, in the page's folder


def page_figures(svg: Mapping[str, str]) -> dict[str, PageFigure]:
    """The figures of a page by name, from their SVG."""
    from dpscope.analysis.figures.draw import CAPTIONS, for_page

    return {name: PageFigure(name, for_page(name, text), CAPTIONS[name]) for name, text in svg.items()}


def page_sections(
    tables: Mapping[str, TextTable], figures: Mapping[str, PageFigure], timelines: Sequence[TimelineView] = ()
) -> Iterator[PageSection]:
    """The sections that have content."""
    for section in SECTIONS:
        drawn = tuple(figures[name] for name in section.figures if name in figures)
        kept = [name for name in section.tables if name in tables and has_values(tables[name])]
        if drawn or kept or (section.name == "timeline" and timelines):
            yield PageSection(section, drawn, tuple(PageTable(name, tables[name]) for name in kept))


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
    scripts = [_source("tables.js")] + ([_source("timeline.js")] if page.timelines else [])
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    return environment.get_template("page.html").render(
        page=page,
        style=Markup(_source("page.css")),
        colours=COLOURS,
        scripts=[Markup(script) for script in scripts],
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}",
        timelines=script_json([as_plain(view) for view in page.timelines]),
        sentence=sentence,
        counted=counted,
        na=NA,
        questions=QUESTIONS,
        glossary=GLOSSARY,
    )


def _source(name: str) -> str:
    return (resources.files("dpscope.analysis.report") / name).read_text(encoding="utf-8")


def script_json(value: object) -> Markup:
    """JSON in which no string can end the script element or open a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
