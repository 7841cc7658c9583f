"""The other way round: which bandwidth, bucket, device count or speed reaches a target; and what is worth most."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from dpscope.analysis.what_if.links.costs import Costs, Links
from dpscope.analysis.what_if.prediction import BAND, Prediction
from dpscope.analysis.what_if.scenarios.inputs import place_of
from dpscope.analysis.what_if.scenarios.predict import predict
from dpscope.analysis.what_if.scenarios.scenario import DEFAULT_BUCKET, Base, Scenario
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.links import LinkRate

SOLVABLE = ("inter", "intra", "faster", "devices", "bucket-mb", "strategy")
_LEAST_GB_PER_S, _MOST_GB_PER_S = 1e-3, 1e4
_MOST_FASTER = 1e3
_CAPS = tuple(0.5 * 512 ** (step / 23) for step in range(24))  # MiB, 0.5 to 256
_HALVINGS = 40
_LEAST_SHOWN_US = 50.0  # 0.1 ms, rounded


@dataclass(frozen=True)
class Solution:
    """The value that reaches the target, with what the ends of the band need; or the reason why none does."""

    variable: str
    value: float | None
    low: float | None
    high: float | None
    sentence: str


def solve(
    base: Base, scenario: Scenario, costs: Costs, variable: str, need: tuple[str, float] | None = None
) -> Solution:
    """What `variable` (one of SOLVABLE) must be for `need`, such as ("efficiency", 0.95) or ("step-ms", 100.0).

    ``bucket-mb`` and ``strategy`` need no target: they are compared. Raises ValueError for another variable.
    """
    if variable == "bucket-mb":
        return _best_bucket(base, scenario, costs)
    if variable == "strategy":
        return _strategies(base, scenario, costs)
    if variable not in SOLVABLE or need is None:
        raise ValueError(f"{variable} with {need}: choose from {', '.join(SOLVABLE)}, and give a target")
    if variable == "devices":
        return _most_devices(base, scenario, costs, need)
    return _least(base, scenario, costs, variable, need)


def _reached(said: Prediction, need: tuple[str, float], bound: str = "step_us") -> bool:
    """Whether a prediction meets the target, or the slow or fast end of its band does."""
    value = getattr(said, bound)
    if value is None or said.step_us is None:
        return False
    if need[0] == "step-ms":
        return bool(value <= need[1] * 1e3)
    return said.efficiency is not None and bool(said.efficiency * said.step_us / value >= need[1])


def _least(base: Base, scenario: Scenario, costs: Costs, variable: str, need: tuple[str, float]) -> Solution:
    """By bisection, more of the variable never being slower."""
    ends = (1.0, _MOST_FASTER) if variable == "faster" else (_LEAST_GB_PER_S, _MOST_GB_PER_S)

    def at(value: float) -> Prediction:
        return predict(base, _with(scenario, variable, value), costs)

    place = place_of(base, scenario)
    if variable == "inter" and place.nodes == 1:
        why = f"all {counted(place.devices, 'device')} are on one node; ask for intra, or give --per-node"
        return Solution(variable, None, None, None, f"No answer: no link between nodes is used: {why}.")
    if variable == "intra" and place.per_node == 1:
        return Solution(variable, None, None, None, "No answer: no link within a node is used: ask for inter.")
    best = at(ends[1])
    if best.step_us is None:
        return Solution(variable, None, None, None, f"No answer: {best.reason}.")
    if not _reached(best, need):
        return Solution(
            variable,
            None,
            None,
            None,
            f"{_told(need)} cannot be reached at any {_NOUNS[variable]}: {_shown(best, need)} is the best (bound by "
            f"{best.bound_by}).",
        )
    value = _bisected(lambda one: _reached(at(one), need), *ends)
    low = _bisected(lambda one: _reached(at(one), need, "low_us"), *ends)
    high = _bisected(lambda one: _reached(at(one), need, "high_us"), *ends) if _reached(best, need, "high_us") else None
    needs = "a device {}x as fast" if variable == "faster" else "{} GB/s " + _PLACES[variable]
    unit = "x" if variable == "faster" else " GB/s"
    most = f"{high:.3g}{unit}" if high is not None else "more than there is"
    return Solution(
        variable,
        value,
        low,
        high,
        f"{_told(need)} on {counted(place.devices, 'device')} needs {needs.format(f'{value:.3g}')} ({BAND:.0%} band "
        f"{low:.3g}{unit} to {most}).",
    )


def _bisected(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The least value at which it holds, as it does at `high`; in logarithms."""
    if holds(low):
        return low
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


_PLACES = {"inter": "between nodes", "intra": "within a node"}
_NOUNS = {"inter": "bandwidth between nodes", "intra": "bandwidth within a node", "faster": "device speed"}


def _with(scenario: Scenario, variable: str, value: float) -> Scenario:
    if variable == "faster":
        return replace(scenario, faster=value)
    link = LinkRate(value, f"{value:.3g} GB/s", "asked")
    links = Links(link, scenario.links.inter) if variable == "intra" else Links(scenario.links.intra, link)
    return replace(scenario, links=links)


def _told(need: tuple[str, float]) -> str:
    return f"An efficiency of {100 * need[1]:g}%" if need[0] == "efficiency" else f"A step of {need[1]:g} ms"


def _shown(said: Prediction, need: tuple[str, float]) -> str:
    if need[0] == "step-ms" or said.efficiency is None:
        return f"{(said.step_us or 0.0) / 1e3:.1f} ms"
    return f"{100 * said.efficiency:.1f}%"


