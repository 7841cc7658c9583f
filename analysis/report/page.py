"""report.html: a self-contained page that opens offline, with all text from
traces and files escaped.

A content security policy with the hashes of the page's scripts prevents anything else from running
or being fetched.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import chain
from typing import TYPE_CHECKING

import jinja2
from markupsafe import Markup, escape

from dpscope.analysis.figures.style import COLOURS
from dpscope.analysis.findings.facts import QUESTIONS, Verdict
from dpscope.analysis.report.sections import CHAPTERS, SECTIONS, Section
from dpscope.analysis.report.timeline import COLLECTIVES, TimelineView, as_plain, legend_of
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA, sentence
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.strategies import STRATEGIES
from dpscope.profiling.store.shown_text import cleaned

if TYPE_CHECKING:
    from dpscope.analysis.figures.draw import PageFigure

_MOST_FINDINGS = 5  # unfolded, unless there are more errors
_LONG = 16  # letters: longer than any number
_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*(?:[ =](?![-(])[\w./,:+-]*[\w/])?)")


@dataclass(frozen=True)
class Page:
    """All that the template needs: `tables` by section and name, and `figures` by name.

    The page opens with the `verdict`, `first_tables` and the figures of the answers.
    """

    name: str
    setting: str
    environment: Sequence[tuple[str, str]]
    findings: Sequence[Finding]
    tables: Mapping[str, Mapping[str, TextTable]]
    figures: "Mapping[str, PageFigure]"
    measures: Mapping[str, str]
    verdict: Verdict
    first_tables: Mapping[str, TextTable] = field(default_factory=dict)
    timelines: Sequence[TimelineView] = ()  # the first is shown
    definitions: Sequence[tuple[str, str]] = ()
    data_file: str = "comparison.csv"  # with every number, in the page's folder

    @property
    def chapters(self) -> dict[str, list[tuple[Section, list[str], dict[str, TextTable]]]]:
        """The sections that have content by chapter, with the names of their figures, and their
        tables; open ones first.
        """
        placed: dict[str, list[tuple[Section, list[str], dict[str, TextTable]]]] = {
            name: [] for name in CHAPTERS
        }
        for section in sorted(SECTIONS, key=lambda declared: not declared.open):
            figures = self.figures_of(section.name)
            own = self.tables.get(section.name, {})
            tables = {name: table for name, table in own.items() if has_values(table)}
            if figures or tables or (section.name == "timeline" and self.timelines):
                placed[section.chapter].append((section, figures, tables))
        return {name: found for name, found in placed.items() if found or name == "basis"}

    def sections_about(self, question: str) -> list[Section]:
        """The sections with content that an answer to one of QUESTIONS links to."""
        placed = chain.from_iterable(self.chapters.values())
        return [section for section, _, _ in placed if section.about == question]

    @property
    def first_findings(self) -> Sequence[Finding]:
        """Those that the page shows unfolded: errors, and as many warnings as it has room for."""
        errors = [finding for finding in self.findings if finding.severity == "error"]
        warnings = [finding for finding in self.findings if finding.severity == "warning"]
        return [*errors, *warnings[: max(_MOST_FINDINGS - len(errors), 0)]]

    def figures_of(self, section: str) -> list[str]:
        """The names of a section's figures, or of those that stand with the `answers`."""
        return [name for name, figure in self.figures.items() if figure.section == section]


def has_values(table: TextTable) -> bool:
    """Whether any column but the first has a value."""
    return (
        any(value not in (NA, "") for row in table.rows for value in row[1:])
        or len(table.headings) == 1
    )


def word_columns(table: TextTable) -> list[bool]:
    """For each column, whether it holds words rather than numbers, and so is aligned left."""
    columns = [
        {row[index] for row in table.rows} - {NA, ""} for index in range(len(table.headings))
    ]
    return [
        any(len(cell) > _LONG for cell in column)
        or (bool(column) and all(cell[0].isalpha() for cell in column))
        for column in columns
    ]


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
        finalize=_shown,
        loader=jinja2.FunctionLoader(_source),
    )
    environment.filters["unbroken"] = unbroken
    scripts = [_source("tables.js")] + ([_source("timeline.js")] if page.timelines else [])
    hashes = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    ]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return environment.get_template("page.html").render(
        page=page,
        style=Markup(_source("page.css")),
        colours=COLOURS,
        scripts=[Markup(script) for script in scripts],
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}",
        timelines=script_json([as_plain(view) for view in page.timelines]),
        legend_of=legend_of,
        collective_bars=COLLECTIVES,
        sentence=sentence,
        counted=counted,
        na=NA,
        questions=QUESTIONS,
        glossary=GLOSSARY,
        chapter_titles=CHAPTERS,
        word_columns=word_columns,
    )


def _shown(value: object) -> object:
    """What the page shows of a value: of a text without what controls the direction of writing,
    marked as HTML or not.
    """
    return type(value)(cleaned(value)) if isinstance(value, str) else value


def _source(name: str) -> str:
    return (resources.files("dpscope.analysis.report") / name).read_text(encoding="utf-8")


