"""Whom a run notifies, and what its Slack and webhook messages say and are signed with."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from benchmark_runner.terminal import safe
from valkyrie import aws
from valkyrie.config import values as config
from valkyrie.domain import Category, Json, RunState
from valkyrie.errors import UsageError, ValkyrieError
from valkyrie.report.formats import (
    duration,
    errors_text,
    exits_text,
    number,
    plural,
    range_text,
    tampering_text,
)
from valkyrie.targets import Resolver, TargetError, check_target, parse_target, system_resolver
from valkyrie.views import RunRequest

if TYPE_CHECKING:
    from valkyrie.tenants import Organisation


MOST_ERROR = 200
MOST_REASON = 400
_HEADERS = {
    RunState.FINISHED: "Benchmark Complete",
    RunState.ERROR: "Benchmark Error",
    RunState.STOPPED: "Benchmark Stopped",
}


def slack_body(told: Json) -> bytes:
    return json.dumps({"text": slack_text(told)}).encode()


def slack_text(told: Json) -> str:
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
    """Return how long it worked; what was written down before that was counted tells its times."""
    if told["started_at"] is None:
        return "N/A"
    return duration(told.get("worked_s") or until - told["started_at"])


def shortened(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"


def escaped(words: str) -> str:
    """Words of people and programs as Slack shows them: no markup, no mention of anyone, one line."""
    plain = safe(words)
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def secret_problem(secret: str, value: str) -> str | None:
    """Return why a secret's value is no Slack webhook, with the way out; it is never shown itself."""
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


# Messages for programs: what they hold, how they are signed, and how a receiver checks that.
#
# from valkyrie.notifications.messages import verify
#
# verify(body, headers, key)     # SignatureError unless it is ours and fresh

EVENT, DELIVERY = "X-Valkyrie-Event", "X-Valkyrie-Delivery"
TIMESTAMP, SIGNATURE = "X-Valkyrie-Timestamp", "X-Valkyrie-Signature"
TOLERANCE_S = 300.0
_EVENTS = {
    RunState.FINISHED: "run.finished",
    RunState.ERROR: "run.error",
    RunState.STOPPED: "run.stopped",
}
_TIMES = ("created_at", "started_at", "finished_at")


class SignatureError(ValueError):
    """A message that was not signed with the key, was changed on its way, or is too old."""


def webhook_message(
    told: Json, delivery: str, links: Mapping[str, str], key: str | None, now: float
) -> tuple[dict[str, str], bytes]:
    """Headers and body of one delivery; `delivery` stays the same when it is sent again."""
    event = _EVENTS.get(told["state"], "run.progress")
    document = {"event": event, "id": delivery, "sent_at": _moment(now), "run": _run(told, links)}
    body = json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
    stamp = str(int(now))
    headers = {
        "Content-Type": "application/json",
        EVENT: event,
        DELIVERY: delivery,
        TIMESTAMP: stamp,
    }
    if key is not None:
        headers[SIGNATURE] = signature(body, stamp, key)
    return headers, body


def _run(told: Json, links: Mapping[str, str]) -> Json:
    """The run as it is told: ids, names, state, counts, score, links."""
    done, total = told["done"], told["total"]
    names = (
        "id",
        "benchmark",
        "dataset",
        "agent",
        "model",
        "label",
        "started_by",
        "state",
        "error",
        "stop_reason",
    )
    return {
        **{name: told.get(name) for name in names},
        **{name: _moment(told[name]) for name in _TIMES},
        "progress": {"done": done, "total": total, "percent": int(100 * done / total) if total else 0},
        "counts": told["counts"],
        "exit_codes": told.get("exit_codes") or {},
        "worked_s": told.get("worked_s"),
        "score": told["score"],
        "links": dict(links),
    }


