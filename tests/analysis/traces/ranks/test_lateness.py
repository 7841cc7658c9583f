"""Which rank is late: planted in traces of few and many steps, and the same on every surface."""

import math
from pathlib import Path

import pytest

from dpscope.analysis.findings.facts import Verdict
from dpscope.analysis.findings.no_overlap import waiting_findings
from dpscope.analysis.output.traces_screen import ReadJob
from dpscope.analysis.traces.ranks.job import Job, as_repeats
from dpscope.analysis.traces.ranks.lateness import LastRank, chance_of_some_rank, last_rank
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.helpers.known import known
from tests.helpers.made_verdicts import said
from tests.helpers.paced_ranks import paced

LATE = (40.0, 60.0)  # ms that each rank computes: rank 1 arrives 20 ms after rank 0
EARLY = LATE[::-1]


def last_of(analysis: Job) -> LastRank:
    return known(last_rank(analysis.step_collectives))


def texts(analysis: Job) -> tuple[Verdict, list[str]]:
    """The verdict, and all that is stated of waiting."""
    verdict = ReadJob(analysis).verdict
    messages = [finding.message for finding in waiting_findings(analysis)]
    late = verdict.fact("late")
    return verdict, [said(verdict, "next"), *([late.text] if late else []), *messages]


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 6, 10])
def test_a_rank_that_is_late_in_every_step_is_named_everywhere(tmp_path: Path, steps: int) -> None:
    """With two ranks one is last in all of n steps by chance in 2 x (1/2)^n of jobs, at most 5%
    from six steps on; of fewer, at least three, it is by how evenly it is late.
    """
    analysis = paced(tmp_path, [LATE] * steps)
    last = last_of(analysis)
    assert (last.rank, last.steps, last.of_steps) == (1, steps, steps)
    assert last.lateness_us == pytest.approx(20e3, abs=1)
    if steps >= 6:
        assert last.chance == pytest.approx(2 * 0.5**steps)
    assert last.significant == (steps >= 3)
    verdict, stated = texts(analysis)
    assert known(verdict.late).rank == verdict.record()["late_rank"] == 1
    assert all("rank 1" in text for text in stated)
    assert not any("no rank" in text.lower() for text in stated)
    doubt = f"last in {steps} of {steps} traced step{'s' if steps > 1 else ''}, which may be chance"
    assert (doubt in said(verdict, "late")) == (steps < 3)
    assert ("Trace more steps" in said(verdict, "next")) == (steps < 3)
    assert any("step to rank" in text for text in stated) == (steps >= 3)
    assert "rank 1 computes 65.0 ms, the other 45.0 ms" in said(verdict, "next")


def test_in_few_steps_a_rank_is_late_if_it_is_so_evenly(tmp_path: Path) -> None:
    """By 19, 20 and 21 ms t is 20 / (1 / sqrt(3)) = 34.64 with 2 degrees of freedom, by 2, 5 and 40
    ms 1.28: P(t >= x) = 1/2 - x / (2 sqrt(2 + x^2)).
    """
    for waits_ms, t in (((19.0, 20.0, 21.0), 34.64), ((2.0, 5.0, 40.0), 1.2844)):
        steps = [(40.0, 40.0 + wait) for wait in waits_ms]
        last = last_of(paced(tmp_path / f"{t}", steps))
        chance = 2 * (0.5 - t / (2 * math.sqrt(2 + t * t)))
        assert last.chance == pytest.approx(chance, rel=0.01)
        assert last.significant == (t > 10)


def test_one_pause_of_another_rank_does_not_withdraw_a_late_one(tmp_path: Path) -> None:
    """Rank 0 pauses once for 120 ms more: half of the waiting is for it, but rank 1 is last in 7 of
    8 steps.
    """
    analysis = paced(tmp_path, [LATE] * 4 + [(160.0, 40.0)] + [LATE] * 3)
    last = last_of(analysis)
    assert (last.rank, last.steps, last.of_steps, last.others) == (1, 7, 8, ((0, 1),))
    assert last.lateness_us == pytest.approx(7 * 20e3 / 8, abs=1)
    assert last.chance == pytest.approx(2 * (8 + 1) / 2**8)
    assert known(texts(analysis)[0].late).rank == 1


def test_every_repeat_counts(tmp_path: Path) -> None:
    """Three steps each: in two repeats alike 6 of 6. Where another rank is late in one of five, it
    is the repeats that differ.
    """
    late, early = (
        paced(tmp_path / name, [own] * 3) for name, own in (("late", LATE), ("early", EARLY))
    )
    both = known(as_repeats([late, late]).last_rank)
    assert (both.rank, both.steps, both.of_steps, both.share) == (1, 6, 6, 1.0)
    assert both.significant
    once = known(as_repeats([late] * 4 + [early]).last_rank)
    assert (once.steps, once.of_steps, once.stands_out) == (12, 15, False)
    assert once.turns == "rank 1 in 12 of 15 steps, rank 0 in 3"


def test_the_three_ranks_that_are_late_most_often_are_named() -> None:
    four = LastRank(1, 4, 6, 12, lateness_us=1.0, others=((0, 3), (3, 2), (2, 1)))
    assert four.turns == "rank 1 in 6 of 12 steps, rank 0 in 3, rank 3 in 2"
    assert not four.stands_out  # of four ranks 5/8 of the steps would


def test_nobody_is_late_where_one_rank_was_read(tmp_path: Path) -> None:
    paced(tmp_path, [LATE] * 6)
    alone = analyze_traces([tmp_path / "0_0.pt.trace.json"])
    assert last_rank(alone.step_collectives) is None
    verdict, stated = texts(alone)
    assert verdict.late is None
    assert "read the traces of all ranks" in said(verdict, "next")
    assert not any("step to rank" in text for text in stated)


@pytest.mark.parametrize(
    ("ranks", "steps", "of_steps", "chance"),
    [
        (2, 3, 3, 0.25),  # rank 0 or rank 1 in all three, 2 x (1/2)^3
        (2, 6, 6, 2 / 64),
        (4, 3, 3, 1 / 16),  # 4 x (1/4)^3
        (2, 9, 10, 22 / 1024),  # 2 x (10 + 1) / 1024
        (2, 0, 3, 1.0),
    ],
)
def test_chance_by_hand(ranks: int, steps: int, of_steps: int, chance: float) -> None:
    assert chance_of_some_rank(ranks, steps, of_steps) == pytest.approx(chance)
