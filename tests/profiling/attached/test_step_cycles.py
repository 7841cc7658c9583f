"""After how many steps a script does the same again."""

import pytest

from dpscope.profiling.attached.stages import whole_cycles
from dpscope.profiling.attached.step_cycles import (
    LONGEST_CYCLE,
    CollectiveCount,
    StepEvents,
    cycle_of,
)

KINDS = {
    "d": StepEvents(other_optimizers=0, training_calls=2, collectives=1),
    "g": StepEvents(other_optimizers=1, training_calls=3, collectives=2),  # the generator, too
    "p": StepEvents(other_optimizers=0, training_calls=3, collectives=1),  # with a gradient penalty
    "s": StepEvents(other_optimizers=0, training_calls=2, collectives=2),  # the models are averaged
}


@pytest.mark.parametrize(
    ("steps", "length"),
    [
        ("dd", 1),
        ("dddddddd", 1),
        ("dddg", None),  # one generator step: when the next one comes is open
        ("dddgdddd", None),
        ("dddgddddgd", 5),
        ("ddgddgddg", 3),
        ("dgdg", None),  # it may be a part of a longer one
        ("dgdgdg", 2),
        ("ggggddgddddgddddg", 5),  # the first steps differ
        ("gg", 1),
        ("dpddpddpd", 3),
        ("dsdsds", 2),
        ("dgddgdddg", None),  # irregular
        ("d", None),
        ("", None),
    ],
)
def test_the_shortest_cycle_that_explains_every_step(steps: str, length: int | None) -> None:
    assert cycle_of([KINDS[one] for one in steps]) == length


def test_steps_with_fewer_calls_than_usual_are_short_rather_than_another_kind() -> None:
    four, two, penalty = (StepEvents(0, calls, 1) for calls in (4, 2, 5))
    assert cycle_of([four, four, two] * 3) == 1
    assert cycle_of([four, two] * 4) == 1
    assert cycle_of([four, four, four, penalty] * 2) == 4


def test_a_cycle_beyond_the_longest_is_not_found() -> None:
    for length, found in ((LONGEST_CYCLE, LONGEST_CYCLE), (LONGEST_CYCLE + 1, None)):
        assert cycle_of(([KINDS["d"]] * (length - 1) + [KINDS["g"]]) * 3) == found


def test_windows_are_whole_cycles() -> None:
    assert [whole_cycles(steps, 5) for steps in (1, 5, 6, 50)] == [5, 5, 10, 50]
    assert whole_cycles(3, 1) == 3


def test_no_collective_is_counted_without_a_process_group() -> None:
    assert CollectiveCount().take() == 0
