"""The contract every secret source passes, and a source in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from valkyrie.secrets.sources import SecretSource


class MemorySource:
    """Holds what it is given."""

    place = "memory"
    by_variable = False
    remote = False
    problems: Sequence[str] = ()

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = dict(values or {})

    def get(self, name: str) -> str | None:
        return self._values.get(name) or None


def check_source(make: Callable[[Mapping[str, str]], SecretSource]) -> None:
    """`make` gives a source that holds these values; raises AssertionError where the contract is broken."""
    values = {
        "PLAIN": "value-1",
        "SPACES": "  two words  ",
        "SYMBOLS": "a'b\"c$d`e\\f#g=h",
        "UNICODE": "schlüssel-☃",
        "LINES": "-----BEGIN-----\nabc\n-----END-----\n",
        "LONG": "x" * 60_000,
        "OBJECT": '{"user": "me", "password": "pässword-1", "port": 5432}',
    }
    source = make(values)
    for name, value in values.items():
        assert source.get(name) == value, f"{name} did not come back as it was given"
        assert source.get(name) == value, f"{name} differs the second time"
    for name in ("MISSING", "plain", "PLAI", ""):
        assert source.get(name) is None, f"{name!r} has a value"
    assert make({}).get("PLAIN") is None, "an empty source has values"
    assert source.place, "a source says where it is"
    shown = f"{source!r} {source!s} {source.place} {list(source.problems)}"
    assert not any(value.strip() in shown for value in values.values()), (
        "a value shows in the source's own words"
    )
