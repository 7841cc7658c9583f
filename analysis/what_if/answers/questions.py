"""The other way round: which bandwidth, bucket, device count or speed reaches a target."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from dpscope.analysis.what_if.prediction import BAND, Prediction
from dpscope.analysis.what_if.scenarios.collective_costs import Costs
from dpscope.analysis.what_if.scenarios.inputs import ASSUMED_ERROR, place_of
from dpscope.analysis.what_if.scenarios.predict import predict
from dpscope.analysis.what_if.scenarios.scenario import DEFAULT_BUCKET, Base, Scenario
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.records.short_repr import short_repr

_UNITS = {
    "inter": "GB/s",
    "intra": "GB/s",
    "faster": "times as fast",
    "devices": "devices",
    "bucket-mb": "MiB",
    "strategy": "times the step of DDP",
}
SOLVABLE = tuple(_UNITS)
_NOUNS = {"inter": "bandwidth between nodes", "intra": "bandwidth within a node", "faster": "device speed"}
_ENDS = {"inter": (1e-3, 1e4), "intra": (1e-3, 1e4), "faster": (1.0, 1e3)}  # of the search, GB/s or times as fast
_CAPS = tuple(0.5 * 512 ** (step / 92) for step in range(93))  # MiB, 0.5 to 256, 7% apart
_HALVINGS = 40


@dataclass(frozen=True)
class Solution:
    """The value that reaches the target, with what the ends of the band need; or the reason why none does.

    `solved` is the scenario with that value, and `words` what it changes, by option; empty where nothing was found.
    """

    __repr__ = short_repr

    variable: str
    sentence: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    solved: Scenario | None = None
    words: Mapping[str, str] = field(default_factory=dict)

    def as_plain(self) -> dict[str, object]:
        """For JSON; `scenario` holds the options that reach the target, empty where nothing was found."""
        values = {name: getattr(self, name) for name in ("variable", "value", "low", "high", "sentence")}
        return {**values, "unit": _UNITS[self.variable], "scenario": dict(self.words)}


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
    place, no_use = place_of(base, scenario), None
    if variable == "inter" and place.nodes == 1:
        devices = counted(place.devices, "device")
        no_use = f"{devices} on one node use no link between nodes: give --devices and --per-node that make several"
    elif variable == "intra" and place.per_node == 1:
        no_use = "with one device on a node no link within one is used"
    elif variable == "faster" and need[0] == "efficiency":
        no_use = (
            "a faster device shortens the step and lowers the efficiency, as communication takes as long as before: give "
            "--need step-ms=100, say"
        )
    if no_use is not None:
        return Solution(variable, f"No answer: {no_use}.")
    return (
        _most_devices(base, scenario, costs, need)
        if variable == "devices"
        else _least(base, scenario, costs, variable, need)
    )


def _reached(prediction: Prediction, need: tuple[str, float], bound: str = "step_us") -> bool:
    """Whether a prediction meets the target, or the slow or fast end of its band does."""
    value = getattr(prediction, bound)
    if value is None or prediction.step_us is None:
        return False
    if need[0] == "step-ms":
        return bool(value <= need[1] * 1e3)
    return prediction.efficiency is not None and bool(prediction.efficiency * prediction.step_us / value >= need[1])


def _least(base: Base, scenario: Scenario, costs: Costs, variable: str, need: tuple[str, float]) -> Solution:
    """By bisection, more of the variable never being slower."""
    noun, ends, is_speed = _NOUNS[variable], _ENDS[variable], variable == "faster"
    devices = counted(place_of(base, scenario).devices, "device")

    def at(value: float | None) -> Prediction:
        return predict(base, _with(scenario, variable, value), costs)

    now, best = at(None), at(ends[1])
    met = _reached(now, need)
    target = f"{_target(need)} on {devices} "
    if met:
        target += f"is already met with the {noun} as measured: {_value_text(now, need)}"
    if met and not _reached(best, need):  # the host bounds the step, say
        return Solution(variable, f"{target}.")
    if best.step_us is None:
        return Solution(variable, f"No answer: {best.reason}.")
    if not _reached(best, need):
        # a stated link's latencies are rougher than measured ones
        measured = now.step_us is not None and now.step_us < best.step_us
        best, how = (now, f", with the {noun} as measured,") if measured else (best, "")
        answer = f"{_value_text(best, need)}{how} is the best (bound by {best.bound_by})"
        return Solution(variable, f"{_target(need)} cannot be reached at any {noun}: {answer}.")
    value = _bisected(lambda one: _reached(at(one), need), *ends)
    low = _bisected(lambda one: _reached(at(one), need, "low_us"), *ends)
    high = _bisected(lambda one: _reached(at(one), need, "high_us"), *ends) if _reached(best, need, "high_us") else None
    if is_speed and met:
        return Solution(variable, f"{target}.", 1.0, high=high)
    if value == ends[0]:  # the end of the search is no answer
        answer = f"any {noun} from {value:.3g} GB/s on is enough"
        return Solution(variable, f"{target}; {answer}." if met else f"{target}is met: {answer}.", high=high)
    unit = "x" if is_speed else " GB/s"
    least = f"{'under ' if low == ends[0] and not is_speed else ''}{low:.3g}{unit}"
    most = f"{high:.3g}{unit}" if high is not None else "more than there is"
    answer = f"a device {value:.3g}x as fast" if is_speed else f"{value:.3g} GB/s {noun.removeprefix('bandwidth ')}"
    answer += f" ({BAND:.0%} band {least} to {most})"
    sentence = f"{target}; {answer} would do." if met else f"{target}needs {answer}."
    words = {variable: f"{value:.3g}{'' if is_speed else ' GB/s'}"}
    return Solution(variable, sentence, value, low, high, _with(scenario, variable, value), words)


def _bisected(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The least value at which it holds, as it does at `high`; in logarithms."""
    if holds(low):
        return low
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _with(scenario: Scenario, variable: str, value: float | None) -> Scenario:
    """The scenario with that much of the variable; None is as measured."""
    if variable == "faster":
        return replace(scenario, faster=1.0 if value is None else value)
    link = None if value is None else LinkRate(value, f"{value:.3g} GB/s", "requested")
    links = scenario.links
    return replace(scenario, links=replace(links, intra=link) if variable == "intra" else replace(links, inter=link))


