"""What happened in one trial of an eval as events: what graders look at, and what results.jsonl keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

TRANSCRIPT = "transcript.json"
"""The file, beside trajectory.json, in which an agent that speaks in events leaves its transcript."""
INSTRUCTION = "instruction.md"
"""The file beside them with what the agent was told, where it left no account that says so."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    Types: tool_call {toolName, toolCallId, arguments, turnId?}, tool_result {toolName, toolCallId, success?,
    result}, assistant_message, user_message, reasoning {content}, turn_start, turn_end {turnId},
    skill_activation {name, path}, error {message}, system, custom, token_usage.
    """

    type: str
    data: Json = field(default_factory=dict)
    timestamp: str | None = None
    """ISO 8601."""


@dataclass(frozen=True, slots=True)
class Measures:
    """What a trial used, in numbers."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    turn_count: int = 0
    tool_call_count: int = 0
    error_count: int = 0
    skill_activation_count: int = 0
    wall_time_ms: float = 0.0
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Transcript:
    """One trial's story."""

    output: str
    """The last thing the agent said."""
    events: Sequence[Event] = ()
    measures: Measures = field(default_factory=Measures)
    model: str | None = None
    executor: str | None = None
    session_id: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    skills_loaded: Sequence[str] = ()
    end_reason: str | None = None
    """`timeout`, `killed`, or None for an agent that ended by itself."""
    extra: Json = field(default_factory=dict)
    """Keys of a foreign record that have no place here."""

    def of_type(self, *types: str) -> Iterator[Event]:
        """Its events of these types, in order."""
        return (event for event in self.events if event.type in types)
