"""Reading a table of derived values: digits as printed, and what each mistake is told as."""

from pathlib import Path

import pytest

from dpscope.profiling.store.errors import DpscopeError
from examples.published.audit.table import read_claims
from tests.helpers.paths import PUBLISHED


def test_the_published_claims() -> None:
    claims = read_claims(PUBLISHED / "derived_values.csv")
    assert len(claims) == 104
    assert claims[14].printed_value == "-0.1519639492034912"  # kept digit by digit


@pytest.mark.parametrize(
    ("row", "part"),
    [
        ("speedup,T1/TN,about two,1", "column printed_value: 'about two'"),
        ("speedup,,2.0,1", "column method"),
        ("speedup,T1/TN,2.0,", "column unit"),
    ],
)
def test_mistakes_in_claims(tmp_path: Path, row: str, part: str) -> None:
    path = tmp_path / "claims.csv"
    path.write_text(f"quantity,method,printed_value,unit\n{row}\n")
    with pytest.raises(DpscopeError, match=part):
        read_claims(path)
