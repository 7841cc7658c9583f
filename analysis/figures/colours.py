"""Colours of the figures and the page, by what they stand for."""

from dpscope.profiling.records.strategies import STRATEGIES

# Okabe and Ito's palette, which colour-blind readers can distinguish; DataParallel's phases have further colours with a contrast
# of at least 3:1 on white and on the page's dark background.
COLOURS = {
    "compute": "#0072B2",
    "exposed": "#D55E00",
    "hidden": "#E69F00",
    "idle": "#BBBBBB",
    "host_to_device": "#CC79A7",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "optimizer": "#009E73",
    "data": "#999999",
    "scatter": "#C77C3A",
    "replicate": "#B5366F",  # the phase; the strategy of that name has the same colour
    "parallel_apply": "#4F97C4",
    "gather": "#7F8F2A",
    "loss_backward": "#0072B2",
    "gradient_reduce": "#8C6BD1",
    "host_copies": "#CC79A7",
    "wait": "#CC6677",
    "whole": "#777777",
    **{name: traits.colour for name, traits in STRATEGIES.items()},
    "transfer": "#009E73",
    "same_local_batch": "#CC79A7",
    "ideal_split": "#8C6BD1",
    "same_total": "#999999",
    "ring": "#56B4E9",
    "predicted": "#882255",
    "target": "#009E73",
    "tracer": "#999999",
}