def _target(need: tuple[str, float]) -> str:
    return f"An efficiency of {100 * need[1]:g}%" if need[0] == "efficiency" else f"A step of {need[1]:g} ms"


def _value_text(prediction: Prediction, need: tuple[str, float]) -> str:
    if need[0] == "step-ms" or prediction.efficiency is None:
        return f"{(prediction.step_us or 0.0) / 1e3:.3g} ms"
    return f"{100 * prediction.efficiency:.1f}%"


def _most_devices(base: Base, scenario: Scenario, costs: Costs, need: tuple[str, float]) -> Solution:
    """The largest count that still meets the target, as far as numbers go; more devices never being faster."""

    def at(count: int) -> Prediction:
        return predict(base, replace(scenario, devices=count), costs)

    alone = at(1)
    if alone.step_us is None:
        return Solution("devices", f"No answer: {alone.reason}.")
    if not _reached(alone, need):
        takes = _value_text(alone, ("step-ms", 0.0))
        return Solution("devices", f"{_target(need)} is met on no count: one device takes {takes}.")
    met, over = 1, 2
    while _reached(at(over), need):
        met, over = over, 2 * over
    while over - met > 1:
        middle = (met + over) // 2
        met, over = (middle, over) if _reached(at(middle), need) else (met, middle)
    beyond = at(over)
    why = f": {beyond.reason}" if beyond.step_us is None else f" it is {_value_text(beyond, need)}"
    sentence = f"{_target(need)} is met on up to {counted(met, 'device')}; on {over}{why}."
    return Solution("devices", sentence, met, solved=replace(scenario, devices=met), words={"devices": str(met)})


def _best_bucket(base: Base, scenario: Scenario, costs: Costs) -> Solution:
    """The caps around the best one: those whose step differs by less than the method's error form one flat region."""
    predictions = [(cap, predict(base, replace(scenario, bucket_mb=cap), costs)) for cap in _CAPS]
    known = [(cap, one.step_us) for cap, one in predictions if one.step_us is not None]
    if not known:
        return Solution("bucket-mb", f"No answer: {predictions[0][1].reason}.")
    best = min(range(len(known)), key=lambda place: known[place][1])
    cap, least = known[best]
    error, whence = (base.method_error, "shown") if base.method_error is not None else (ASSUMED_ERROR, "assumed")
    alike = least * (1 + error)
    first = next(place for place in range(best, -1, -1) if place == 0 or known[place - 1][1] > alike)
    last = next(place for place in range(best, len(known)) if place == len(known) - 1 or known[place + 1][1] > alike)
    usual = predict(base, replace(scenario, bucket_mb=DEFAULT_BUCKET), costs).step_us
    low, high = known[first][0], known[last][0]
    sentence = f"{_alike(low, high)}, within the {100 * error:.2g}% that this method's error is {whence} to be"
    if usual:
        sentence += (
            f"; the default (1 MiB, then 25) takes {100 * (usual / min(usual, least) - 1):.1f}% longer than the best"
        )
    keep = usual is not None and usual <= alike
    sentence += ". Keep the default: the difference is within the error." if keep else "."
    solved = replace(scenario, bucket_mb=cap)
    return Solution("bucket-mb", sentence, cap, low, high, solved, {"bucket_mb": f"{cap:.3g}"})


def _alike(low_mib: float, high_mib: float) -> str:
    """What bucket sizes are as good as the best one."""
    low, high = f"{low_mib:.3g}", f"{high_mib:.3g}"
    alike = "MiB are the best, and no other size is as good" if low == high else f"to {high} MiB are alike"
    return f"Buckets of {low} {alike}"


def _strategies(base: Base, scenario: Scenario, costs: Costs) -> Solution:
    """Whether DataParallel is ever faster than DDP, over the counts that a number is given for."""
    rows, count = [], 2
    while count <= 8 * base.largest:
        ddp, dp = (predict(base, replace(scenario, devices=count, strategy=one), costs) for one in ("ddp", "dp"))
        if dp.step_us is not None and ddp.step_us is not None:
            rows.append((count, dp.step_us / ddp.step_us))
        reason = dp.reason or ddp.reason
        count *= 2
    if not rows:
        return Solution("strategy", f"No answer: {reason}.")
    wins = [str(one) for one, ratio in rows if ratio < 1]
    count, ratio = min(rows, key=lambda one: one[1])
    where = f"nowhere from {rows[0][0]} to {rows[-1][0]} devices"
    sentence = f"DataParallel is faster {where}; it comes closest on {count}, {ratio:.2f}x DDP's step."
    if wins:
        sentence = f"DataParallel is faster on {', '.join(wins)} devices."
    words = {"devices": str(count), "strategy": "dp"}
    return Solution("strategy", sentence, ratio, solved=replace(scenario, devices=count, strategy="dp"), words=words)
