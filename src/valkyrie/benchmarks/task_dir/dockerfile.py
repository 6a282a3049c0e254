"""Read Dockerfiles: what only BuildKit understands, and the steps to repeat where the image is not used."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_WITHOUT_EFFECT_HERE = frozenset(
    ["USER", "CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "MAINTAINER", "STOPSIGNAL", "VOLUME", "HEALTHCHECK"]
)
_VARIABLE = re.compile(r"\\\$|\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::([-+])([^}]*))?\})", re.ASCII)
_HEREDOC = re.compile(r"(?<!<)<<-?\s*([\"']?)([A-Za-z_]\w*)\1")
_BUILDKIT_FLAGS: Mapping[str, tuple[str, ...]] = {
    "RUN": ("--mount", "--network", "--security", "--device"),
    "COPY": ("--chmod", "--link", "--parents", "--exclude"),
    "ADD": ("--chmod", "--link", "--checksum", "--keep-git-dir", "--exclude", "--unpack"),
}
_BUILDKIT_ARGUMENT = re.compile("(TARGET|BUILD)(PLATFORM|OS|ARCH|VARIANT)")
_FLAG = re.compile(r"--[a-z-]+(=\S+)?\s+")


@dataclass(frozen=True, slots=True)
class MakeFolder:
    """WORKDIR: a folder that must exist from here on."""

    path: str


@dataclass(frozen=True, slots=True)
class CopyFiles:
    """COPY or ADD of files that lie beside the Dockerfile."""

    sources: tuple[str, ...]
    """Relative to the folder of the Dockerfile; may hold globs."""
    target: str
    """Absolute; a trailing slash means a folder."""


@dataclass(frozen=True, slots=True)
class RunProgram:
    """RUN: one program, with the folder and environment in force at that line."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    line: int


Step = MakeFolder | CopyFiles | RunProgram


@dataclass(slots=True)
class Recipe:
    """What is left of a Dockerfile without its base image."""

    steps: list[Step] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    workdir: str | None = None
    notes: list[str] = field(default_factory=list)
    """Lines that could not be honoured, and why."""


def needs_of_buildkit(text: str) -> list[str]:
    """Return the lines that only BuildKit understands, each as `line N: what`."""
    notes: list[str] = []
    found: list[tuple[int, str]] = []
    for number, keyword, rest in _instructions(text, notes):
        flags, _ = _split_flags(rest)
        for flag in (one.partition("=")[0] for one in flags):
            if flag in _BUILDKIT_FLAGS.get(keyword, ()):
                found.append((number, f"{keyword} {flag}"))
        if keyword == "ARG" and _BUILDKIT_ARGUMENT.fullmatch(rest.strip()):
            found.append((number, f"ARG {rest.strip()} (filled by the builder)"))
        if keyword == "FROM" and any("BUILDPLATFORM" in flag or "TARGETPLATFORM" in flag for flag in flags):
            found.append((number, f"FROM {flags[0]}"))
    for note in notes:
        place, _, words = note.partition(": ")
        found.append((int(place.removeprefix("line ")), words.removesuffix(" is not honoured")))
    return [f"line {number}: {what}" for number, what in sorted(found)]


def read_dockerfile(text: str) -> Recipe:
    """The last stage of a Dockerfile as steps to repeat in order."""
    return _Reader().read(text)


