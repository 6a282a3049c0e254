"""What a command says: to people in lines, to a program in one document, never a secret."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import click

from benchmark_runner.artifacts import ArtifactError
from benchmark_runner.llm import without_logins
from benchmark_runner.opening import RunError
from sandboxes.masker import Masker

if TYPE_CHECKING:
    from benchmark_runner.llm import LLMConfig

SHORTEST_SECRET = 8
"""Characters: MAX_TOKENS=4096 holds no secret, and blotting out every 4096 would hide what matters."""


_CONTROLS = re.compile(
    r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|\[[0-?]*[ -/]*[@-~]|[ -~])?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
)
_COMMANDS = re.compile(r"^[^\S\n]*(?=::)|#(?=#\w*\[)", re.MULTILINE)
"""What CI systems take for commands: `::error::` at the start of a line, `##vso[…]` anywhere."""
_JSON_COMMANDS = re.compile(r"##(?=\w*\[)")


def printable(text: str) -> str:
    """Return text that no terminal and no CI system obeys, whatever a service or a model put into it."""
    plain = _CONTROLS.sub("", text)
    return _COMMANDS.sub(lambda found: f"{found[0]}{' ' if found[0].endswith('#') else '| '}", plain)


@dataclass(slots=True)
class Telling:
    """Says things: to people on standard output, or to a program in one document at the end."""

    as_json: bool
    _sink: TextIO | None = None
    """Where the document goes, when that is not what standard output is now."""

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within the block the document has standard output for itself: an author's code may print."""
        if not self.as_json:
            yield
            return
        with _standard_output_set_apart() as self._sink:
            yield
        self._sink = None

    def line(self, text: str) -> None:
        """For people."""
        click.echo(printable(text), err=self.as_json)

    def lines(self, lines: Sequence[str]) -> None:
        """For people."""
        for text in lines:
            self.line(text)

    def document(self, **fields: Any) -> None:
        """For programs."""
        if self.as_json:
            click.echo(_JSON_COMMANDS.sub(r"#\\u0023", json.dumps(fields)), file=self._sink)


@contextmanager
def _standard_output_set_apart() -> Iterator[TextIO]:
    """Standard output; what else is printed within the block, by children too, goes to standard error."""
    real = sys.stdout
    try:
        own = real.fileno() == 1
    except (OSError, ValueError):
        own = False
    if not own:
        with redirect_stdout(sys.stderr):
            yield real
        return
    real.flush()
    with open(os.dup(1), "w", encoding="utf-8") as kept:
        os.dup2(2, 1)
        try:
            yield kept
        finally:
            real.flush()
            kept.flush()
            os.dup2(kept.fileno(), 1)


def redactor(config: LLMConfig | None = None) -> Callable[[str], str]:
    """Takes every secret the environment, the options and URLs hold out of what is written or said."""
    secrets = {name: value for name, value in os.environ.items() if len(value) >= SHORTEST_SECRET}
    if config is not None and config.custom_api_key is not None:
        secrets["CUSTOM_API_KEY"] = config.custom_api_key.get_secret_value()
    masker = Masker.from_settings(secrets)
    return lambda text: without_logins(masker.text(text))


@contextmanager
def in_words(config: LLMConfig | None = None) -> Iterator[None]:
    """What a person can mend is said to them, without a traceback."""
    try:
        yield
    except (RunError, ArtifactError) as error:
        raise click.ClickException(printable(redactor(config)(str(error)))) from None
    except OSError as error:
        if error.filename is None:
            raise
        raise click.ClickException(f"{error.filename}: {error.strerror}.") from None
