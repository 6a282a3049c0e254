"""What a Markdown text points to, and where; code is not prose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_INLINE_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_LINK = re.compile(
    r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(\s*(<[^<>]*>|[^\s()]*(?:\([^\s()]*\)[^\s()]*)*)[^()]*\)"
)
_DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:\s*(<[^<>]*>|\S+)")
_URL = re.compile(r"https?://[^\s<>\"'`\])}]+", re.IGNORECASE)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True, slots=True)
class Reference:
    """One link, as written."""

    target: str
    line: int
    column: int

    @property
    def path(self) -> str | None:
        """The path it names, without `?query` and `#fragment`; None where it names none."""
        if _SCHEME.match(self.target) or self.target.startswith("//"):
            return None
        return unquote(re.split(r"[?#]", self.target, maxsplit=1)[0]) or None


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, code blanked out so that columns stay."""
    fence = ""
    for number, line in enumerate(text.splitlines(), start=1):
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line[mark.end() :].strip():
                fence = ""
            continue
        if mark:
            fence = mark[1]
            continue
        yield number, _INLINE_CODE.sub(lambda code: " " * len(code[0]), line)


def references(text: str) -> Iterator[Reference]:
    """Links, images and link definitions, in order."""
    for number, line in prose(text):
        for pattern in (_DEFINITION, _LINK):
            for match in pattern.finditer(line):
                target = match[1].removeprefix("<").removesuffix(">")
                if target:
                    yield Reference(target, number, match.start(1) + 1)


def addresses(text: str) -> Iterator[Reference]:
    """Every http(s) address, in code too: an agent follows those as well."""
    for number, line in enumerate(text.splitlines(), start=1):
        for match in _URL.finditer(line):
            yield Reference(match[0].rstrip(".,;:!?*_"), number, match.start() + 1)