class _Reader:
    def __init__(self) -> None:
        self._recipe = Recipe()
        self._args: dict[str, str] = {}

    def read(self, text: str) -> Recipe:
        for number, keyword, rest in _instructions(text, self._recipe.notes):
            if keyword == "FROM":
                self._new_stage(number, rest)
            elif keyword == "ENV":
                self._recipe.env.update(self._pairs(rest))
            elif keyword == "ARG":
                name, _, value = rest.partition("=")
                self._args[name.strip()] = self._fill(_unquoted(value))
            elif keyword == "WORKDIR":
                self._workdir(self._fill(_unquoted(rest)))
            elif keyword in ("COPY", "ADD"):
                self._copy(number, keyword, rest)
            elif keyword == "RUN":
                self._run(number, rest)
            elif keyword not in _WITHOUT_EFFECT_HERE:
                self._recipe.notes.append(f"line {number}: {keyword} is not honoured")
        return self._recipe

    def _new_stage(self, number: int, rest: str) -> None:
        if self._recipe.steps:
            notes = [*self._recipe.notes, f"line {number}: earlier build stages are left out"]
            self._recipe = Recipe(notes=notes)
        self._recipe.notes.append(f"line {number}: base image {rest.split()[0] if rest else '?'} is not used")

    def _workdir(self, path: str) -> None:
        self._recipe.workdir = posixpath.normpath(posixpath.join(self._recipe.workdir or "/", path))
        self._recipe.steps.append(MakeFolder(self._recipe.workdir))

    def _copy(self, number: int, keyword: str, rest: str) -> None:
        flags, rest = _split_flags(rest)
        if any(flag.startswith("--from") for flag in flags):
            self._recipe.notes.append(f"line {number}: {keyword} from another stage or image is not honoured")
            return
        listed = _json_list(rest)
        words = [self._fill(word) for word in (listed if listed is not None else _words(rest))]
        if len(words) < 2:
            self._recipe.notes.append(f"line {number}: {keyword} needs a source and a target")
            return
        remote = [word for word in words[:-1] if "://" in word or word.startswith("git@")]
        for source in remote:
            self._recipe.notes.append(f"line {number}: {keyword} of {source} needs the network; left out")
        local = tuple(word.lstrip("/") or "." for word in words[:-1] if word not in remote)
        if not local:
            return
        target = posixpath.join(self._recipe.workdir or "/", words[-1])
        into_folder = words[-1].endswith(("/", "/.")) or words[-1] in (".", "..") or len(words) > 2
        normal = posixpath.normpath(target)
        self._recipe.steps.append(CopyFiles(local, normal.rstrip("/") + "/" if into_folder else normal))

    def _run(self, number: int, rest: str) -> None:
        _, script = _split_flags(rest)
        listed = _json_list(script)
        argv = tuple(listed) if listed else ("/bin/sh", "-c", script)
        env = {**self._args, **self._recipe.env}
        self._recipe.steps.append(RunProgram(argv, self._recipe.workdir or "/", env, number))

    def _pairs(self, rest: str) -> dict[str, str]:
        first = rest.split(None, 1)[0] if rest.strip() else ""
        if "=" not in first:
            name, _, value = rest.strip().partition(" ")
            return {name: self._fill(value.strip())} if name else {}
        pairs = (word.partition("=") for word in _words(rest))
        return {name: self._fill(value) for name, equals, value in pairs if equals}

    def _fill(self, text: str) -> str:
        known = {"PATH": DEFAULT_PATH, **self._args, **self._recipe.env}

        def value(match: re.Match[str]) -> str:
            if match[0] == "\\$":
                return "$"
            found = known.get(match[1] or match[2], "")
            if match[3] == "-":
                return found or match[4]
            if match[3] == "+":
                return match[4] if found else ""
            return found

        return _VARIABLE.sub(value, text)


def _instructions(text: str, notes: list[str]) -> Iterator[tuple[int, str, str]]:
    """(line number, keyword, rest) with continuations joined; instructions with a heredoc are skipped."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        number, joined = at + 1, lines[at].strip()
        at += 1
        if not joined or joined.startswith("#"):
            continue
        while joined.endswith("\\"):
            while at < len(lines) and (not lines[at].strip() or lines[at].lstrip().startswith("#")):
                at += 1
            joined = joined[:-1] + (lines[at].rstrip() if at < len(lines) else "")
            at += 1
        keyword, _, rest = joined.replace("\t", " ").partition(" ")
        after = _after_heredocs(rest, lines, at) if keyword.upper() in ("RUN", "COPY", "ADD") else at
        if after > at:
            notes.append(f"line {number}: {keyword.upper()} with a heredoc is not honoured")
            at = after
            continue
        yield number, keyword.upper(), rest.strip()


def _after_heredocs(rest: str, lines: list[str], at: int) -> int:
    """Return where the text goes on after the heredocs that `rest` opens; `at` when it opens none."""
    for match in _HEREDOC.finditer(rest):
        ends = (index for index in range(at, len(lines)) if lines[index].strip() == match[2])
        at = next(ends, at - 1) + 1
    return at


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _split_flags(rest: str) -> tuple[list[str], str]:
    flags: list[str] = []
    while match := _FLAG.match(rest):
        flags.append(match[0].strip())
        rest = rest[match.end() :]
    return flags, rest


def _json_list(text: str) -> list[str] | None:
    if not text.lstrip().startswith("["):
        return None
    try:
        listed = json.loads(text)
    except ValueError:
        return None
    return listed if isinstance(listed, list) and all(isinstance(item, str) for item in listed) else None


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
