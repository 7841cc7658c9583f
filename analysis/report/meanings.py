"""What the headings of the report's tables mean, for those that are not simply columns of the comparison."""

from dpscope.analysis.comparison.columns import BY_NAME
from dpscope.analysis.comparison.compare import Comparison
from dpscope.analysis.report.comparison_tables import TextTable, shown_views
from dpscope.analysis.training_meanings import TRAINING_MEANINGS

_INTERVAL = {"low": "Lower end of the 95% interval", "high": "Upper end of the 95% interval"}
_GAP = {
    "cells": "Devices and batch per device, equal on both sides, and DDP's variant",
    "ratio": "DP's median untraced step over DDP's: above 1, DDP is faster",
    "gap": "DP's median untraced step less DDP's",
    "exposed comm.": "Communication that nothing hides, DP less DDP",
    "host copies": "Copies from and to the host outside of compute and communication, DP less DDP; dp-host: all its copying",
    "compute": "Compute, DP less DDP",
    "idle": "Neither compute nor communication nor copies, DP less DDP",
    "tracer": "What the traced steps leave of the untraced gap",
}
_PHASES = {
    "device": "Device of the DataParallel process",
    "replica": "Replica of dp-host; all: the time in which any of them was in the phase",
    "to dev.": "Copying the batch to the device before DataParallel is called",
    "scatter": "Distributing the batch over the devices",
    "replicate": "Sending parameters and buffers to every device",
    "apply": "The forward pass of the replicas",
    "gather": "Collecting the outputs on the first device",
    "loss+bwd": "The loss, and the backward pass without its reduction",
    "reduce": "Adding up the gradients on the first device",
    "optim.": "The optimizer's step",
    "other": "Work launched in none of the phases",
}
_WAITS = {
    "late rank": "The rank that came last to a collective",
    "waiting rank": "A rank that waited for it there",
    "collectives": "Collectives in which it did, over all whole traced steps",
    "wait per step": "Time lost so per step; waits side by side are lost once",
    "share": "Share of all waiting in this cell",
}
_IDENTITY = {
    "t_N(b)-t_1(b)": "Median step on N devices less one on one device at the same batch per device",
    "exposed": "Exposed communication, of which one device has none",
    "compute": "Compute on N devices less compute on one",
    "idle": "Idle on N devices less idle on one",
    "tracer": "What the traced steps leave of the untraced difference",
}
_REASONS = {
    "estimate": "The subtraction by its formula",
    "error": "The estimate less measured exposed communication",
    "local batch": "The step that is subtracted is not the same work per device",
    "compute": "Compute on N devices less compute on one",
    "idle": "Idle on N devices less idle on one",
    "tracer": "What the traced steps leave of the untraced difference",
}
_COLLECTIVES = {
    "collective": "Kind of the collective",
    "size": "The larger of a rank's input and output buffer",
    "ranks": "Ranks of its group",
    "per step": "How many per rank and step",
    "measured": "Median transfer: the shortest duration over the ranks",
    "predicted": "What the model says of this size",
    "error": "Predicted over measured, less 1",
}
_SCALING = {
    "series": "Strategy, weak (same batch b per device) or strong (same global batch G)",
    "devices": "Devices the step runs on",
    "speedup": "Weak: N t_1(b) / t_N(b). Strong: t_1(G) / t_N(G/N)",
    "eff.": "Speedup over the number of devices",
    "Karp-Flatt": "The serial fraction that would give this speedup",
    "misuse": "Amdahl's law with the exposed share as serial fraction, which it is not",
    **_INTERVAL,
}
_LAWS = {
    "series": "The measured series that the law is fitted to",
    "law": "One count gives none, two Amdahl or Gustafson, three or more the universal scalability law",
    "parameter": "A parameter of the law, or its prediction",
    "value": "Fitted to the measured speedups",
    **_INTERVAL,
}
_FORMULAS = {
    "model": "Which model, of which collective or step",
    "formula": "With the numbers of this run put in; S is a size, B a bandwidth, N the ranks, alpha a latency",
    "B from": "Where bandwidth and latency come from",
    "predicted": "The formula's result",
    "measured": "What the traces show",
    "error": "Predicted over measured, less 1",
}
_PROJECTION = {"link": "A link between devices", "one way": "Its specified rate in one direction"}

_OF_TABLE = {
    "gap": {**_GAP, **_INTERVAL},
    "dp_phases": _PHASES,
    "waits": _WAITS,
    "identity": _IDENTITY,
    "reasons": _REASONS,
    "collectives": _COLLECTIVES,
    "scaling": _SCALING,
    "laws": _LAWS,
    "formulas": _FORMULAS,
    "projection": _PROJECTION,
    **TRAINING_MEANINGS,
}
_CELL = BY_NAME["cell"].meaning
_PROJECTED = "Predicted from the link's specification for this many bytes; nothing was measured"


def meanings(name: str, table: TextTable, comparison: Comparison) -> tuple[str, ...]:
    """One sentence for every heading of a report's table, empty where there is none."""
    for view in shown_views(comparison):
        if view.name == name:
            return tuple(BY_NAME[column].meaning for column in view.columns)
    own = _OF_TABLE.get(name, {})
    words = [heading.partition(" [")[0] for heading in table.headings]
    if name == "projection":
        return tuple(own.get(word, _PROJECTED) for word in words)
    return tuple(own.get(word, _CELL if word == "cell" else "") for word in words)
