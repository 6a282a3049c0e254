"""`agent[:model]`, read: the agent ends at the first colon, unless a folder or a class has one itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import click

from valkyrie.views.jobs import JobAgent

_CLASS = re.compile(r"(?P<package>[A-Za-z_]\w*)(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?=:|$)")
_ELSEWHERE = ("upload:", "file:/")
"""Words for agents in which every colon is their own."""


def parse_agent(word: str) -> JobAgent:
    """The agent and the model a word names; ValueError says what is wrong with it."""
    name, model = _split(word)
    if not name:
        raise ValueError(f"{word!r} names no agent; it is AGENT or AGENT:MODEL.")
    if model == "":
        raise ValueError(f"{word!r} has a colon and no model after it; it is AGENT or AGENT:MODEL.")
    return JobAgent(name, model)


def split_agent(word: str, model: str | None) -> tuple[str, str | None]:
    """Return agent and model of `--agent WORD` and `--model`; UsageError where they name two models."""
    try:
        agent = parse_agent(word)
    except ValueError as error:
        raise click.UsageError(f"--agent {error}") from None
    if agent.model is not None and model not in (None, agent.model):
        raise click.UsageError(f"--agent {word} and --model {model} name two models: leave one out.")
    return agent.agent, agent.model or model


def with_models(agents: Sequence[JobAgent], model: str | None = None) -> list[JobAgent]:
    """Return agents with a model each: their own, else `model`; UsageError for one that needs one."""
    found = [one if one.model else replace(one, model=model) for one in agents]
    for one in found:
        if one.model is None and _needs_model(one.agent):
            raise click.UsageError(f"{one.agent} needs a model: --agent {one.agent}:MODEL")
    return found


def _split(word: str) -> tuple[str, str | None]:
    if ":" not in word or word.startswith(_ELSEWHERE):
        return word, None
    end = _path_end(word) or _class_end(word) or word.index(":")
    rest = word[end:]
    return word[:end], rest[1:] if rest else None


def _path_end(word: str) -> int | None:
    """Where a path to something that exists ends; a colon may be part of it."""
    if "/" not in word and not word.startswith((".", "~")):
        return None
    ends = [place for place, character in enumerate(word) if character == ":"]
    for end in (len(word), *reversed(ends)):
        if end and Path(word[:end]).expanduser().exists():
            return end
    return None


def _class_end(word: str) -> int | None:
    """Where `package.module:Class` ends, if there is such a package and no agent is called so."""
    from valkyrie.agents.catalog.entries import CATALOG

    found = _CLASS.match(word)
    if found is None or word.partition(":")[0] in CATALOG:
        return None
    return found.end() if find_spec(found["package"]) is not None else None


def _needs_model(name: str) -> bool:
    from valkyrie.agents.catalog.entries import CATALOG

    return name in CATALOG and CATALOG[name].needs_model
