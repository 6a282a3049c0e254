"""Trials to judge, and a judge that answers by a script."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from valkyrie.grade.judges import shared_client
from valkyrie.grade.judges.client import BACKOFF
from valkyrie.grade.protocol import GraderInput, JudgeDefaults
from valkyrie.specs.model import GraderSpec, Stimulus
from valkyrie.testing import ModelServer, Script, ToolRequest
from valkyrie.testing.model_server.script import Turn
from valkyrie.trajectory.transcript import Event, Transcript

Json = dict[str, Any]


async def _no_time(seconds: float) -> None:
    return None


QUICKLY = replace(BACKOFF, sleep=_no_time)
"""As often as ever, and without pauses."""
RUBRIC = ("It is polite.", "It is short.")


def prompt_spec(**config: Any) -> GraderSpec:
    return GraderSpec("prompt", config)


def panel_spec(*models: Any, **config: Any) -> GraderSpec:
    return GraderSpec("panel", {"models": list(models), **config})


def trial(output: str = "Hello.", **changed: Any) -> GraderInput:
    events = [Event("assistant_message", {"content": output})]
    stimulus = Stimulus("greeting", ("Say hello.",), rubric=RUBRIC)
    given = GraderInput(stimulus, Transcript(output, events), asking=JudgeDefaults(model="judge-1"))
    return replace(given, **changed)


def grade(overall: Any, *scores: Any, why: str = "Because.") -> ToolRequest:
    """The call of a judge that knows what it is to do."""
    listed = scores or (overall,) * len(RUBRIC)
    rubric = [{"criterion": f"c{at}", "score": score, "reasoning": "r"} for at, score in enumerate(listed)]
    return ToolRequest(
        "submit_grade", {"rubric_scores": rubric, "overall_score": overall, "overall_reasoning": why}
    )


@asynccontextmanager
async def judge(*turns: Turn, quick: bool = True, **named: Any) -> AsyncIterator[ModelServer]:
    """A server that plays the judge; pauses between tries take no time."""
    async with ModelServer(Script.of(*turns, **named)) as server:
        async with shared_client(QUICKLY if quick else BACKOFF):
            yield server


def asked_at(server: ModelServer, given: GraderInput, conversation: str = "", **asking: Any) -> GraderInput:
    """The trial, judged at this server."""
    url = server.url + (f"/c/{conversation}" if conversation else "")
    return replace(given, asking=replace(given.asking, url=url, **asking))


def texts_of(body: Json) -> str:
    """Everything a request says, as one text."""
    found = [str(body.get("system") or "")]
    for message in body["messages"]:
        content = message.get("content")
        found.append(content if isinstance(content, str) else str(content))
    return "\n".join(found)
