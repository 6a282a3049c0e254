from __future__ import annotations

import pytest

from valkyrie.benchmarks.protocol import expand, referenced
from valkyrie.errors import UserError

HOST = {"KEY": "secret", "EMPTY": "", "OTHER": "never"}


@pytest.mark.parametrize(
    ("value", "filled"),
    [
        ("plain", "plain"),
        ("${KEY}", "secret"),
        ("a-${KEY}-${KEY}", "a-secret-secret"),
        ("${KEY:-x}", "secret"),
        ("${NONE:-x}", "x"),
        ("${NONE:-}", ""),
        ("${EMPTY:-x}", "x"),
        ("${EMPTY}", ""),
        ("$KEY ${ KEY } ${KEY", "$KEY ${ KEY } ${KEY"),
        ("${NONE:-${KEY}", "${KEY"),
    ],
)
def test_references(value: str, filled: str) -> None:
    assert expand({"V": value}, HOST, "task t") == {"V": filled}


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(UserError, match=r"task t asks for NONE, NADA .*\$\{NONE:-value\}") as caught:
        expand({"A": "${NONE}", "B": "${NADA}${NONE}"}, HOST, "task t")
    assert caught.value.cause == "missing_variable"


def test_what_is_asked_for() -> None:
    assert referenced({"A": "${X}${Y:-1}", "B": "${X} $Z"}) == ["X", "Y"]
