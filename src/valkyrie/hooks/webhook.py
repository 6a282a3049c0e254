"""Messages for programs: what they hold, how they are signed, and how a receiver checks that.

from valkyrie.hooks.webhook import verify

verify(body, headers, key)     # SignatureError unless it is ours and fresh
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from valkyrie.nouns import Json, RunState

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


def message(
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
