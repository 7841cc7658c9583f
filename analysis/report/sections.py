"""The page's table of contents: which question each section answers, with which figures and tables."""

from dataclasses import dataclass

from dpscope.analysis.training.tables import TRAINING_TABLES


@dataclass(frozen=True)
class Section:
    """`figures` and `tables` are names of `figures.draw_all` and `report_tables`; what a run lacks is left out.

    `block` names a part of the template that is drawn before them, `terms` the words of the glossary that it needs. A
    section without anything is not shown.
    """

    name: str
    title: str
    question: str
    figures: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    block: str = ""
    terms: tuple[str, ...] = ()


SECTIONS = (
    Section(
        "time",
        "Time and throughput",
        "How long is a step, how many samples pass per second, and how does that change with the batch?",
        ("batch",),
        ("time",),
        terms=("cell", "step", "repeat", "weak", "strong", "efficiency"),
    ),
    Section(
        "strategies",
        "Strategies compared",
        "Which one is faster, in which part of the step is the difference, and how much memory does each take?",
        ("waterfall",),
        ("gap", "dp_phases", "costs", "memory"),
        terms=("exposed", "idle", "strategy"),
    ),
    Section(
        "breakdown",
        "Where a step goes",
        "How much of a step computes, communicates without computing, or does neither?",
        ("step_split", "phases"),
        ("breakdown", "phases", "traffic"),
        terms=("communication", "hidden", "exposed", "wait", "transfer", "idle"),
    ),
    Section(
        "timeline",
        "One step, rank by rank",
        "What ran when, what was hidden behind compute, and who waited?",
        block="timeline",
        terms=("step", "hidden", "exposed", "wait", "transfer"),
    ),
    Section(
        "waiting",
        "Waiting",
        "Who made whom wait, and how long?",
        ("waits", "wait_strip"),
        ("waits",),
        terms=("wait", "straggler"),
    ),
    Section(
        "estimates",
        "Measured against estimated communication",
        "What would the usual subtractions have said, how far off are they, and why?",
        ("communication",),
        ("estimates", "identity", "reasons", "epoch"),
        terms=("exposed", "ring model"),
    ),
    Section(
        "bandwidth",
        "Bandwidth",
        "How fast do messages move, beside a calibration, the ring's bound and the link's specification?",
        ("busbw",),
        ("bandwidth", "utilisation", "projection"),
        terms=("transfer", "bus bandwidth", "calibration"),
    ),
    Section(
        "models",
        "Models, with the numbers put in",
        "What should communication cost, and how far off is each model?",
        (),
        ("formulas", "predictions", "collectives"),
        terms=("ring model", "calibration", "transfer"),
    ),
    Section(
        "scaling",
        "Scaling",
        "What do more devices bring, and what do the fitted laws say of twice as many?",
        ("scaling",),
        ("scaling", "laws"),
        terms=("weak", "strong", "efficiency"),
    ),
    Section(
        "what_if",
        "What if",
        "What would the step be on more devices, which change is worth most, and how far off is that on measured cells?",
        ("what_if",),
        ("what_if", "what_if_worth", "what_if_own_error"),
        terms=("step", "exposed", "efficiency"),
    ),
    Section(
        "learning",
        "Accuracy beside speed",
        "Did the faster strategies learn as well, and how long did each take to get there?",
        ("study", "training_accuracy", "training_loss"),
        ("learning", *TRAINING_TABLES),
    ),
    Section("checks", "Checks", "Can these numbers be trusted?", tables=("checks",)),
)
