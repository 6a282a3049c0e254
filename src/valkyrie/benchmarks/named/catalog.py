"""The public benchmarks that can be added by name, as `catalog.toml` describes them."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from valkyrie.suggest import did_you_mean

if TYPE_CHECKING:
    from valkyrie.benchmarks.named.drafts import Converter

_FILE = Path(__file__).with_name("catalog.toml")


@dataclass(frozen=True, slots=True)
class KnownBad:
    """Tasks whose grade says little about an agent."""

    ids: Sequence[str]
    """The data set's own ids, or globs."""
    why: str


@dataclass(frozen=True, slots=True)
class PublicBenchmark:
    """One public benchmark."""

    name: str
    title: str
    what: str
    kind: str
    """`converter`: records become tasks. `tasks`: a repository of task directories."""
    tasks: int
    """How many there are when all of it is brought."""
    metric: str
    published: Sequence[str]
    """Where, in words."""
    bring: str
    """What `--from` takes."""
    licence: str
    image: str
    network: str
    """What it is needed for; `no` when it is not."""
    oracle: bool
    """Whether the data has a gold answer."""
    aliases: Sequence[str] = ()
    converter: str = ""
    """The module of this package that converts."""
    variant: str = ""
    git: str = ""
    """Address of the repository, for those that are one."""
    commit: str = ""
    """What is fetched of it unless told otherwise."""
    notes: Sequence[str] = ()
    known_bad: Sequence[KnownBad] = ()

    @property
    def fetches(self) -> bool:
        """Whether it can be added without `--from`."""
        return bool(self.git and self.commit)

    def why_bad(self, *ids: str) -> str | None:
        """Why the task of one of these ids is known to be bad; None when it is not."""
        for bad in self.known_bad:
            for pattern in bad.ids:
                if any(fnmatchcase(one.lower(), pattern.lower()) for one in ids):
                    return bad.why
        return None


@cache
def catalog() -> tuple[PublicBenchmark, ...]:
    """Every public benchmark that is known, by name."""
    tables = tomllib.loads(_FILE.read_text(encoding="utf-8"))["benchmark"]
    return tuple(sorted(map(_entry, tables), key=lambda entry: entry.name))


def _entry(table: dict[str, Any]) -> PublicBenchmark:
    unknown = set(table) - {field.name for field in fields(PublicBenchmark)}
    assert not unknown, f"catalog.toml: {table['name']} has unknown keys {unknown}"
    known_bad = tuple(KnownBad(tuple(bad["ids"]), bad["why"]) for bad in table.pop("known_bad", ()))
    return PublicBenchmark(**table, known_bad=known_bad)


def find(text: str) -> PublicBenchmark | None:
    """The benchmark people mean by `text`, however they write it."""
    return _by_word().get(folded(text)) if text.strip() else None


def folded(text: str) -> str:
    """Letters and digits only, none of them large."""
    return "".join(char for char in text.casefold() if char.isalnum())


@cache
def _by_word() -> dict[str, PublicBenchmark]:
    found: dict[str, PublicBenchmark] = {}
    for entry in catalog():
        for word in (entry.name, entry.title, *entry.aliases):
            other = found.setdefault(folded(word), entry)
            assert other is entry, f"catalog.toml: {word!r} means both {other.name} and {entry.name}"
    return found


def names() -> list[str]:
    return [entry.name for entry in catalog()]


def suggestion(text: str) -> str:
    """` Did you mean …?`, or nothing."""
    return did_you_mean(text.casefold(), names())


def converter_of(entry: PublicBenchmark) -> Converter:
    """The module that converts this benchmark's records."""
    module = importlib.import_module(f"valkyrie.benchmarks.named.{entry.converter}")
    return cast("Converter", module)
