"""Classes of kernels in two steps: expectations by pocket calculation."""

from collections.abc import Mapping

import numpy as np
import pytest
from scipy.stats import ttest_ind

from dpscope.analysis.runs.class_change import ClassChange, StepKernels, class_changes
from dpscope.analysis.traces.reading.event_table import FloatColumn
from dpscope.analysis.traces.reading.table import Table

GEMM = ("aten::mm", "gemm_128", 11, 5)
TUNED = ("aten::mm", "gemm_256", 11, 7)
OTHER_SIZES = ("aten::mm", "gemm_256", 12, 7)
ADD = ("aten::add", "add_kernel", 13, 3)
_Class = tuple[str, str, int, int]
_Sums = tuple[float, float, float, float]  # calls, time_us, free_calls, free_us


def kernels(*repeats: Mapping[_Class, _Sums], step_us: float = 1_000.0) -> StepKernels:
    """One step of one rank in each repeat."""
    rows = []
    for repeat, classes in enumerate(repeats):
        for (operator, kernel, sizes, launch), (
            calls,
            time_us,
            free_calls,
            free_us,
        ) in classes.items():
            rows.append(
                {
                    "repeat": repeat,
                    "rank": 0,
                    "device": 0,
                    "step": 1,
                    "operator": operator,
                    "kernel": kernel,
                    "sizes": sizes,
                    "launch": launch,
                    "calls": calls,
                    "time_us": time_us,
                    "free_calls": free_calls,
                    "free_us": free_us,
                }
            )
    windows = Table.of(
        repeat=list(range(len(repeats))), rank=0, device=0, step=1, step_us=[step_us] * len(repeats)
    )
    return StepKernels.of(windows, Table.from_records(rows, list(rows[0])))


def only(before: StepKernels, after: StepKernels) -> ClassChange:
    (change,) = class_changes(before, after)
    return change


def test_a_change_is_its_calls_at_the_old_mean_and_its_durations_at_the_new_calls() -> None:
    """2 calls of 100 us become 3 of 110 us: 330 - 200 = 130 = 1 x 100 + 3 x 10."""
    change = only(kernels({GEMM: (2, 200, 2, 200)}), kernels({GEMM: (3, 330, 3, 330)}))
    assert (change.change_us, change.count_us, change.duration_us) == pytest.approx((130, 100, 30))
    assert (change.alone_us, change.contention_us) == pytest.approx((30, 0))


def test_fewer_calls_are_no_faster_kernels() -> None:
    """A published "improvement by 31.56 ms": 68 calls of 4,005 us became 60 of 4,013 us."""
    change = only(
        kernels({GEMM: (68, 68 * 4_005, 68, 68 * 4_005)}),
        kernels({GEMM: (60, 60 * 4_013, 60, 60 * 4_013)}),
    )
    assert change.count_us == pytest.approx(-8 * 4_005)
    assert change.duration_us == pytest.approx(60 * 8)


def test_contention_is_what_is_left_when_free_kernels_are_as_fast() -> None:
    """4 calls, 2 of them free at 100 us; next to communication 120 before and 150 after: 60 us."""
    change = only(kernels({GEMM: (4, 440, 2, 200)}), kernels({GEMM: (4, 500, 2, 200)}))
    assert (change.duration_us, change.alone_us) == pytest.approx((60, 0))
    assert change.contention_us == pytest.approx(60)


def test_without_a_free_kernel_contention_is_unknown() -> None:
    change = only(kernels({GEMM: (2, 200, 0, 0)}), kernels({GEMM: (2, 260, 0, 0)}))
    assert (change.duration_us, change.alone_us, change.contention_us) == (60, None, None)


def test_a_kernel_of_another_name_is_the_same_if_operator_and_sizes_are() -> None:
    """As where a library chose another algorithm; other sizes are another class, gone and new."""
    before = kernels({GEMM: (2, 200, 2, 200), ADD: (1, 10, 1, 10)})
    renamed, _ = class_changes(before, kernels({TUNED: (2, 180, 2, 180), ADD: (1, 10, 1, 10)}))
    assert renamed.occurrence == "renamed"
    assert renamed.duration_us == pytest.approx(-20.0)
    changes = class_changes(before, kernels({OTHER_SIZES: (2, 180, 2, 180), ADD: (1, 10, 1, 10)}))
    effects = {str(one.occurrence): (one.count_us, one.duration_us) for one in changes}
    assert effects == {
        "gone": (-200, 0), "both": (0, 0), "new": (180, 0),
    }  # fmt: skip


def test_kernels_of_unknown_sizes_are_not_joined_by_their_operator() -> None:
    unknown, tuned = ("aten::mm", "gemm_128", -1, 5), ("aten::mm", "gemm_256", -1, 7)
    changes = class_changes(kernels({unknown: (1, 100, 1, 100)}), kernels({tuned: (1, 90, 1, 90)}))
    assert [one.occurrence for one in changes] == ["gone", "new"]
    assert not any(one.sizes_known for one in changes)


def test_one_class_is_judged_as_by_welch_and_several_are_corrected_as_by_holm() -> None:
    """Alone a class has no other whose spread counts; beside classes that never vary nor change the
    probability of the only one that does is multiplied by their number.
    """
    random = np.random.default_rng(4)
    before, after = random.lognormal(5, 0.1, 4), random.lognormal(5.2, 0.1, 5)

    def side(times: FloatColumn, *others: _Class) -> StepKernels:
        steady: dict[_Class, _Sums] = dict.fromkeys(others, (1, 100, 1, 100))
        return kernels(*({GEMM: (1, us, 1, us)} | steady for us in times.tolist()))

    expected = ttest_ind(np.log(before), np.log(after), equal_var=False).pvalue
    assert only(side(before), side(after)).probability == pytest.approx(expected)
    alone, *steady = class_changes(side(before, ADD, OTHER_SIZES), side(after, ADD, OTHER_SIZES))
    assert alone.probability is not None
    assert alone.probability > expected
    assert [one.probability for one in steady] == [1.0, 1.0]


def test_one_repeat_or_a_class_below_a_hundredth_of_the_step_is_not_judged() -> None:
    slow, fast = (
        {GEMM: (1, 200, 1, 200), ADD: (1, 9, 1, 9)},
        {GEMM: (1, 100, 1, 100), ADD: (1, 3, 1, 3)},
    )
    assert {one.significant for one in class_changes(kernels(slow), kernels(fast))} == {None}
    judged = class_changes(kernels(slow, slow), kernels(fast, fast))
    assert [one.significant for one in judged] == [True, None]


def test_equal_runs_name_a_class_in_under_a_twentieth() -> None:
    """200 pairs of three repeats of 30 classes, whose repeats share a level: 5% of 200 is 10, and 19
    or more would come with a probability below 1%.
    """
    random = np.random.default_rng(7)
    names = [(f"aten::op_{one}", "kernel", one, 1) for one in range(30)]

    def run() -> StepKernels:
        repeats = []
        for level in random.normal(0, 0.02, 3):
            times = 50 * np.exp(level + random.normal(0, 0.01, len(names)))
            repeats.append({name: (1, us, 1, us) for name, us in zip(names, times, strict=True)})
        return kernels(*repeats)

    pairs = [class_changes(run(), run()) for _ in range(200)]
    assert sum(any(one.significant for one in pair) for pair in pairs) < 19
