"""A mapping of secrets that does not tell them by accident."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class Secrets(Mapping[str, str]):
    """Environment variable → value. Printing it shows the names only; it cannot be pickled."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(f'{name}=***' for name in self._values)})"

    def __reduce__(self) -> str:
        raise TypeError("secrets are handed over the control socket, never pickled")
