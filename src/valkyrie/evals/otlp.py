"""Trials as OpenTelemetry traces: sent to a collector by OpenTelemetry's own exporter (OTLP over HTTP), or
written as lines of a file that collectors read (OTLP as JSON, one request on each line).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sandboxes.registry import add_extra
from valkyrie import __version__
from valkyrie.domain import Json
from valkyrie.errors import UsageError, UserError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

TRACES = "/v1/traces"
TIMEOUT_S = 10.0
MOST_CALLS = 2_000
"""Spans of tools of one trial."""
_RESOURCE: Mapping[str, str] = {"service.name": "valkyrie", "service.version": __version__}


def traces_url(text: str) -> str:
    """Return where traces are sent: an endpoint as people write it, with or without /v1/traces."""
    parts = urlsplit(text.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--otlp-endpoint {text[:200]!r}: an address begins with http:// or https://.")
    path = parts.path.rstrip("/")
    return parts._replace(path=path if path.endswith(TRACES) else path + TRACES).geturl()


class OtlpReporter:
    """One trace for each trial: a span for the trial, one for each tool the agent called."""

    name = "otlp"

    def __init__(self, endpoint: str) -> None:
        """Raises UserError where the extra is not installed."""
        self._provider = _provider(traces_url(endpoint))
        self._tracer = self._provider.get_tracer("valkyrie", __version__)
        self._run: Json = {}

    def on_run_start(self, run: Json) -> None:
        """Remember whose trials these are."""
        self._run = run

    def on_trial_result(self, trial: Json) -> None:
        """Make the spans of a trial; they are sent in the background."""
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        told, *calls = _spans(trial["result"], self._run.get("runId"))
        span = self._tracer.start_span(told.name, start_time=told.start, attributes=told.attributes)
        within = set_span_in_context(span)
        for one in calls:
            call = self._tracer.start_span(
                one.name, context=within, start_time=one.start, attributes=one.attributes
            )
            call.end(one.end)
        if told.error is not None:
            span.set_status(Status(StatusCode.ERROR, told.error))
        span.end(told.end)

    def on_run_complete(self, _summary: Json, _artifacts: Json, _status: str) -> None:
        """Send what is left; UserError where the collector did not take it."""
        sent = self._provider.force_flush(int(TIMEOUT_S * 1000))
        self._provider.shutdown()
        if not sent:
            raise UserError("the collector did not take all traces in time")


def span_line(record: Json) -> Json:
    """Return the spans of a trial's record as OpenTelemetry writes them to files; the same every time."""
    trace = _digest(str(record.get("runId")), record["itemId"])[:32]
    spans: list[Json] = []
    for number, one in enumerate(_spans(record)):
        span: Json = {
            "traceId": trace,
            "spanId": _digest(trace, str(number))[:16],
            "name": one.name,
            "kind": 1,
            "startTimeUnixNano": str(one.start),
            "endTimeUnixNano": str(one.end),
            "attributes": _pairs(one.attributes),
            "status": {} if one.error is None else {"code": 2, "message": one.error},
        }
        spans.append(span | ({"parentSpanId": spans[0]["spanId"]} if spans else {}))
    scope = {"scope": {"name": "valkyrie", "version": __version__}, "spans": spans}
    return {"resourceSpans": [{"resource": {"attributes": _pairs(_RESOURCE)}, "scopeSpans": [scope]}]}


@dataclass(frozen=True, slots=True)
class _Span:
    """A stretch of time; nanoseconds since 1970."""

    name: str
    start: int
    end: int
    attributes: Mapping[str, str | bool | int | float] = field(default_factory=dict)
    error: str | None = None


def _spans(record: Json, run_id: str | None = None) -> Iterator[_Span]:
    """The trial's span, then one for each tool the agent called."""
    story = record.get("trajectory") or {}
    start, end = _window(story, float(record.get("durationMs") or 0.0))
    error = str(record.get("error") or "")[:500] if record["status"] == "error" else None
    yield _Span(f"trial {record['stimulus']}", start, end, _attributes(record, run_id), error)
    yield from _calls(story, start, end)


def _attributes(record: Json, run_id: str | None) -> dict[str, str | bool | int | float]:
    grade = record.get("gradeResult") or {}
    usage = ((record.get("trajectory") or {}).get("metrics") or {}).get("tokenUsage") or {}
    said = {
        "valkyrie.run.id": record.get("runId") or run_id,
        "valkyrie.trial.id": record["itemId"],
        "valkyrie.eval": record.get("evalName"),
        "valkyrie.variant": record.get("variant"),
        "valkyrie.stimulus": record["stimulus"],
        "valkyrie.trial.index": record.get("trialIndex"),
        "valkyrie.status": record["status"],
        "valkyrie.passed": grade.get("passed"),
        "valkyrie.score": grade.get("score"),
        "gen_ai.agent.name": record.get("executor"),
        "gen_ai.request.model": record.get("model"),
        "gen_ai.usage.input_tokens": usage.get("inputTokens"),
        "gen_ai.usage.output_tokens": usage.get("outputTokens"),
    }
    return {key: value for key, value in said.items() if isinstance(value, str | bool | int | float)}


def _pairs(attributes: Mapping[str, str | bool | int | float]) -> list[Json]:
    """Attributes as OTLP writes them: whole numbers as text."""
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: str | bool | int | float) -> Json:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode("utf-8", "replace")).hexdigest()


def _provider(url: str) -> TracerProvider:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise UserError(
            f"--otlp-endpoint needs {error.name}: {add_extra('otel')}", cause="missing_extra"
        ) from None
    provider = TracerProvider(resource=Resource.create(_RESOURCE), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url, timeout=TIMEOUT_S)))
    return provider


def _window(story: Json, took_ms: float) -> tuple[int, int]:
    """When a trial began and ended, in nanoseconds; by its events where they carry times."""
    about = story.get("metadata") or {}
    start = _moment(about.get("startedAt"))
    if start is None:
        start = int(datetime.now(UTC).timestamp() * 1e9) - int(took_ms * 1e6)
    return start, start + max(1, int(took_ms * 1e6))


def _calls(story: Json, start: int, end: int) -> Iterator[_Span]:
    events = [one for one in story.get("events") or () if isinstance(one, dict)]
    results = {
        str((one.get("data") or {}).get("toolCallId")): one
        for one in events
        if one.get("type") == "tool_result"
    }
    calls = [one for one in events if one.get("type") == "tool_call"]
    for one in calls[:MOST_CALLS]:
        data = one.get("data") or {}
        tool, call_id = str(data.get("toolName") or "tool")[:200], str(data.get("toolCallId"))
        began = min(max(_moment(one.get("timestamp")) or start, start), end)
        ended = _moment((results.get(call_id) or {}).get("timestamp")) or began
        attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool}
        yield _Span(f"execute_tool {tool}", began, min(max(ended, began), end), attributes)


def _moment(text: Any) -> int | None:
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1e9)
    except (TypeError, ValueError):
        return None
