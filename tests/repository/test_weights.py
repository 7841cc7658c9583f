"""The table of what exceeds a cap is current, and what its tool allows."""

from tests.repository import weights


def test_the_table_of_weights_is_current() -> None:
    now, before = weights.present(), weights.stored()
    fallen = weights.stale(before.files, now.files, weights.SLACK) | weights.stale(
        before.functions, now.functions, 0
    )
    assert fallen == {}, f"run {weights.COMMAND}"
    assert now.folders == before.folders, f"run {weights.COMMAND}"
