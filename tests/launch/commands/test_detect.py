"""`--detect`: what is refused."""

import pytest

from dpscope.launch.commands.detect import check_limit, first_round
from dpscope.launch.planning.run_config import load_config
from dpscope.profiling.store.errors import DpscopeError


def test_a_limit_is_a_time() -> None:
    check_limit(None)
    for seconds in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(
            DpscopeError, match=f"--detect-limit {seconds:g}: must be above 0 seconds"
        ):
            check_limit(seconds)


def test_repeats_of_a_file_contradict() -> None:
    assert first_round(load_config(None, {})).measurement.repeats == 3
    with pytest.raises(
        DpscopeError, match="--detect and repeats = 4: --detect chooses the repeats"
    ):
        first_round(load_config(None, {"repeats": 4}))
