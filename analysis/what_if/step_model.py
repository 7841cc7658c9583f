"""How a data-parallel step's time depends on devices, nodes and batch: a model with eight numbers, fitted to measured steps.

t_N(b) = t_1(b) (1 + own) + exposed, where exposed = softly max(0, T - h t_1(b)) + jitter z_N t_1(b):

- t_1(b) is the measured step of one device, interpolated between batches; `own` what DistributedDataParallel costs by itself.
- T = (N-1) latency + 2(N-1)/N wire is the ring all-reduce (docs/measures.md) of the level it crosses: within one node, or
  between nodes, where wire grows by `crowding` per further rank that shares a node's link.
- h is the share of a step of one device under which communication can hide (the backward pass is about two thirds of it, and
  the first bucket is ready a little later). The maximum is soft, since buckets become ready one by one:
  s log(1 + e^((T - h t)/s)).
- jitter z_N is how much longer the slowest of N ranks computes than the mean one: z_N is the expected maximum of N standard
  normal numbers (Blom's approximation of order statistics: Statistical Estimates and Transformed Beta-Variables, Wiley 1958).

The shape, a communication term that hides under a share of compute with a soft maximum and separate rates within and between
nodes, is that of Pollux (Qiao et al., OSDI 2021, section 3.2); the terms of jitter, crowding and `own` are dpscope's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from dpscope.analysis.stats.arrays import Floats
from dpscope.analysis.what_if.step_table import MeasuredStep

_STEP_SCALE = 0.06  # relative error of a step that counts as one unit of misfit
_EXPOSED_SCALE = 1.2  # the same of exposed communication, in logarithms: it is noisier, and is not what is asked first
_EXPOSED_MATTERS = 0.02  # of the step, from which on exposed communication is fitted

#           log of: latency_node, wire_node, latency_net, wire_net, crowding, -, softness, jitter, own  (h is not a logarithm)
_START = np.array(
    [np.log(1e-3), np.log(0.1), np.log(1e-3), np.log(0.5), np.log(0.05), 0.6, np.log(0.15), np.log(0.01), np.log(0.02)]
)
_WIDTH = np.array([2.0, 3.0, 2.0, 3.0, 1.0, 0.1, 0.5, 1.0, 2.0])
_STARTS = (
    (0.02, 0.1, 0.5, 2.0),
    (1e-3, 0.03, 0.3),
)  # wire and latency, of the median t_1: the misfit has several valleys
_DESCENTS = 3  # from the best of them


@dataclass(frozen=True)
class Design:
    """What a prediction needs of each configuration, as arrays of equal length; `alone_us` is t_1 at its batch."""

    ranks: Floats
    several_nodes: npt.NDArray[np.bool_]
    most_per_node: Floats
    alone_us: Floats

    @classmethod
    def of(cls, rows: Sequence[MeasuredStep], alone_us: Floats) -> "Design":
        places = [row.placement for row in rows]
        return cls(
            ranks=np.array([place.ranks for place in places], dtype=float),
            several_nodes=np.array([place.nodes > 1 for place in places]),
            most_per_node=np.array([place.most_per_node for place in places], dtype=float),
            alone_us=alone_us,
        )

    def taken(self, chosen: npt.NDArray[np.bool_]) -> "Design":
        """Some of the configurations."""
        return Design(self.ranks[chosen], self.several_nodes[chosen], self.most_per_node[chosen], self.alone_us[chosen])


@dataclass(frozen=True)
class StepModel:
    """Fitted: `parameters` as above, times as shares of `unit_us`, the median t_1 of the fitted rows."""

    parameters: Floats
    unit_us: float

    def exposed_us(self, design: Design) -> Floats:
        """Exposed communication, waiting for the slowest rank included."""
        return _exposed(self.parameters, design, self.unit_us)

    def wire_us(self, design: Design) -> Floats:
        """What all gradients take over the link once, without latency: 2(N-1)/N of it are a ring all-reduce."""
        _, wire_node, _, wire_net, crowding = np.exp(self.parameters[:5])
        crowded = wire_net * (1 + crowding * (design.most_per_node - 1))
        return np.asarray(np.where(design.several_nodes, crowded, wire_node) * self.unit_us)

    def step_us(self, design: Design) -> Floats:
        """The step: one device's, what DDP costs by itself, and exposed communication."""
        own = float(np.exp(self.parameters[8]))
        return np.asarray(design.alone_us * (1 + own) + self.exposed_us(design))


def fit_step_model(design: Design, step_us: Floats, sync_us: Floats) -> StepModel:
    """The most likely model of measured steps; `sync_us` is NaN where exposed communication was not measured.

    Least squares on logarithms with a soft loss (single wild rows do not decide) and a weak prior on every number, which holds
    what the rows cannot tell: nobody who measured one node learns the link between nodes.
    """
    unit = float(np.median(design.alone_us))
    known = np.isfinite(sync_us) & (sync_us > _EXPOSED_MATTERS * step_us)
    target = np.log(np.where(known, np.maximum(sync_us, 1e-3), 1.0))

    def misfit(parameters: Floats) -> Floats:
        model = StepModel(parameters, unit)
        exposed = model.exposed_us(design)
        steps = design.alone_us * (1 + np.exp(parameters[8])) + exposed
        beside = np.where(known, np.log(np.maximum(exposed, 0.01 * steps)) - target, 0.0)
        return np.concatenate(
            [
                (np.log(steps) - np.log(step_us)) / _STEP_SCALE,
                np.clip(beside, -2.0, 2.0) / _EXPOSED_SCALE,
                (parameters - _START) / _WIDTH,
            ]
        )

    def cost(parameters: Floats) -> float:
        return float(np.sum(np.sqrt(1 + misfit(parameters) ** 2)))

    from scipy.optimize import least_squares  # here, as a replay fits nothing

    starts = sorted(_starts(), key=cost)[:_DESCENTS]
    found = [least_squares(misfit, start, loss="soft_l1", ftol=1e-5, xtol=1e-5, gtol=1e-5) for start in starts]
    return StepModel(np.asarray(min(found, key=lambda one: float(one.cost)).x), unit)


def _starts() -> Iterator[Floats]:
    wires, latencies = _STARTS
    for latency, wire_node, wire_net in product(latencies, wires, wires):
        start = _START.copy()
        start[:4] = np.log([latency, wire_node, latency, wire_net])
        yield start


def expected_maximum(ranks: Floats) -> Floats:
    """Of so many standard normal numbers, by Blom's approximation; 0 for one."""
    from scipy.special import ndtri

    return np.where(ranks > 1, ndtri((ranks - 0.375) / (ranks + 0.25)), 0.0)


def _exposed(parameters: Floats, design: Design, unit_us: float) -> Floats:
    latency_node, wire_node, latency_net, wire_net, crowding = np.exp(parameters[:5])
    hides, soft, jitter = parameters[5], np.exp(parameters[6]), np.exp(parameters[7])
    hops, ring = design.ranks - 1, 2 * (design.ranks - 1) / design.ranks
    within = hops * latency_node + ring * wire_node
    between = hops * latency_net + ring * wire_net * (1 + crowding * (design.most_per_node - 1))
    transfer = np.where(design.several_nodes, between, within) * unit_us
    late = jitter * expected_maximum(design.ranks) * design.alone_us
    scale = np.maximum(soft * transfer, 1e-9)
    stays = scale * np.logaddexp(0.0, (transfer - hides * (design.alone_us + late)) / scale)
    return np.where(design.ranks > 1, stays + late, 0.0)
