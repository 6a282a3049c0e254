"""JSON in what an agent said or left."""

from __future__ import annotations

import json
import re
from typing import Any

from valkyrie.grade.config import Config
from valkyrie.grade.globs import TooManyFilesError, WorkspaceGlob
from valkyrie.grade.protocol import Given
from valkyrie.grade.workspace_files import MOST_BYTES, UnreadableError, is_file, read_text, workspace_of

_FENCE = re.compile(r"^```[ \t]*(?:json|JSON)?[ \t]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


class NoJsonError(Exception):
    """There is no JSON where it was looked for."""


class JsonSource:
    """Where a grader takes its JSON from: the output, or with `file` the one file of the workspace."""

    def __init__(self, config: Config) -> None:
        self.file = config.text("file", default="")
        self._glob = WorkspaceGlob(self.file)

    def load(self, given: Given) -> Any:
        """The document. Raises NoJsonError when it is missing or broken, GraderError without a workspace."""
        return self._from_file(given) if self.file else from_text(given.transcript.output)

    def _from_file(self, given: Given) -> Any:
        root = workspace_of(given.workspace)
        try:
            files = [path for path in self._glob.find(root, given.unseen) if is_file(path)]
            if len(files) != 1:
                raise NoJsonError(f"{len(files) or 'no'} files match {self.file}")
            return _parsed(read_text(files[0]), self.file)
        except TooManyFilesError as error:
            raise NoJsonError(str(error)) from None
        except UnreadableError as error:
            raise NoJsonError(f"{self.file} cannot be read: {error}") from None


def from_text(text: str) -> Any:
    """A text that is JSON, or whose last fenced block is."""
    if len(text) > MOST_BYTES:
        raise NoJsonError("the output is too large")
    try:
        return _parsed(text, "the output")
    except NoJsonError:
        blocks = _FENCE.findall(text)
        if not blocks:
            raise
    return _parsed(blocks[-1], "the output's last code block")


def _parsed(text: str, what: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refused)
    except ValueError as error:
        raise NoJsonError(f"{what} is not JSON: {error}") from None
    except RecursionError:
        raise NoJsonError(f"{what} is nested too deeply") from None


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")
