"""The verbs of a tracker, noted down as a command line asks for them; single ones can be scripted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from valkyrie.tracker.local import LocalTracker
from valkyrie.tracker.protocol import Tracker

VERBS = [name for name, member in vars(Tracker).items() if callable(member) and not name.startswith("_")]


class RecordedTracker:
    """Notes what is asked of every local tracker; the tracker itself answers, on a real store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, Callable[..., Any]] = {}
        """Verb → what answers instead of the tracker: for what no store can be brought to say."""
        self.changes: dict[str, Sequence[Callable[[], object]]] = {}
        """Verb that goes on → what happens after its first view, its second, …"""
        self._failures: dict[str, tuple[BaseException, Callable[[Any], bool]]] = {}
        self._asked: list[tuple[str, tuple[Any, ...]]] = []
        self._monkeypatch = monkeypatch
        made = LocalTracker.__init__

        def make(tracker: LocalTracker, *words: Any, **named: Any) -> None:
            made(tracker, *words, **named)
            for verb in VERBS:
                setattr(tracker, verb, self._recorded(verb, getattr(tracker, verb)))

        monkeypatch.setattr(LocalTracker, "__init__", make)

    def use(self, tracker: LocalTracker) -> None:
        """Let commands open this tracker instead of the person's own."""
        self._monkeypatch.setattr("valkyrie.tracker._on_this_machine", lambda _to_start: tracker)

    def asked(self, *verbs: str) -> list[Any]:
        """The arguments of every call of these verbs (of any), in order; the only one where there is one."""
        found = [words for name, words in self._asked if not verbs or name in verbs]
        return [words[0] if len(words) == 1 else words for words in found]

    def fail(
        self, verb: str, error: BaseException, after: int = 0, when: Callable[..., bool] | None = None
    ) -> None:
        """Raise this error from a verb once it was answered so many times; `when`: asked with such words."""
        first = len(self.asked(verb)) + after
        self._failures[verb] = (
            error,
            lambda words: len(self.asked(verb)) > first and (not when or when(*words)),
        )

    def forget(self) -> None:
        self._asked.clear()

    def _recorded(self, verb: str, real: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(real)

        def call(*words: Any, **named: Any) -> Any:
            given = signature.bind(*words, **named)
            asked = tuple(given.arguments.values())
            self._asked.append((verb, asked))
            error, fails = self._failures.get(verb, (None, None))
            if error and fails and fails(asked):
                raise error
            answer = self.answers.get(verb, real)(*words, **named)
            return _changing(answer, self.changes[verb]) if verb in self.changes else answer

        return call


def _changing(views: Iterator[Any], changes: Sequence[Callable[[], object]]) -> Iterator[Any]:
    left = iter(changes)
    for view in views:
        yield view
        next(left, lambda: None)()
