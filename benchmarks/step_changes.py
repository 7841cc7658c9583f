"""How often `dpscope compare` names what was planted in a traced step, and how often anything where
nothing was.

`python benchmarks/step_changes.py [PAIRS [EQUAL]]` from the root of the repository: pairs of made
jobs of two ranks, three repeats a side, whose durations vary by 1% and whose repeats by half of
that. Twenty pairs of each kind and two hundred equal ones take four minutes.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from dpscope.analysis.runs.class_change import ClassChange
from dpscope.analysis.runs.run_data import RunData, traced_repeats
from dpscope.analysis.runs.step_change import StepChange, step_changes
from dpscope.analysis.traces.ranks.trace_analysis import analyze_jobs
from tests.helpers.changed_jobs import OPERATORS, Planted, duration_us, write_jobs

NOISE = 0.01
REPEATS = 3


def compared(folder: Path, before: Planted, after: Planted, seed: int) -> StepChange:
    """The change between two made jobs."""
    (change,) = step_changes(
        _loaded(folder / "before", before, 2 * seed), _loaded(folder / "after", after, 2 * seed + 1)
    )
    return change


def _loaded(folder: Path, planted: Planted, seed: int) -> RunData:
    write_jobs(folder, planted, REPEATS, seed)
    return traced_repeats(analyze_jobs([folder]), [folder])


def off_us(change: StepChange) -> float:
    """How far the parts are from the change of the step, and the classes from that of compute."""
    parts_us = sum(one.change_us for one in change.parts)
    compute_us = next(one.change_us for one in change.parts if one.part == "compute")
    classes_us = sum(one.change_us for one in change.classes)
    return max(abs(parts_us - change.change_us), abs(classes_us - compute_us))


def named(change: StepChange) -> list[ClassChange]:
    return [one for one in change.classes if one.significant]


def slowed(operator: int) -> Planted:
    return Planted(slower={operator: 1.07}, noise=NOISE)


def doubled(operator: int) -> Planted:
    return Planted(twice=frozenset({operator}), noise=NOISE)


def late(operator: int) -> Planted:
    return Planted(late_us=100.0 + 20.0 * operator, noise=NOISE)


def contended(operator: int) -> Planted:
    return Planted(contention=1.1 + operator / 100, noise=NOISE)


def finds_slowed(change: StepChange, operator: int) -> bool:
    """It alone, by duration alone, by 7% of two calls within 1.5 points."""
    planted_us = 0.07 * 2 * duration_us(operator)
    return [one.part for one in named(change)] == [f"aten::op_{operator}"] and (
        abs((named(change)[0].alone_us or 0.0) - planted_us) < 0.015 * 2 * duration_us(operator)
    )


def finds_doubled(change: StepChange, operator: int) -> bool:
    """It alone, by two further calls."""
    planted_us = 2 * duration_us(operator)
    return [one.part for one in named(change)] == [f"aten::op_{operator}"] and (
        abs(named(change)[0].count_us - planted_us) < 0.03 * planted_us
    )


def finds_late(change: StepChange, operator: int) -> bool:
    """No kernel; rank 1 is waited for, by half of the lateness on average over two ranks."""
    waited_us = sum(one.change_us for one in change.parts if one.part == "waiting for rank 1")
    return not named(change) and abs(waited_us - late(operator).late_us / 2) < 1.0


def finds_contended(change: StepChange, operator: int) -> bool:
    """Contention, within 10% of what was planted in the second half of the step."""
    factor = contended(operator).contention
    planted_us = (factor - 1) * sum(map(duration_us, range(OPERATORS)))
    contention_us = sum(one.contention_us or 0.0 for one in named(change))
    return abs(contention_us - planted_us) < 0.1 * planted_us


_Plant = Callable[[int], Planted]
_Finds = Callable[[StepChange, int], bool]
KINDS: dict[str, tuple[_Plant, _Finds]] = {
    "one operator 7% slower": (slowed, finds_slowed),
    "one operator called twice as often": (doubled, finds_doubled),
    "a rank 0.1 to 0.5 ms late": (late, finds_late),
    "kernels next to communication 10 to 29% slower": (contended, finds_contended),
}


def main(pairs: int, equal: int) -> None:
    """A line per kind of pair."""
    random = np.random.default_rng(0)
    for seed, (kind, (plant, finds)) in enumerate(KINDS.items()):
        found, off = 0, 0.0
        for pair in range(pairs):
            operator = int(random.integers(4, OPERATORS))
            with tempfile.TemporaryDirectory() as folder:
                change = compared(
                    Path(folder), Planted(noise=NOISE), plant(operator), 1000 * seed + pair
                )
            found += finds(change, operator)
            off = max(off, off_us(change))
        sys.stdout.write(f"{kind}: {found} of {pairs} found; parts add up within {off:.0e} us\n")
    any_named = 0
    for pair in range(equal):
        with tempfile.TemporaryDirectory() as folder:
            plain = Planted(noise=NOISE)
            any_named += bool(named(compared(Path(folder), plain, plain, 10_000 + pair)))
    sys.stdout.write(f"equal: a class named in {any_named} of {equal}\n")


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    main(*(numbers + [20, 200][len(numbers) :]))
