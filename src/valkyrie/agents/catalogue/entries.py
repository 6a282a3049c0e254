"""The agents every installation knows by name, as data: listing them imports none of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_HERE = "valkyrie.agents.catalogue"
_BASICS = "valkyrie.agents.catalog"


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """Environment variables with API keys, any of which will do; all that are found are given."""

    names: tuple[str, ...]
    required: bool = True

    @property
    def said(self) -> str:
        """`A, B or C`."""
        *most, last = self.names
        return f"{', '.join(most)} or {last}" if most else last


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One agent of the catalogue."""

    description: str
    target: str
    """`module:Class`."""
    version: str | None = None
    """The one that is installed unless `-k version` says another; None for those without any."""
    keys: tuple[KeyGroup, ...] = ()
    needs_model: bool = False
    """`agent:model` must name one."""
    tried: str = ""
    """How far it was tried against the loopback model server, in words for `valk agent catalog`."""


_ANY_VENDOR = KeyGroup(("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY"), required=False)

CATALOG: Mapping[str, CatalogEntry] = {
    "oracle": CatalogEntry("runs the task's own solution; should solve everything", f"{_BASICS}:Oracle"),
    "nop": CatalogEntry("does nothing; should solve nothing", f"{_BASICS}:Nop"),
    "mock": CatalogEntry(
        "says what it was told, or does what a fixture says: to try evals without a model",
        "valkyrie.agents.mock:Mock",
    ),
    "claude-code": CatalogEntry(
        "Anthropic's Claude Code",
        f"{_HERE}.claude_code:ClaudeCode",
        version="2.1.197",
        keys=(KeyGroup(("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN")),),
        tried="solves tasks; refusals, rate limits, overflow and cuts are told apart; converses, takes up "
        "skills, uses MCP servers",
    ),
    "codex": CatalogEntry(
        "OpenAI's Codex",
        f"{_HERE}.codex:Codex",
        version="0.166.0",
        keys=(KeyGroup(("OPENAI_API_KEY",)),),
        tried="solves tasks; refusals, rate limits, overflow and cuts are told apart; converses, takes up "
        "skills, sees MCP servers",
    ),
    "opencode": CatalogEntry(
        "opencode, the open-source terminal agent",
        f"{_HERE}.opencode:OpenCode",
        version="1.18.33",
        keys=(_ANY_VENDOR,),
        needs_model=True,
        tried="solves tasks over all four APIs; needs 1 GB of memory; waits for ever for a busy model; "
        "converses, uses MCP servers; its skills need ripgrep in the sandbox",
    ),
    "goose": CatalogEntry(
        "goose, the open-source agent that began at Block",
        f"{_HERE}.goose:Goose",
        version="1.52.0",
        keys=(_ANY_VENDOR,),
        needs_model=True,
        tried="solves tasks; refusals look like answers; npm has it for x86_64 with glibc only; converses, "
        "takes up skills, uses MCP servers",
    ),
    "gemini-cli": CatalogEntry(
        "Google's Gemini CLI",
        f"{_HERE}.gemini_cli:GeminiCli",
        version="0.61.0",
        keys=(KeyGroup(("GEMINI_API_KEY", "GOOGLE_API_KEY")),),
        tried="solves tasks; refusals look like answers; what it used is known only if it came to its end; "
        "converses, takes up skills, uses MCP servers",
    ),
    "mini-swe-agent": CatalogEntry(
        "mini-swe-agent, by the makers of SWE-bench",
        f"{_HERE}.mini_swe_agent:MiniSweAgent",
        version="2.4.6",
        keys=(
            KeyGroup(
                ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"), required=False
            ),
        ),
        needs_model=True,
        tried="solves tasks with Anthropic's and OpenAI's APIs; needs python3 in the sandbox",
    ),
    "copilot-cli": CatalogEntry(
        "GitHub Copilot CLI",
        f"{_HERE}.copilot_cli:CopilotCli",
        version="1.0.102",
        keys=(KeyGroup(("COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN")),),
        tried="solves tasks with a model of one's own (--model-url); GitHub's own models were not tried; "
        "converses, takes up skills, uses MCP servers",
    ),
}
