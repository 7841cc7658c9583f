"""The example run as a base of predictions, loaded once for each file of tests."""

import pytest

from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.what_if.bases import Question, base_of_run
from tests.helpers.known import known
from tests.helpers.paths import EXAMPLE_RUN


@pytest.fixture(scope="module")
def question() -> Question:
    return base_of_run(EXAMPLE_RUN, None)


@pytest.fixture(scope="module")
def cell(question: Question) -> Job:
    return known(question.cell)