def script_json(value: object) -> Markup:
    """JSON in which no string can end the script element or open a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


LEARNING_MEASURES: dict[str, str] = {
    "Accuracy and loss": "After every epoch on the whole test set, each sample once, shared over the processes and summed "
    "exactly. The accuracy of a training is that of its last epoch, not its best, which would be chosen on the test data. "
    "Medians and ranges are over seeds; trainings without all their epochs are left out.",
    "Difference of accuracy": "Significant if the medians differ by more than either cell's range over seeds. For equal cells "
    "this happens by chance in 6% of pairs with 3 seeds, 1.2% with 4, 0.4% with 5 (normal errors, simulated). Fewer than 3 "
    "seeds show no spread, so nothing is judged.",
    "Training time": "Wall time of an epoch's steps, including loading but not evaluation. Time to an accuracy is the sum up "
    "to and including the first epoch that reached it, and is unknown unless every seed did. Speedup is the ratio of median "
    "epochs with a 95% interval from the spread between seeds; it is not the speedup of steps measured by `dpscope run`.",
}


MEASURES: dict[str, str] = {
    "Step time and throughput": "From an untraced pass: device events on GPUs, the wall clock on CPUs; the throughput from "
    "one block of steps between two synchronisations. Medians over all repeats; every 95% interval is based on the "
    "differences between the cell's repeats and, if those are few, also between those of other cells. With fewer than five "
    "steps, or one repeat of every cell, no interval is given and nothing is compared.",
    "Compute, communication, exposed, hidden, idle": "From torch.profiler's traces of other steps. K is the union of compute "
    "kernels, C that of communication kernels and copies between devices, per device and step window. Communication is |C|, "
    "hidden |C ∩ K|, exposed |C \\ K|, compute |K|, idle the rest. Step = compute + exposed + idle. On a CPU, K are the "
    "operators of all threads and C gloo's ranges, which share the cores, so hidden there means concurrent.",
    "Transfer and wait": "A collective is matched across ranks by its sequence number or order. Transfer is the shortest of "
    "its durations, because the last rank to arrive does not wait; wait is a rank's duration minus transfer. Broadcasts and "
    "reduces have neither, because they do not make all ranks wait for each other.",
    "algbw and busbw": "Bytes over transfer, and that times 2(N−1)/N for an all-reduce, (N−1)/N for all-gather, "
    "reduce-scatter and all-to-all, 1 for the others: nccl-tests' definitions. GB/s is 1e9 bytes per second.",
    "DataParallel's phases": "A device event belongs to the phase in which it was launched. The parts of the waterfall are "
    "each phase's exposed communication, excluding what an earlier phase covers, so that they add up.",
    "Subtraction estimates": "Of steps t_N(b) − t_1(b), t_N(b) − t_1(G)/N and t_N(b) − t_1(G), of epochs T_N − T_1(b)/N and "
    "its like, with b the batch per device and G = N b the global batch. They include changes of compute and idle time, miss "
    "what overlap hides, and can be negative. They are shown for comparison, not as results.",
    "Predictions": "From a calibration of this machine if there is one (alpha + S/B per collective, fitted), else from the "
    "ring formula without latency at the link's specification, a lower bound. They use the run's message sizes and, for exposed "
    "communication, the times at which its buckets were ready.",
    "The timeline": "The middle one of the whole traced steps of the first repeat. Ranks of one host share its clock; the "
    "clocks of other hosts are aligned on the ends of collectives, which all ranks finish together; the remaining difference "
    "is stated.",
    "NA": "Not measured or not applicable, never 0. The reason is below the table and in comparison.csv.",
}


# The terms of the report, shown on the page and in docs/glossary.md.
GLOSSARY: Mapping[str, str] = {
    "cell": "One measured combination of strategy, devices, batch per device and, if any, a variant. "
    "ddp-d4-b128 is DistributedDataParallel on 4 devices with 128 samples on each. dp-host is the stand-in for "
    "nn.DataParallel on a CPU.",
    "strategy": " ".join(strategy.meaning for strategy in STRATEGIES.values() if strategy.meaning)
    + " ddp-d1 is DDP on one device: the cost of DDP before anything is communicated.",
    "step": "One batch on every device: load, forward, backward, optimizer. The step time is the median over untraced "
    "steps. Traced steps are measured separately; they are slower because of the tracer, and show where the time goes.",
    "repeat": "One of several measurements of a cell, each in new processes. Intervals are based on the differences between "
    "repeats: one repeat gives a number, but no interval.",
    "communication": "The time in which a device takes part in collectives or copies between devices: hidden plus exposed.",
    "hidden": "Communication while the device computes. It costs only what it slows that compute down by.",
    "exposed": "Communication while the device does not compute, which lengthens the step. It is the most that better "
    "communication can save, and consists of wait, transfer and other.",
    "wait": "The part of a collective in which a rank waits for a later rank. A faster link does not shorten it; find out"
    " why that rank is late.",
    "transfer": "The part of a collective in which data move: its duration on the rank that arrives last and so does not wait, "
    "an upper bound of the pure transfer. Broadcast and reduce do not make all ranks wait for each other, so they have "
    "neither wait nor transfer.",
    "straggler": "A rank that the others wait for in most steps.",
    "idle": "Time in which a device neither computes nor communicates: the host is too slow to launch work, or the loader"
    " to deliver batches.",
    "bus bandwidth": "Bytes over transfer time, times 2(N−1)/N for an all-reduce on N ranks (other collectives: other factors)."
    " It can be compared with a link's specification for any N; nccl-tests prints it as busbw.",
    "ring formula": "The time that a ring all-reduce of all gradients needs at a given bandwidth: 2(N−1)/N × bytes / bandwidth. "
    "The bandwidth is the link's specification if the link is known, else the fastest rank's bus bandwidth by the "
    "calibration's fit at its largest size.",
    "calibration": "Collectives timed alone, by size, before the cells. Predictions of a run's communication are based on it.",
    "weak": "Weak scaling: the batch per device stays the same, so the global batch grows with the devices. Weak "
    "efficiency is t_1(b)/t_N(b): 100% means that N devices finish N times the samples in the same time.",
    "strong": "Strong scaling: the global batch stays the same and is divided over the devices. Strong speedup is "
    "t_1(G)/t_N(G/N).",
    "efficiency": "Speedup divided by the number of devices.",
    "NA": "Not measured, or not applicable; never 0. The reason is given below the table.",
}
