"""Jobs of one thread for each process, started where the models are that they name."""

from collections.abc import Iterator

import pytest

from tests.helpers.paths import USER_MODELS


@pytest.fixture(autouse=True, scope="module")
def _where_the_models_are() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(USER_MODELS)
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
