"""`dpscope compare`: its option."""

import pytest

from dpscope.launch.commands.compare import parse_share
from dpscope.profiling.store.errors import DpscopeError


def test_shares() -> None:
    shares = {"5%": 0.05, "0.05": 0.05, "0": 0.0, "1": 1.0, "700%": 7.0}
    assert {text: parse_share(text) for text in shares} == pytest.approx(shares)
    for text in ("much", "-5%", "nan", "inf", "5", "1.5"):
        with pytest.raises(DpscopeError, match="--fail-over"):
            parse_share(text)
