"""The tools of known agents by name, and patterns of tool names that match none of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from valkyrie.agents.executors import ALIASES
from valkyrie.lint.claims import compiled, found, items, texts
from valkyrie.lint.codes import finding
from valkyrie.specs.model import EvalSpec, Finding, GraderSpec, Stimulus
from valkyrie.suggest import did_you_mean

TOOLS = {
    "claude-code": (
        "Agent AskUserQuestion Bash BashOutput Edit EnterPlanMode ExitPlanMode Glob Grep KillShell LS "
        "ListMcpResourcesTool MultiEdit NotebookEdit NotebookRead Read ReadMcpResourceTool Skill "
        "SlashCommand Task TaskOutput TaskStop TodoRead TodoWrite ToolSearch WebFetch WebSearch Write"
    ),
    "codex": (
        "apply_patch collab_tool_call command_execution exec_command file_change mcp_tool_call shell "
        "todo_list update_plan view_image web_search write_stdin"
    ),
    "copilot-cli": (
        "apply_patch ask_user bash create edit exit_plan_mode fetch_copilot_cli_documentation glob grep "
        "list_agents list_bash list_powershell powershell read_agent read_bash read_powershell report_intent "
        "rg show_file skill sql stop_bash stop_powershell store_memory str_replace str_replace_editor task "
        "task_complete update_todo view web_fetch web_search write_bash write_powershell"
    ),
    "gemini-cli": (
        "activate_skill ask_user delegate_to_agent glob google_web_search grep_search list_directory "
        "read_file read_many_files replace run_shell_command save_memory search_file_content web_fetch "
        "write_file write_todos"
    ),
    "goose": (
        "analyze computercontroller__web_scrape developer__analyze developer__image_processor "
        "developer__list_windows developer__screen_capture developer__shell developer__text_editor edit "
        "shell text_editor todo__todo_write tree write"
    ),
    "mini-swe-agent": "bash",
    "opencode": (
        "apply_patch bash codesearch edit glob grep invalid list lsp multiedit patch question read skill "
        "task todoread todowrite webfetch websearch write"
    ),
}
KNOWN_TOOLS = frozenset(name for names in TOOLS.values() for name in names.split())


def tool_findings(spec: EvalSpec, stimulus: Stimulus, *, known_agent: bool) -> Iterator[Finding]:
    """Forbidden or counted tools that no known agent has: a typo there passes every trial.

    Tools of MCP servers and of agents of one's own are not known, so where they may be, nothing is said.
    """
    if not known_agent or spec.defaults.executor == "mock" or stimulus.environment.mcp_servers:
        return
    for pattern, what, grader in _forbidden(stimulus):
        near = _nobody_has(pattern, spec.defaults.executor or "")
        if near is not None:
            message = f"{what} {pattern!r}, but no known agent has such a tool, so this always passes.{near}"
            place = grader.place if grader else stimulus.constraints.place
            yield finding("tool-matches-nothing", message, place)


@lru_cache(maxsize=4096)
def _nobody_has(pattern: str, executor: str) -> str | None:
    """None where some known tool fits; else the nearest name, in words. Specs repeat their patterns a lot."""
    regex = compiled(pattern)
    if regex is None or any(found(regex, name) for name in KNOWN_TOOLS):
        return None
    # Of names that differ in case alone the last counts: the agent's own.
    own = TOOLS.get(ALIASES.get(executor, executor), "").split()
    return did_you_mean(pattern.strip("^$()"), [*sorted(KNOWN_TOOLS), *own])


def _forbidden(stimulus: Stimulus) -> Iterator[tuple[str, str, GraderSpec | None]]:
    for tool in stimulus.constraints.reject_tools:
        yield tool, "reject_tools names", None
    for grader in stimulus.graders:
        if grader.type == "tool-calls":
            for entry in items(grader.config.get("disallowed")):
                name = entry.get("name") if isinstance(entry, dict) else entry
                if isinstance(name, str):
                    yield name, "tool-calls disallows", grader
        elif grader.type in ("tool-call-count", "max-repeat"):
            for name in texts(grader.config.get("tools")):
                yield name, f"{grader.type} counts", grader
