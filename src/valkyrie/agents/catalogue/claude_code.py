"""Claude Code, Anthropic's agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from valkyrie.agents.catalogue.base import PLACEHOLDER_KEY, InstalledAgent, environment, unversioned
from valkyrie.agents.catalogue.headless import HOME, Headless
from valkyrie.agents.catalogue.reading import Ran, Reading, at, dollars, items, json_lines, tokens, word
from valkyrie.agents.catalogue.troubles import trouble
from valkyrie.agents.protocol import AgentTrial, LayerSpec, Trouble, Usage
from valkyrie.trajectory import AgentInfo, FinalMetrics, Metrics, TrajectoryBuilder

KEYS = ("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN")
_SYNTHETIC = "<synthetic>"
"""The model of messages the program makes up itself, to say what went wrong."""
_CAUSES: Mapping[str, str] = {
    "rate_limit": "model_rate_limited",
    "authentication_failed": "model_unauthorized",
    "billing_error": "model_unauthorized",
    "model_not_found": "model_unknown",
    "server_error": "model_unreachable",
    "overloaded": "model_unreachable",
}


class ClaudeCode(InstalledAgent):
    """Runs `claude --print` with all permissions, and reads its stream-json."""

    name = "claude-code"
    default_version = "2.1.197"
    program = "node_modules/@anthropic-ai/claude-code-linux-*/claude"
    vendors = ("anthropic",)
    hosts = ("api.anthropic.com",)
    parameters: ClassVar[Mapping[str, str]] = {
        "effort": "how hard the model thinks: low, medium, high, …",
        "max_turns": "answers of the model before it is stopped",
        "max_thinking_tokens": "tokens of thought for each answer",
        "max_retries": "times a request is tried again before the agent gives up",
    }

    def packages(self) -> LayerSpec:
        package = f"@anthropic-ai/claude-code-linux-{{cpu}}{{musl}}@{self.version}"
        return LayerSpec(self.name, self.version, npm=(package,))

    def headless(self, trial: AgentTrial) -> Headless:
        argv = [self.program_word, "--print", "--output-format", "stream-json", "--verbose"]
        argv += ["--dangerously-skip-permissions"]
        for flag, value in (
            ("--model", self.model),
            ("--max-turns", self.parameter("max_turns")),
            ("--effort", self.parameter("effort")),
        ):
            argv += [flag, value] if value else []
        return Headless(argv, environment(trial, **self._environment(trial)))

    def _environment(self, trial: AgentTrial) -> dict[str, str]:
        own = {
            "CLAUDE_CONFIG_DIR": f"{HOME}/claude",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            # It takes its own word for "no permissions are asked" as root only where it is sandboxed.
            "IS_SANDBOX": "1",
        }
        if retries := self.parameter("max_retries"):
            own["CLAUDE_CODE_MAX_RETRIES"] = retries
        if thinking := self.parameter("max_thinking_tokens"):
            own["MAX_THINKING_TOKENS"] = thinking
        if trial.model_url:
            own["ANTHROPIC_BASE_URL"] = unversioned(trial.model_url)
            if not any(trial.secrets.get(key) for key in KEYS):
                own["ANTHROPIC_API_KEY"] = PLACEHOLDER_KEY
            if self.model:
                # Whoever serves the model serves this one; the small ones beside it may not be there.
                own |= {"ANTHROPIC_DEFAULT_HAIKU_MODEL": self.model, "CLAUDE_CODE_SUBAGENT_MODEL": self.model}
        return own

    def read(self, ran: Ran) -> Reading:
        return _Log(self).read(ran)


class _Log:
    """Events: system, assistant and user messages, and one result at the end."""

    def __init__(self, agent: ClaudeCode) -> None:
        self._agent = agent
        self._built = TrajectoryBuilder()
        self._session: str | None = None
        self._model: str | None = None
        self._result: dict[str, Any] | None = None
        self._retry: dict[str, Any] | None = None
        self._failure: dict[str, Any] | None = None
        self._spent: dict[str, Metrics] = {}
        """By the id of the answer: one comes in several messages."""

    def read(self, ran: Ran) -> Reading:
        self._built.user(ran.instruction)
        for event in json_lines(ran.log):
            self._session = self._session or word(event.get("session_id"))
            self._take(event)
        usage = self._usage()
        final = FinalMetrics(
            total_prompt_tokens=usage.input_tokens,
            total_completion_tokens=usage.output_tokens,
            total_cached_tokens=usage.cached_tokens,
            total_cost_usd=usage.cost,
        )
        info = AgentInfo(name=self._agent.name, version=self._agent.version, model_name=usage.model)
        built = self._built.build(info, session_id=self._session, final=final)
        return Reading(built, usage if usage.steps else None, self._trouble(ran))

    def _take(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        if kind == "assistant":
            self._answer(event)
        elif kind == "user" and not event.get("parent_tool_use_id"):
            for block in items(at(event, "message", "content")):
                if at(block, "type") == "tool_result":
                    failed = at(block, "is_error") is True
                    self._built.result(
                        at(block, "tool_use_id"), _content(at(block, "content")), failed=failed
                    )
        elif kind == "system" and event.get("subtype") == "api_retry":
            self._retry = event
        elif kind == "result":
            self._result = event

    def _answer(self, event: dict[str, Any]) -> None:
        message = event.get("message")
        model, blocks = word(at(message, "model")), items(at(message, "content"))
        if model == _SYNTHETIC:
            self._failure = event
            self._built.system(_joined(blocks, "text"), at=event.get("timestamp"))
            return
        self._failure = None
        self._model = model or self._model
        metrics = _metrics(at(message, "usage"))
        answer = str(at(message, "id"))
        first = answer not in self._spent
        self._spent[answer] = metrics
        if event.get("parent_tool_use_id"):
            return
        calls = [
            (at(block, "id"), at(block, "name"), at(block, "input"))
            for block in blocks
            if at(block, "type") in ("tool_use", "server_tool_use")
        ]
        self._built.agent(
            _joined(blocks, "text"),
            calls=calls,
            reasoning=_joined(blocks, "thinking"),
            model=model,
            metrics=metrics if first else None,
            at=event.get("timestamp"),
        )

    def _usage(self) -> Usage:
        """By the result, which counts everything; a run that was cut short has only its messages."""
        steps = len(self._spent)
        per_model = at(self._result, "modelUsage")
        if isinstance(per_model, dict) and per_model:
            counted = list(per_model.values())
            cached = sum(tokens(at(one, "cacheReadInputTokens")) for one in counted)
            fresh = sum(
                tokens(at(one, "inputTokens")) + tokens(at(one, "cacheCreationInputTokens"))
                for one in counted
            )
            output = sum(tokens(at(one, "outputTokens")) for one in counted)
        else:
            spent = self._spent.values()
            cached = sum(one.cached_tokens or 0 for one in spent)
            fresh = sum(one.prompt_tokens or 0 for one in spent) - cached
            output = sum(one.completion_tokens or 0 for one in spent)
        cost = dollars(at(self._result, "total_cost_usd")) if steps else None
        return Usage(
            input_tokens=fresh + cached,
            cached_tokens=cached,
            output_tokens=output,
            cost=cost,
            cost_source=None if cost is None else "agent",
            model=self._model or self._agent.model,
            steps=steps,
        )

    def _trouble(self, ran: Ran) -> Trouble | None:
        if self._result is None:
            if ran.exit_code == 0:
                return None
            said = word(at(self._failure, "message", "content", 0, "text"), 500)
            return trouble(said or ran.stderr[-500:], retry_after=self._asked())
        if self._result.get("is_error") is not True:
            return None
        said = word(self._result.get("result"), 500) or word(self._result.get("subtype")) or ""
        if self._result.get("stop_reason") == "refusal":
            return Trouble("model_refused", said)
        if self._result.get("terminal_reason") == "prompt_too_long":
            return Trouble("context_overflow", said)
        status = self._result.get("api_error_status")
        found = trouble(said, status if isinstance(status, int) else None, self._asked())
        if found.cause == "agent_gave_up" and (cause := _CAUSES.get(str(at(self._failure, "error")))):
            return Trouble(cause, found.message)
        return found

    def _asked(self) -> float | None:
        """Seconds the model's server asked for, as the last retry says."""
        delay = at(self._retry, "retry_delay_ms")
        if at(self._retry, "error_status") != 429 or not isinstance(delay, int | float):
            return None
        return max(0.0, min(float(delay) / 1000, 86_400.0))


def _metrics(usage: Any) -> Metrics:
    cached = tokens(at(usage, "cache_read_input_tokens"))
    fresh = tokens(at(usage, "input_tokens")) + tokens(at(usage, "cache_creation_input_tokens"))
    return Metrics(
        prompt_tokens=fresh + cached,
        completion_tokens=tokens(at(usage, "output_tokens")),
        cached_tokens=cached,
    )


def _joined(blocks: list[Any], kind: str) -> str:
    texts = (at(block, kind) for block in blocks if at(block, "type") == kind)
    return "\n".join(text for text in texts if isinstance(text, str))


def _content(value: Any) -> Any:
    """A result's text; what is no text (an image) stays as it is."""
    blocks = items(value)
    if blocks and all(at(block, "type") == "text" for block in blocks):
        return _joined(blocks, "text")
    return value
