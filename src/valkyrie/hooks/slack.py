"""Messages for Slack: what they say, and what their secret must hold."""

from __future__ import annotations

import json

from valkyrie.nouns import Category, Json, RunState
from valkyrie.report.formats import (
    duration,
    errors_text,
    exits_text,
    number,
    plural,
    range_text,
    safe,
    tampering_text,
)
from valkyrie.targets import TargetError, parse_target

MOST_ERROR = 200
MOST_REASON = 400
_HEADERS = {
    RunState.FINISHED: "Benchmark Complete",
    RunState.ERROR: "Benchmark Error",
    RunState.STOPPED: "Benchmark Stopped",
}


def body(told: Json) -> bytes:
    """The request's body for a run as it is told."""
    return json.dumps({"text": text(told)}).encode()


def text(told: Json) -> str:
    """The message: of progress while the run is in progress, else of its ending."""
    header = _HEADERS.get(told["state"], "Benchmark Update")
    lines = [
        f"*{header}* — {escaped(told['benchmark'])}",
        f"*Agent:* {escaped(told['agent'])}  *Run:* {told['id']}",
        f"*Model:* {escaped(told['model'] or 'N/A')}",
        *(_ending_lines(told) if told["state"] in _HEADERS else _progress_lines(told)),
    ]
    return "\n".join(lines)


def _progress_lines(told: Json) -> list[str]:
    done, total = told["done"], told["total"]
    share = int(100 * done / total) if total else 0
    return [
        f"*Status:* In Progress — {share}% ({done}/{total} {_things(told)})",
        f"*Elapsed:* {_seconds(told, told['at'])}",
    ]


def _ending_lines(told: Json) -> list[str]:
    score = told["score"]
    zeroed = score["errors"].get(Category.AGENT)
    counted = f"graded, {zeroed} counted as 0" if zeroed else "graded"
    share = f"{100 * score['coverage']:.0f}%"
    coverage = f"{score['graded']}/{score['planned']} {_things(told)} {counted}, {share}"
    lines = [f"*Final Score:* {_final(score)} — {errors_text(score['errors'])}; coverage {coverage}"]
    if score.get("unconfirmed"):
        confirmed = number(score["score_confirmed"], fraction=score["fraction"])
        passes = plural(score["unconfirmed"], "pass", "passes")
        lines.append(f"*Confirmed:* {confirmed} — {passes} only seen in the sandbox the agent left")
    if score.get("open_to_tampering"):
        tasks = not told["repeated"]
        lines.append(
            f"*Verified:* {tampering_text(score['open_to_tampering'], score['graded'], tasks=tasks)}"
        )
    ended = told["counts"].get("FINISHED", 0) + told["counts"].get("ERROR", 0)
    if said := exits_text(told.get("exit_codes") or {}, ended):
        lines.append(f"*Exits:* {said}; `valk run logs {told['id'][:8]}`")
    if told["error"]:
        lines.append(f"*Error:* {escaped(shortened(told['error'], MOST_ERROR))}")
    if told.get("stop_reason"):
        lines.append(f"*Reason:* {escaped(shortened(told['stop_reason'], MOST_REASON))}")
    return [*lines, f"*Duration:* {_seconds(told, told['finished_at'] or told['at'])}"]


def _final(score: Json) -> str:
    """The final score, or the range it is in where trials are ungraded."""
    if score["final_score"] is None:
        return "N/A"
    if score.get("ungraded") and score.get("score_low") is not None:
        return range_text(score["score_low"], score["score_high"], score["ungraded"])
    return number(score["final_score"], fraction=score["fraction"])


def _things(told: Json) -> str:
    return "trials" if told["repeated"] else "tasks"


def _seconds(told: Json, until: float) -> str:
    """How long it worked; what was written down before that was counted tells its times."""
    if told["started_at"] is None:
        return "N/A"
    return duration(told.get("worked_s") or until - told["started_at"])


def shortened(words: str, most: int) -> str:
    """At most so many characters."""
    return words if len(words) <= most else words[: most - 1] + "…"


def escaped(words: str) -> str:
    """Words of people and programs as Slack shows them: no markup, no mention of anyone, one line."""
    plain = safe(words)
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def secret_problem(secret: str, value: str) -> str | None:
    """Why a secret's value is no Slack webhook, with the way out; it is never shown itself."""
    try:
        held = json.loads(value)
    except ValueError:
        held = None
    if isinstance(held, dict | list | str):
        return (
            f"Secret {secret!r} holds JSON; a Slack webhook's secret must be its URL as plain text: "
            f"`valk secret set {secret}`, or change it where it is kept."
        )
    try:
        parse_target(value.strip(), f"What secret {secret!r} holds")
    except TargetError as error:
        return f"{error} A Slack webhook looks like https://hooks.slack.com/services/…"
    return None
