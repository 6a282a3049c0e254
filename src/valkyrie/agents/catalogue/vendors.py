"""Whose model a name means, for programs that speak to several vendors."""

from __future__ import annotations

import re
from collections.abc import Mapping

from valkyrie.errors import UsageError

_FAMILIES: Mapping[str, str] = {
    "anthropic": r"claude",
    "openai": r"gpt|chatgpt|codex|o\d",
    "google": r"gemini|gemma",
}
ELSEWHERE = "custom"
"""Stands for whoever serves the model at `--model-url`, when its name does not say it."""


def vendor_and_model(agent: str, model: str, *, served: bool) -> tuple[str, str]:
    """`vendor/name` apart, or the vendor known by the family of the name.

    A model that is `served` at an address of its own may have any name.
    """
    vendor, slash, name = model.partition("/")
    if slash and vendor and name:
        return vendor, name
    for vendor, family in _FAMILIES.items():
        if re.match(rf"(?:{family})(?:[-.\d]|$)", model, re.IGNORECASE):
            return vendor, model
    if served and model and not slash:
        return ELSEWHERE, model
    raise UsageError(f"{agent} is told whose model it is: write it as vendor/model, not {model[:80]!r}.")
