"""mini-swe-agent: the agent of a hundred lines by the makers of SWE-bench."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from valkyrie.agents.catalog import CatalogAgent, KeyGroup
from valkyrie.agents.command import (
    HOME,
    AgentCommandResult,
    Counted,
    Headless,
    LogSummary,
    at,
    bring_out,
    dollars,
    iso_time,
    items,
    parsed,
    tokens,
    trouble,
    word,
)
from valkyrie.agents.installed import (
    PLACEHOLDER_KEY,
    InstalledAgent,
    environment,
    unversioned,
    vendor_and_model,
    versioned,
)
from valkyrie.agents.protocol import AgentTrial, AgentUsage, LayerSpec, Trouble
from valkyrie.trajectory import StepMetrics, TrajectoryBuilder

_TRAJECTORY = "mini.traj.json"
_STEP = re.compile(rb"^mini-swe-agent \(step \d+,", re.MULTILINE)
"""In what it prints: the heading of each answer of its model."""
_BESIDE = ("litellm==1.106.2", "mcp==2.3.0")
"""What speaks to the models, and what that needs and does not ask for."""
_KEYS: Mapping[str, str] = {
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "gemini": "GEMINI_API_KEY",
}


ENTRY = CatalogAgent(
    "mini-swe-agent, by the makers of SWE-bench",
    f"{__name__}:MiniSweAgent",
    version="2.4.6",
    keys=(
        KeyGroup(("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"), required=False),
    ),
    needs_model=True,
    tried="solves tasks with Anthropic's and OpenAI's APIs; needs python3 in the sandbox",
    tools="bash",
)


class MiniSweAgent(InstalledAgent):
    """Runs `mini` without asking anybody; what it did is read from the file it writes."""

    name = "mini-swe-agent"
    entry = ENTRY
    program = "bin/mini"
    check = "--help"
    parameters: ClassVar[Mapping[str, str]] = {"step_limit": "how often the model may be asked"}

    def packages(self) -> LayerSpec:
        return LayerSpec(self.name, self.version, pip=(f"mini-swe-agent=={self.version}", *_BESIDE))

    def headless(self, trial: AgentTrial) -> Headless:
        vendor, model = self._named(trial.model_url)
        argv = [self.program_word, "--yolo", "--exit-immediately", "--cost-limit", "0"]
        argv += ["--model", f"{vendor}/{model}", "--output", f"{HOME}/{_TRAJECTORY}", "--config", "mini.yaml"]
        if trial.model_url:
            bare = vendor == "anthropic"
            url = unversioned(trial.model_url) if bare else versioned(trial.model_url)
            argv += ["--config", f"model.model_kwargs.api_base={url}"]
        if steps := self.turn_limit("step_limit", trial.task):
            argv += ["--config", f"agent.step_limit={steps}"]
        env = environment(trial, **_environment(trial, vendor))
        return Headless([*argv, "--task"], env, prompt="argument")

    def _named(self, model_url: str | None) -> tuple[str, str]:
        """As litellm wants it; whatever else is served somewhere is taken for a server like OpenAI's."""
        vendor, model = vendor_and_model(self.name, self.model or "", served=model_url is not None)
        vendor = "gemini" if vendor == "google" else vendor
        return (vendor if vendor == "anthropic" or not model_url else "openai"), model

    async def bring(self, trial: AgentTrial, kept: Path) -> None:
        await bring_out(trial.sandbox, f"{HOME}/{_TRAJECTORY}", kept / _TRAJECTORY)

    def read(self, ran: AgentCommandResult) -> LogSummary:
        file = ran.kept / _TRAJECTORY if ran.kept else None
        if file is None or not file.is_file():
            found = LogSummary(trouble=trouble(ran.stderr[-500:]) if ran.exit_code else None)
        else:
            found = _read(self, parsed(file.read_bytes()))
        # Its tools can remove or replace the file, but not what it printed.
        printed = len(_STEP.findall(ran.log.read_bytes())) if ran.log.is_file() else 0
        steps = max(printed, found.usage.steps if found.usage else 0)
        return replace(found, usage=replace(found.usage or AgentUsage(), steps=steps)) if printed else found


def _environment(trial: AgentTrial, vendor: str) -> dict[str, str]:
    own = {
        "MSWEA_CONFIGURED": "true",
        "MSWEA_GLOBAL_CONFIG_DIR": f"{HOME}/config",
        "MSWEA_SILENT_STARTUP": "1",
        # A model it knows no price of is no reason to stop.
        "MSWEA_COST_TRACKING": "ignore_errors",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    if (key := trial.secrets.get("GOOGLE_API_KEY")) and "GEMINI_API_KEY" not in trial.secrets:
        own["GEMINI_API_KEY"] = key
    name = _KEYS.get(vendor)
    if trial.model_url and name and not trial.secrets.get(name):
        own[name] = PLACEHOLDER_KEY
    return own


def _read(agent: MiniSweAgent, data: Any) -> LogSummary:
    built, counted = TrajectoryBuilder(), Counted()
    error: Trouble | None = None
    refused = False
    for message in items(at(data, "messages")):
        role, extra = at(message, "role"), at(message, "extra")
        built.now = _said_at(at(extra, "timestamp")) or built.now
        if at(extra, "response") is not None:
            finish = at(extra, "response", "choices", 0, "finish_reason")
            refused = finish in ("content_filter", "refusal")
        if role == "assistant":
            _answer(built, message, _metrics(counted, extra))
        elif role == "tool":
            failed = at(extra, "returncode") not in (0, None)
            built.result(at(message, "tool_call_id"), at(message, "content"), failed=failed)
        elif role == "exit":
            error = _end(message, refused=refused)
        elif role in ("system", "user"):
            (built.system if role == "system" else built.user)(at(message, "content"))
            # An answer it could not use was paid for all the same, and is kept with the complaint.
            if at(extra, "response") is not None:
                _metrics(counted, extra)
    found = counted.reading(built, agent)
    return LogSummary(found.trajectory, found.usage, error)


def _said_at(moment: Any) -> str | None:
    """Its messages carry seconds since 1970."""
    sane = isinstance(moment, int | float) and 0 < moment < 1e11
    return iso_time(moment) if sane else None


def _answer(built: TrajectoryBuilder, message: Any, metrics: StepMetrics | None) -> None:
    calls = [
        (at(call, "id"), at(call, "function", "name"), at(call, "function", "arguments"))
        for call in items(at(message, "tool_calls"))
    ]
    reasoning = at(message, "reasoning_content")
    built.agent(at(message, "content"), calls=calls, reasoning=reasoning, metrics=metrics)


def _metrics(counted: Counted, extra: Any) -> StepMetrics | None:
    counted.model = counted.model or word(at(extra, "response", "model"))
    usage = at(extra, "response", "usage")
    return counted.step(
        tokens(at(usage, "prompt_tokens")),
        tokens(at(usage, "completion_tokens")),
        tokens(at(usage, "prompt_tokens_details", "cached_tokens")),
        dollars(at(extra, "cost")) or None,
    )


def _end(message: Any, *, refused: bool) -> Trouble | None:
    status = word(at(message, "extra", "exit_status")) or ""
    if status == "Submitted":
        return None
    if refused:
        return trouble("content_filter: the model refused to go on")
    said = word(at(message, "extra", "exception_str") or at(message, "content"), 1000)
    return trouble(f"{status}: {said}")