def _most_devices(base: Base, scenario: Scenario, costs: Costs, need: tuple[str, float]) -> Solution:
    """The largest count that still meets the target, of the doubled ones and those between, as far as numbers go."""
    met, reason = 1, None
    count = 2
    while (said := predict(base, replace(scenario, devices=count), costs)).step_us is not None and _reached(said, need):
        met, count = count, count * 2
    if said.step_us is None:
        reason = said.reason
    elif count > 2:
        low, high = met, count
        while high - low > 1:
            middle = (low + high) // 2
            one = predict(base, replace(scenario, devices=middle), costs)
            low, high = (middle, high) if one.step_us is not None and _reached(one, need) else (low, middle)
        met = low
    if reason is not None:
        return Solution(
            "devices", met, None, None, f"{_told(need)} holds up to {counted(met, 'device')}; beyond that: {reason}."
        )
    return Solution(
        "devices", met, None, None, f"{_told(need)} holds up to {counted(met, 'device')}, not on {met + 1}."
    )


def _best_bucket(base: Base, scenario: Scenario, costs: Costs) -> Solution:
    """The caps that cannot be told from the best: what makes no difference beyond the method's error is one flat region."""
    said = [(cap, predict(base, replace(scenario, bucket_mb=cap), costs)) for cap in _CAPS]
    known = [(cap, one.step_us, one) for cap, one in said if one.step_us is not None]
    if not known:
        return Solution("bucket-mb", None, None, None, f"No answer: {said[0][1].reason}.")
    cap, least, _ = min(known, key=lambda one: one[1])
    error = base.own_error if base.own_error is not None else 0.02
    flat = [one for one, step, _ in known if step <= least * (1 + min(error, 0.02))]
    usual = predict(base, replace(scenario, bucket_mb=DEFAULT_BUCKET), costs).step_us
    gain = (
        f"; the default (1 MiB, then 25) takes {100 * (usual / least - 1):.1f}% longer than the best" if usual else ""
    )
    within = usual is not None and usual <= least * (1 + min(error, 0.02))
    said_so = " Keep the default: the difference is within the error." if within else ""
    return Solution(
        "bucket-mb",
        cap,
        min(flat),
        max(flat),
        f"Buckets of {min(flat):.3g} to {max(flat):.3g} MiB are alike{gain}.{said_so}",
    )


def _strategies(base: Base, scenario: Scenario, costs: Costs) -> Solution:
    """Whether DataParallel is ever faster than DDP, over the counts that a number is given for."""
    rows = []
    count = 2
    while count <= 8 * base.largest_count:
        ddp = predict(base, replace(scenario, devices=count, strategy="ddp"), costs)
        dp = predict(base, replace(scenario, devices=count, strategy="dp"), costs)
        if dp.step_us is not None and ddp.step_us is not None:
            rows.append((count, dp.step_us / ddp.step_us))
        reason = dp.reason or ddp.reason
        count *= 2
    if not rows:
        return Solution("strategy", None, None, None, f"No answer: {reason}.")
    wins = [one for one, ratio in rows if ratio < 1]
    closest = min(rows, key=lambda one: one[1])
    if wins:
        return Solution(
            "strategy", closest[1], None, None, f"DataParallel is faster on {', '.join(map(str, wins))} devices."
        )
    return Solution(
        "strategy",
        closest[1],
        None,
        None,
        f"DataParallel is faster nowhere from {rows[0][0]} to {rows[-1][0]} devices; it comes closest on {closest[0]}, "
        f"{closest[1]:.2f}x DDP's step.",
    )


@dataclass(frozen=True)
class Worth:
    """What one change alone takes off the step, in microseconds; `certain` where that is more than the method's error."""

    change: str
    saved_us: float
    low_us: float
    high_us: float
    certain: bool


def worth(base: Base, scenario: Scenario, costs: Costs) -> list[Worth]:
    """What is worth most, each alone, the largest first; empty where the scenario itself has no number."""
    now = predict(base, scenario, costs)
    if now.step_us is None:
        return []
    # infinite bandwidth as good as: 0 would leave no cost to tell a band by
    changes = {
        "infinite bandwidth": replace(scenario, transfer_factor=0.0),
        "zero latency": replace(scenario, latency_factor=0.0),
        "no jitter": replace(scenario, lateness_factor=0.0),
        "no host gaps": replace(scenario, host_factor=0.0),
        "twice the GPU": replace(scenario, faster=2 * scenario.faster),
    }
    error = base.own_error if base.own_error is not None else 0.04
    found = []
    for name, changed in changes.items():
        said = predict(base, changed, costs)
        if said.step_us is None:
            continue
        saved = now.step_us - said.step_us
        off = error * abs(saved) + base.spread * abs(saved) + (0.12 * said.step_us if "GPU" in name else 0.0)
        found.append(Worth(name, saved, saved - off, saved + off, saved - off > error * now.step_us))
    return sorted(found, key=lambda one: -one.saved_us)


def worth_sentence(found: list[Worth], devices: int) -> str:
    """What is worth most, in one sentence; what would not show in its digits is named as worth nothing."""
    if not found:
        return ""
    shown = [one for one in found if abs(one.saved_us) >= _LEAST_SHOWN_US]
    said = ", ".join(
        f"{one.change} {-one.saved_us / 1e3:+.1f} ms" + ("" if one.certain else " (within the error)") for one in shown
    )
    nothing = ", ".join(one.change for one in found if one not in shown)
    parts = [one for one in (said, f"worth nothing: {nothing}" if nothing else "") if one]
    return f"What is worth most on {counted(devices, 'device')}, each alone: {'; '.join(parts)}."
