"""Write docs/reference/http-api.md from the tracker's own OpenAPI; with --check only say whether it is so."""

# ruff: noqa: E501 - a row of a table is one line

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from valkyrie.api.app import bare_app

TARGET = Path(__file__).parent.parent / "docs" / "reference" / "http-api.md"
HEAD = """# HTTP interface

<!-- Written by scripts/generate_http_api.py from the OpenAPI description. Do not edit: run `make docs`. -->

What `valkyrie serve` answers. The commands and the [Python client](python-client.md) speak it; the
description this page is made from is at `/openapi.json` of every tracker. Times are seconds since the epoch.
`{ref}` is a run's id or a unique prefix of it.

## Who asks

`Authorization: Bearer KEY` or `X-Api-Key: KEY`, with a key of `valkyrie admin key create` (self-hosted) or of the
identity service (hosted). Both headers with different keys are refused. Everything below `/v1` needs a key;
`/health` and `/openapi.json` do not; `/metrics` takes any key, or only the bearer token
`VALKYRIE_METRICS_TOKEN` where that is set. A key sees its own organisation and nothing else: an id of another
one is 404, as one that does not exist. A revoked key opens nothing after five seconds.

A tracker on a loopback address answers only requests whose `Host` is a loopback name, and no tracker answers
pages of other sites (a foreign `Origin` is 403).

<!-- not run: needs a tracker -->
```bash
export TRACKER_SERVICE_URL=http://127.0.0.1:8000 VALKYRIE_API_KEY=…
curl -H "X-Api-Key: $VALKYRIE_API_KEY" -H 'Content-Type: application/json' \\
  -d '{"agent": "oracle", "benchmark": "quickstart"}' "$TRACKER_SERVICE_URL/v1/runs"
curl -N -H "X-Api-Key: $VALKYRIE_API_KEY" "$TRACKER_SERVICE_URL/v1/runs/RUN/events?trials=true"
```

## Errors

```json
{"error": {"type": "UsageError", "cause": "usage", "message": "…", "exit_code": 2, "retry_after": null, "missing": null}}
```

| status | `type` | means |
| --- | --- | --- |
| 400 | `UsageError` and its kin | the words of the request are wrong: an unknown key or parameter, a bad value |
| 401 | `AccessError` | no key, or one that is unknown, expired or revoked |
| 403 | `UsageError` | a page of another site asked |
| 404 | `UnknownError` | it is not there, or not yours |
| 405 | `UsageError` | the address does not take that method |
| 408, 413 | `UsageError` | the body came too slowly, or is too large: 1 MiB of JSON, `VALKYRIE_UPLOAD_LIMIT` bytes (1 GiB) of archive |
| 422 | `UserError` and its kin | it cannot be done as asked; for `MissingSecretError`, `missing` names the secrets |
| 502 | `BenchmarkError`, `AgentError` | the benchmark's service did not do its part |
| 503 | `InfrastructureError`, `StoreError` | not now; `Retry-After` says when to ask again |
| 500 | `ValkyrieError` | a bug; the tracker's log has it under the request's id |

Every answer carries `X-Request-Id`: the one that was sent, if it is plain, else a new one.

## Events

`GET /v1/runs/{ref}/events` is a stream of server-sent events:

```text
event: trial
id: 41
data: {"task_id": "fix-interval-merge", "state": "FINISHED", …}

event: run
id: 42
data: {"id": "…", "state": "IN_PROGRESS", "counts": {…}, "version": 42, …}

: keep-alive
```

`id` promises that everything up to that version of the run has been sent. Whoever lost the stream sends it as
`Last-Event-ID` and is given what changed since: each trial once, as it stands now. A run is told at most five
times a second, less often when many watch it; whoever reads slowly gets the newest state, not all that was
missed. `event: end` is the last event of a run that ended; then the stream closes.

`GET /v1/jobs/{ref}/events` is the same for a job: `event: job` with all its runs after every change of one of
them, and `event: end`. Trials are in the streams of its runs.
"""
ANCHORS = {"Health": "health-1"}
"""Of views that are called as a section before them."""
PLAIN = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "null": "null",
}


