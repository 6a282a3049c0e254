"""What Slack is told, and what a signed message holds and proves."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valkyrie.notifications import messages
from valkyrie.notifications.messages import SignatureError, verify

RUN = "0190d7a2-0000-4000-8000-000000000000"
NOW = 1_700_000_000.0


def told(**more: Any) -> dict[str, Any]:
    return {
        "id": RUN,
        "benchmark": "swebench",
        "dataset": "default",
        "agent": "sweagent",
        "model": None,
        "label": None,
        "started_by": "ana",
        "created_at": NOW - 4000,
        "at": NOW,
        "state": "IN_PROGRESS",
        "done": 5,
        "total": 20,
        "repeated": False,
        "counts": {"FINISHED": 4, "ERROR": 1, "PENDING": 15},
        "score": {
            "final_score": None,
            "score_graded": 0.5,
            "graded": 4,
            "planned": 20,
            "coverage": 0.2,
            "errors": {"infrastructure": 1},
            "fraction": True,
        },
        "error": None,
        "started_at": NOW - 3720,
        "finished_at": None,
        **more,
    }


def ended(state: str, final: float | None = 0.625, **more: Any) -> dict[str, Any]:
    score = {**told()["score"], "final_score": final, "graded": 18, "coverage": 1.0, "errors": {"agent": 2}}
    return told(state=state, done=20, finished_at=NOW - 120, score=score, **more)


def test_progress() -> None:
    assert messages.slack_text(told(model="openai/gpt-4o")).splitlines() == [
        "*Benchmark Update* — swebench",
        f"*Agent:* sweagent  *Run:* {RUN}",
        "*Model:* openai/gpt-4o",
        "*Status:* In Progress — 25% (5/20 tasks)",
        "*Elapsed:* 1 h 02 min",
    ]


def test_complete_tells_score_errors_and_coverage() -> None:
    assert messages.slack_text(ended("FINISHED")).splitlines() == [
        "*Benchmark Complete* — swebench",
        f"*Agent:* sweagent  *Run:* {RUN}",
        "*Model:* N/A",
        "*Final Score:* 62.5 % — 2 errors: agent 2; coverage 18/20 tasks graded, 2 counted as 0, 100%",
        "*Duration:* 1 h 00 min",
    ]


def test_what_is_ungraded_unconfirmed_and_open_to_tampering_is_told() -> None:
    message = ended("FINISHED")
    message["score"] |= {
        "errors": {"infrastructure": 2}, "coverage": 0.9, "ungraded": 2, "score_low": 0.625,
        "score_high": 0.725, "score_confirmed": 0.5, "confirmed": 10, "unconfirmed": 1,
        "open_to_tampering": 3,
    }  # fmt: skip
    assert messages.slack_text(message).splitlines()[3:6] == [
        "*Final Score:* 62.5 % to 72.5 %, depending on 2 ungraded trials — 2 errors: infrastructure 2; "
        "coverage 18/20 tasks graded, 90%",
        "*Confirmed:* 50.0 % — 1 pass only seen in the sandbox the agent left",
        "*Verified:* 3 of 18 tasks are graded in the sandbox the agent left: open to tampering",
    ]


def test_error_and_stopped() -> None:
    lines = messages.slack_text(ended("ERROR", final=None, error="x" * 500, repeated=True)).splitlines()
    assert lines[0] == "*Benchmark Error* — swebench"
    assert lines[3].startswith("*Final Score:* N/A — ") and "trials" in lines[3]
    assert lines[4] == f"*Error:* {'x' * 199}…"
    assert messages.slack_text(ended("STOPPED")).startswith("*Benchmark Stopped* — ")


def test_a_run_that_stopped_by_itself_says_why() -> None:
    reason = (
        "stopped by itself: the first 20 trials that ended all failed; `valk run resume 0190d7a2` goes on"
    )
    stopped = ended("STOPPED", final=None, stop_reason=reason)
    assert f"*Reason:* {reason}" in messages.slack_text(stopped).splitlines()
    _, body = messages.webhook_message(stopped, "d", {}, None, NOW)
    assert json.loads(body)["run"]["stop_reason"] == reason


def test_agents_that_ended_badly_are_told_of() -> None:
    counts = {"FINISHED": 2, "ERROR": 1}
    said = messages.slack_text(ended("FINISHED", exit_codes={"127": 3}, counts=counts, worked_s=75.0))
    assert f"*Exits:* 3 of 3 agents ended with exit code 127; `valk run logs {RUN[:8]}`" in said
    assert said.endswith("*Duration:* 1 min 15 s"), "the night between two passes is no work"


def test_words_of_others_are_no_markup_and_mention_nobody() -> None:
    message = messages.slack_text(
        ended("ERROR", agent="<!channel>", benchmark="a&b", error="<@U1> said\n*Duration:* \x1b[31mnever")
    )
    assert "<" not in message and "&lt;!channel&gt;" in message and "a&amp;b" in message
    assert "\x1b" not in message
    assert len(message.splitlines()) == 6
    assert json.loads(messages.slack_body(told())) == {"text": messages.slack_text(told())}


@pytest.mark.parametrize(
    ("state", "event"),
    [
        ("IN_PROGRESS", "run.progress"),
        ("FINISHED", "run.finished"),
        ("ERROR", "run.error"),
        ("STOPPED", "run.stopped"),
    ],
)
def test_a_message_says_what_happened_to_what(state: str, event: str) -> None:
    given_ = told(state=state) if state == "IN_PROGRESS" else ended(state)
    headers, body = messages.webhook_message(given_, f"{RUN}:x", {"artifacts": "s3://b/r/"}, "key", NOW)
    document = json.loads(body)
    assert headers["X-Valkyrie-Event"] == document["event"] == event
    assert headers["X-Valkyrie-Delivery"] == document["id"] == f"{RUN}:x"
    assert document["sent_at"] == "2023-11-14T22:13:20.000+00:00"
    assert document["run"]["links"] == {"artifacts": "s3://b/r/"}
    assert document["run"]["progress"]["total"] == 20
    assert set(document["run"]) == {
        *("id", "benchmark", "dataset", "agent", "model", "label", "started_by", "state", "error"),
        *(
            "stop_reason",
            "exit_codes",
            "worked_s",
            "created_at",
            "started_at",
            "finished_at",
            "progress",
            "counts",
            "score",
            "links",
        ),
    }


def test_without_a_key_there_is_no_signature() -> None:
    headers, body = messages.webhook_message(told(), "d", {}, None, NOW)
    assert "X-Valkyrie-Signature" not in headers
    with pytest.raises(SignatureError):
        verify(body, headers, "key", now=NOW)


def test_the_signature_is_what_the_documentation_says() -> None:
    headers, body = messages.webhook_message(told(), "d", {}, "kéy", NOW)
    by_hand = hmac.new("kéy".encode(), b"1700000000." + body, hashlib.sha256).hexdigest()
    assert headers["X-Valkyrie-Signature"] == f"sha256={by_hand}"
    verify(body, {name.upper(): value for name, value in headers.items()}, "kéy", now=NOW + 299)


def test_late_early_changed_and_foreign_messages_are_refused() -> None:
    headers, body = messages.webhook_message(told(), "d", {}, "key", NOW)
    for late in (NOW + 301, NOW - 301):
        with pytest.raises(SignatureError, match="old"):
            verify(body, headers, "key", now=late)
    verify(body, headers, "key", tolerance=1000, now=NOW + 301)
    for changed in (
        (body + b" ", headers, "key"),
        (body, headers, "other"),
        (body, {**headers, "X-Valkyrie-Timestamp": "1700000001"}, "key"),
        (body, {**headers, "X-Valkyrie-Signature": "sha256=ü"}, "key"),
        (body, {**headers, "X-Valkyrie-Signature": headers["X-Valkyrie-Signature"][7:]}, "key"),
    ):
        with pytest.raises(SignatureError, match="does not fit"):
            verify(*changed, now=NOW)
    unsigned = messages.signature(body, "²", "key")
    with pytest.raises(SignatureError):
        verify(body, {"X-Valkyrie-Timestamp": "²", "X-Valkyrie-Signature": unsigned}, "key", now=NOW)


@given(st.binary(max_size=200), st.text(min_size=1), st.integers(0, 10**10))
def test_what_is_signed_verifies(body: bytes, key: str, at: int) -> None:
    key = key.encode("utf-8", "ignore").decode() or "k"
    headers = {
        "X-Valkyrie-Timestamp": str(at),
        "X-Valkyrie-Signature": messages.signature(body, str(at), key),
    }
    verify(body, headers, key, now=float(at))