def _moment(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def signature(body: bytes, timestamp: str, key: str) -> str:
    """`sha256=` and the HMAC of timestamp, full stop, body."""
    signed = hmac.new(key.encode(), f"{timestamp}.".encode() + body, hashlib.sha256)
    return f"sha256={signed.hexdigest()}"


def verify(
    body: bytes,
    headers: Mapping[str, str],
    key: str,
    tolerance: float = TOLERANCE_S,
    now: float | None = None,
) -> None:
    """Raise SignatureError unless the message was signed with `key` within `tolerance` seconds of now.

    `body` must be the bytes that arrived, not JSON that was read and written again.
    """
    found = {name.lower(): value for name, value in headers.items()}
    stamp, given = found.get(TIMESTAMP.lower(), ""), found.get(SIGNATURE.lower(), "")
    if not hmac.compare_digest(given.encode(), signature(body, stamp, key).encode()):
        raise SignatureError("the signature is missing or does not fit")
    if not stamp.isdecimal() or abs((time.time() if now is None else now) - int(stamp)) > tolerance:
        raise SignatureError("the message is too old, or its clock or ours is wrong")


# Whom a run wishes to tell, as its request says and its row keeps it (`run.notify`), secrets by name only:
#
# {"slack":   {"secret": NAME, "intervals": [25, 75]} or null, "webhook": {"url": URL, "key": SECRET NAME or
# null, "intervals": [...]} or null, "lambda":  NAME or null}

MOST_INTERVALS = 3
STEP = 5
AT_THE_END = (100,)


def requested_notifications(request: RunRequest) -> tuple[Json | None, list[str]]:
    """Return what a request wishes, None when nothing; and what the user should know. UsageError when it
    makes no sense."""
    intervals = _intervals(request.intervals)
    if request.webhook_key and not request.webhook_url:
        raise UsageError("--webhook-key signs what is sent to --webhook-url, which is not given.")
    if request.webhook_url:
        _check_url(request.webhook_url)
    wishes: Json = {
        "slack": {"secret": request.webhook, "intervals": intervals} if request.webhook else None,
        "webhook": {"url": request.webhook_url, "key": request.webhook_key, "intervals": intervals}
        if request.webhook_url
        else None,
        "lambda": request.lambda_function or None,
    }
    notices: list[str] = []
    if request.intervals and not (wishes["slack"] or wishes["webhook"]):
        notices.append(
            "-i is ignored: no webhook is configured. `valk config set webhook SECRET` names the secret that "
            "holds a Slack webhook's URL; --webhook-url sends JSON."
        )
    return (wishes if any(wishes.values()) else None), notices


def _intervals(given: Sequence[int]) -> list[int]:
    if len(given) > MOST_INTERVALS:
        raise UsageError(f"-i can be given {MOST_INTERVALS} times at most, not {len(given)}.")
    for percent in given:
        if not STEP <= percent <= 100 or percent % STEP:
            raise UsageError(f"-i {percent}: a percentage from {STEP} to 100 that is divisible by {STEP}.")
    if len(set(given)) < len(given):
        raise UsageError("-i was given the same percentage twice.")
    return sorted(given) or list(AT_THE_END)


def _check_url(url: str) -> None:
    try:
        parse_target(url, "--webhook-url")
    except TargetError as error:
        raise UsageError(str(error), cause=error.cause) from error


def wanted_secrets(wishes: Json | None) -> dict[str, str]:
    """Return names of the secrets whose values its messages need, each under its own name."""
    found = [_part(wishes, "slack").get("secret"), _part(wishes, "webhook").get("key")]
    return {name: name for name in found if name}


def _part(wishes: Json | None, kind: str) -> Json:
    part: Json = (wishes or {}).get(kind) or {}
    return part


_HERE = "`valk config set AWS_DEFAULT_REGION REGION` has it used; `valk config init` also asks for a bucket."
_AT_A_TRACKER = (
    "Whoever runs a self-hosted tracker sets S3_BUCKET or AWS_DEFAULT_REGION there; at a hosted one "
    "`valk config init --mode hosted --aws role` gives your organisation one."
)


def local_allowed() -> bool:
    """Return whether messages may go to this machine itself, as `allow_local_webhooks` says."""
    return bool(config.effective("allow_local_webhooks").value)


def preflight(
    wishes: Json | None,
    organisation: Organisation,
    values: Mapping[str, str],
    *,
    allow_local: bool | None = None,
    resolver: Resolver = system_resolver,
) -> list[str]:
    """Return why messages of a run could not be sent, asked before it starts; `values` by secret name.

    A secret without a value is whoever resolved them's to tell.
    """
    if not wishes:
        return []
    allow_local = local_allowed() if allow_local is None else allow_local
    networks = None if organisation.trusted else config.tracker_networks()
    problems: list[str] = []
    addresses: list[tuple[str, str]] = []
    secret = str(_part(wishes, "slack").get("secret") or "")
    if secret in values:
        if problem := secret_problem(secret, values[secret]):
            problems.append(problem)
        else:
            addresses.append((f"What secret {secret!r} holds", values[secret].strip()))
    if url := _part(wishes, "webhook").get("url"):
        addresses.append(("--webhook-url", url))
    for what, address in addresses:
        try:
            check_target(address, allow_local, resolver, what, networks=networks)
        except TargetError as error:
            problems.append(str(error))
    if function := wishes.get("lambda"):
        problems += _lambda_problems(str(function), organisation)
    return problems


def _lambda_problems(function: str, organisation: Organisation) -> list[str]:
    session = organisation.aws()
    if session is None:
        way = _HERE if organisation.trusted else _AT_A_TRACKER
        return [f"--lambda {function}: there is no way into AWS. {way}"]
    try:
        aws.check_function(session, function)
    except ValkyrieError as error:
        return [f"--lambda {function}: {error}"]
    return []
