"""The page's sections: the question that each answers, its figures and its tables."""

from dataclasses import dataclass

from dpscope.analysis.training.tables import TRAINING_TABLES

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
