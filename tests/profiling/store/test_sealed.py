"""Sealed values: what was sealed comes back, fit to be printed, and nothing else does."""

import pytest

from dpscope.profiling.store.sealed import sealed, unsealed


def test_a_sealed_value_comes_back_without_what_a_terminal_acts_on() -> None:
    value = {"a": ["\x1b[31mred\x9b", 1, None], "b\u00e9": "\u202eé"}
    stored = sealed("secret", "name", value).encode()
    assert b"secret" not in stored
    assert unsealed("secret", "name", stored, dict) == {"a": [" [31mred ", 1, None], "b\u00e9": " é"}


@pytest.mark.parametrize(
    ("secret", "name", "change"),
    [
        ("another", "name", lambda stored: stored),
        ("secret", "other", lambda stored: stored),
        ("secret", "name", lambda stored: stored[:-1] + b"2"),
        ("secret", "name", lambda stored: b""),
        ("secret", "name", lambda stored: "é".encode() * 64),
    ],
)
def test_another_secret_name_or_content_is_refused(secret: str, name: str, change: object) -> None:
    stored = sealed("secret", "name", 1).encode()
    with pytest.raises(ValueError, match="its seal is wrong"):
        unsealed(secret, name, change(stored), int)  # type: ignore[operator]


def test_a_value_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected `int`, got `str`"):
        unsealed("s", "n", sealed("s", "n", "text").encode(), int)