def words(schema: dict[str, Any]) -> str:
    """A type in words, with links to the views."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{ANCHORS.get(name, name.lower())})"
    if "anyOf" in schema:
        return " or ".join(words(one) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{one}`" for one in schema.get("enum", [schema.get("const")]))
    if "prefixItems" in schema:
        return f"[{', '.join(words(one) for one in schema['prefixItems'])}]"
    kind = schema.get("type")
    if kind == "array":
        return f"list of {words(schema['items'])}" if schema.get("items") else "list"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"object of {words(inner)}" if isinstance(inner, dict) and inner else "object"
    return PLAIN.get(str(kind), "anything")


def content(holder: dict[str, Any]) -> str:
    """What a body is made of."""
    found = []
    for media, told in holder.get("content", {}).items():
        schema = told.get("schema")
        found.append(words(schema) if media == "application/json" and schema else f"`{media}`")
    return ", ".join(found)


def parameters(operation: dict[str, Any]) -> Iterator[str]:
    listed = [one for one in operation.get("parameters", []) if one["in"] != "path"]
    if not listed:
        return
    yield "\n| parameter | type | |\n| --- | --- | --- |"
    for one in listed:
        schema = one["schema"]
        name = f"`{one['name']}`" + (" (header)" if one["in"] == "header" else "")
        notes = [one.get("description", "")]
        if one.get("required"):
            notes.append("Required.")
        elif schema.get("default") is not None:
            notes.append(f"Default `{str(schema['default']).lower()}`.")
        if "minimum" in schema and "maximum" in schema:
            notes.append(f"{schema['minimum']} to {schema['maximum']}.")
        yield f"| {name} | {words(schema)} | {' '.join(filter(None, notes))} |"


def operation_lines(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"\n### `{method.upper()} {path}`\n\n{operation['description']}"
    if body := operation.get("requestBody"):
        yield f"\nBody: {content(body)}."
    for status, told in operation["responses"].items():
        if status.startswith("2"):
            text = content(told)
            said = told["description"] if told["description"] != "Successful Response" else ""
            yield f"\nAnswer {status}{': ' + text if text and text != 'anything' else ''}. {said}".rstrip()
    others = sorted(status for status in operation["responses"] if not status.startswith("2"))
    yield f"Errors: {', '.join(others)}." if others else ""
    yield from parameters(operation)


def view_lines(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"\n### {name}\n\n{schema.get('description', '')}".rstrip()
    if "enum" in schema:
        yield "\n" + words(schema)
        return
    yield "\n| field | type | |\n| --- | --- | --- |"
    for field, told in schema.get("properties", {}).items():
        needed = field in schema.get("required", ())
        default = "" if needed or told.get("default") in (None, "") else f" Default `{told['default']}`."
        description = " ".join(told.get("description", "").split()).replace("|", "\\|")
        yield f"| `{field}` | {words(told)} | {description}{default} |"


def page() -> str:
    schema = bare_app().openapi()
    lines = [HEAD.rstrip()]
    tag = None
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            if operation["tags"][0] != tag:
                tag = operation["tags"][0]
                lines.append(f"\n## {tag.capitalize()}")
            lines += operation_lines(method, path, operation)
    lines.append(
        "\n## Views\n\nUnknown keys of a request are refused; a client should pass over unknown keys of an answer."
    )
    for name, found in sorted(schema["components"]["schemas"].items()):
        lines += view_lines(name, found)
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    wanted = page()
    if "--check" not in argv:
        TARGET.write_text(wanted)
        return 0
    if not TARGET.exists() or TARGET.read_text() != wanted:
        print("docs/reference/http-api.md is stale: run `make docs`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
