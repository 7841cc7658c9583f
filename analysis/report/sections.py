"""The sections of a report, in reading order, and the chapters that group them on the page."""

from dataclasses import dataclass

CHAPTERS = {
    "step": "Where time goes",
    "comparison": "Strategies and scaling",
    "theory": "Estimates and models",
    "basis": "What the numbers rest on",
}
"""Of the page, after answers and findings, each with sections."""


@dataclass(frozen=True)
class Section:
    """A part of the report; its tables (`views.VIEWS`) and figures (`figures.draw`) name it.

    In a chapter the page shows open sections first. A section that is not `open` is folded, with
    its title and question as the summary. Empty sections are omitted. What is `modelled` is printed
    of traces where models are asked for. `about` is the question (`facts.QUESTIONS`) whose answer
    links to it.
    """

    name: str
    chapter: str
    title: str
    question: str
    open: bool = False
    modelled: bool = False
    about: str = ""


SECTIONS = (
    Section(
        "timeline",
        "step",
        "One step, rank by rank",
        "What ran when, what was hidden behind compute, and who waited?",
        open=True,
    ),
    Section(
        "numbers",
        "step",
        "Steps, ranks and waits as tables",
        "Step times with their spread, pairs of ranks that wait for each other, speedups and fitted laws.",
    ),
    Section(
        "strategies",
        "comparison",
        "Strategies compared",
        "Which part of the step differs, what does one option save, and how much memory does each take?",
    ),
    Section(
        "breakdown",
        "step",
        "Phases and traffic of a step",
        "How much time does each phase take, and what was moved?",
        about="cost",
    ),
    Section(
        "device_use",
        "step",
        "How much of a device is used",
        "How far is a step from what the device could compute, and where does the rest go?",
        modelled=True,
    ),
    Section(
        "waiting",
        "step",
        "Who waits for whom",
        "Which rank makes the others wait, and how long?",
        about="late",
    ),
    Section(
        "scaling",
        "comparison",
        "Scaling",
        "What do more devices gain, and what do the fitted laws predict for twice as many?",
        open=True,
        about="which",
    ),
    Section(
        "estimates",
        "theory",
        "Every estimate and its error",
        "What does each subtraction give per step, how far off is it, and why?",
        about="shortcuts",
    ),
    Section(
        "models",
        "theory",
        "Models with this run's numbers",
        "What should communication cost, and how far off is each model?",
        modelled=True,
    ),
    Section(
        "bandwidth",
        "theory",
        "Bandwidth",
        "How fast do messages move, compared with a calibration, the ring's bound and the link?",
        modelled=True,
    ),
    Section(
        "what_if",
        "theory",
        "What if",
        "The step on more devices, and the prediction's error on measured cells.",
    ),
    Section(
        "learning",
        "comparison",
        "Accuracy and speed",
        "Did the faster strategies learn as well, and how long did each take to get there?",
        about="accuracy",
        open=True,
    ),
    Section("checks", "basis", "Checks", "Can these numbers be trusted?"),
)
