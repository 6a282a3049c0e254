"""Instructions from a template and a record, whatever characters the record has."""

from __future__ import annotations

import re

_PLACE = re.compile(r"@([A-Z_]+)@")


def fill(template: str, **values: str) -> str:
    """The template with its `@NAME@` replaced, once: a value that looks like a place stays as it is."""
    return _PLACE.sub(lambda match: values[match[1].lower()], template)


def fenced(text: str, language: str = "") -> str:
    """A fenced block that nothing in the text can end."""
    longest = max((len(run) for run in re.findall("`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
