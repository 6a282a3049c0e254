"""Values for `config init`: from the config file, else the environment, else a person, each checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import click

from valkyrie.cli.output import Output
from valkyrie.config import Key, Value, find_key, load, masked
from valkyrie.errors import UsageError, ValkyrieError
from valkyrie.report.formats import safe

Check = Callable[[str], str | None]
"""Raises ValkyrieError when the value is no good; may say something about it."""

FILE, TYPED = "config file", "typed"


@dataclass(frozen=True, slots=True)
class Answer:
    """A value, and where it was found."""

    key: Key
    value: Value
    source: str

    @property
    def shown(self) -> str:
        """As it may be printed."""
        return masked(str(self.value)) if self.key.secret else safe(self.value)


@dataclass(frozen=True, slots=True)
class Question:
    """What is wanted, and how a person is asked for it."""

    name: str
    words: str
    """What it is, for the prompt."""
    required: bool = True
    check: Check | None = None
    kept: bool = True
    """What the config file says counts: not when it was said of another mode."""
    env: str | None = None
    """Environment variable to look at, where that is not the key's own."""


class Asker:
    """Asks one question after another; with nobody to ask, notes what is missing and checks at the end."""

    def __init__(self, output: Output, *, interactive: bool) -> None:
        self.answers: dict[str, Answer] = {}
        self.interactive = interactive
        self._output = output
        self._held = load()
        self._missing: list[Question] = []
        self._unchecked: list[tuple[Question, list[Answer]]] = []
        self._noted: set[str] = set()

    def ask(self, question: Question, *, again: bool = False) -> Value | None:
        """The value; None when there is none and none is required. `again`: what was found was no good."""
        found = [] if again else self._found(question)
        if not self.interactive:
            if found:
                self._unchecked.append((question, found))
            elif question.required:
                self._missing.append(question)
        answer = self._until_good(question, found) if self.interactive else next(iter(found), None)
        if answer is None:
            self.answers.pop(question.name, None)
            return None
        self.answers[question.name] = answer
        if self.interactive:
            self.say(answer)
        return answer.value

    def finds(self, question: Question) -> bool:
        """Whether nobody would have to be asked."""
        return bool(self._found(question))

    def finish(self) -> None:
        """With nobody to ask: one error for all that is missing, then every check."""
        if self._missing:
            wanted = "\n".join(f"  {one.name}: {_ways(one)}" for one in self._missing)
            raise UsageError(f"Nothing was written; these values are missing:\n{wanted}")
        for question, (*others, last) in self._unchecked:
            answer, said = next(self._good(question, others), (last, None))
            if answer is last and question.check:
                said = question.check(str(last.value))
            self.answers[question.name] = answer
            self.say(answer, said)

    def _found(self, question: Question) -> list[Answer]:
        """What the config file and the environment say, where they differ both."""
        key = find_key(question.name)
        variable = question.env or key.env
        given = os.environ.get(variable) if variable else None
        found = []
        if question.kept and key.name in self._held:
            found.append(Answer(key, self._held[key.name], FILE))
            if not given or given == str(self._held[key.name]):
                return found
            self._note_once(
                f"Note: {variable} in the environment differs from {key.name} in the config file. "
                "Other commands use the environment's."
            )
        if not given:
            return found
        try:
            return [*found, Answer(key, key.parse(given), f"environment: {variable}")]
        except ValueError as error:
            raise UsageError(f"Environment variable {variable}: {error}.", cause="config") from None

    def _note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._output.note(text)

    def _good(self, question: Question, found: list[Answer]) -> Iterator[tuple[Answer, str | None]]:
        """Those that pass the check, with what it said; why the others do not is told."""
        for answer in found:
            try:
                yield answer, question.check(str(answer.value)) if question.check else None
            except ValkyrieError as error:
                self._output.note(f"{question.name} ({answer.source}): {safe(error)}")

    def _until_good(self, question: Question, found: list[Answer]) -> Answer | None:
        """What was found, else ask, and again while the answer is no good; an empty one ends it."""
        while True:
            for answer, said in self._good(question, found):
                if said:
                    self._output.line(f"  {said}")
                return answer
            typed = self._typed(question)
            if typed is None:
                return None
            found = [typed]

    def _typed(self, question: Question) -> Answer | None:
        key = find_key(question.name)
        nothing = "" if question.required else " (empty: none)"
        while True:
            text = str(
                click.prompt(
                    f"{question.words}{nothing}",
                    default="",
                    show_default=False,
                    hide_input=key.secret,
                    err=True,
                )
            ).strip()
            if not text and question.required:
                raise click.ClickException(f"{question.name} is needed; nothing was written.")
            if not text:
                return None
            try:
                return Answer(key, key.parse(text), TYPED)
            except ValueError as error:
                self._output.note(f"{error}.")

    def say(self, answer: Answer, said: str | None = None) -> None:
        """Print where a value came from, and what its check found."""
        self._output.line(f"  {answer.key.name} = {answer.shown}  ({answer.source})")
        if said:
            self._output.line(f"  {said}")


def _ways(question: Question) -> str:
    variable = question.env or find_key(question.name).env
    config = f"`valk config set {question.name}`"
    return f"export {variable}=…, or {config}" if variable else config
