"""Whom a run wishes to tell: the rules for -i, and what is asked before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from valkyrie.errors import UsageError
from valkyrie.notifications.messages import preflight, requested_notifications, wanted_secrets
from valkyrie.views import RunRequest


def request(**more: Any) -> RunRequest:
    return RunRequest(agent="a", benchmark="b", **more)


def test_nothing_is_wished_by_default() -> None:
    assert requested_notifications(request()) == (None, [])


def test_a_slack_webhook_without_intervals_tells_of_the_end_only() -> None:
    wishes, notices = requested_notifications(request(webhook="SLACK"))
    assert wishes == {"slack": {"secret": "SLACK", "intervals": [100]}, "webhook": None, "lambda": None}
    assert notices == []


def test_intervals_go_to_both_kinds_in_order() -> None:
    wishes, _ = requested_notifications(
        request(webhook="SLACK", webhook_url="https://x.example/h", webhook_key="KEY", intervals=[75, 25])
    )
    assert wishes is not None
    assert wishes["slack"] == {"secret": "SLACK", "intervals": [25, 75]}
    assert wishes["webhook"] == {"url": "https://x.example/h", "key": "KEY", "intervals": [25, 75]}
    assert wanted_secrets(wishes) == {"SLACK": "SLACK", "KEY": "KEY"}


def test_intervals_without_a_webhook_are_ignored_with_a_warning() -> None:
    wishes, notices = requested_notifications(request(intervals=[25]))
    assert wishes is None
    assert len(notices) == 1 and "ignored" in notices[0] and "config set webhook" in notices[0]
    wishes, notices = requested_notifications(request(intervals=[25], lambda_function="after"))
    assert wishes == {"slack": None, "webhook": None, "lambda": "after"} and len(notices) == 1


@pytest.mark.parametrize(
    "intervals", [[5, 10, 15, 20], [0], [3], [101], [105], [-5], [25, 25], [50, 7]], ids=str
)
@pytest.mark.parametrize("webhook", ["SLACK", None])
def test_intervals_that_make_no_sense_are_refused(intervals: Sequence[int], webhook: str | None) -> None:
    with pytest.raises(UsageError, match="-i"):
        requested_notifications(request(webhook=webhook, intervals=intervals))


@pytest.mark.parametrize("percent", [5, 50, 100])
def test_the_ends_of_the_range_are_in_it(percent: int) -> None:
    wishes, _ = requested_notifications(request(webhook="S", intervals=[percent]))
    assert wishes is not None and wishes["slack"]["intervals"] == [percent]


def test_a_key_without_an_address_and_an_address_that_is_none_are_refused() -> None:
    with pytest.raises(UsageError, match="--webhook-url"):
        requested_notifications(request(webhook_key="KEY"))
    with pytest.raises(UsageError, match="--webhook-url is not an http"):
        requested_notifications(request(webhook_url="ftp://x.example/"))


class WithoutCloud:
    """An organisation that has no way into AWS."""

    trusted = True

    def aws(self) -> None:
        return None


def checked(wishes: Any, values: dict[str, str], addresses: Sequence[str] = ("203.0.113.7",)) -> list[str]:
    return preflight(
        wishes,
        WithoutCloud(),  # type: ignore[arg-type]
        values,
        allow_local=False,
        resolver=lambda _host, _port: addresses,
    )


def test_preflight_finds_nothing_wrong_with_a_plain_url() -> None:
    wishes, _ = requested_notifications(request(webhook="SLACK"))
    assert checked(wishes, {"SLACK": "https://hooks.slack.example/services/T0/B0/xyz\n"}) == []
    assert checked(None, {}) == []


@pytest.mark.parametrize(
    "value",
    [
        '{"url": "https://hooks.slack.example/services/hunter2"}',
        '"https://hooks.slack.example/hunter2"',
        "[]",
    ],
)
def test_preflight_names_the_way_out_when_the_secret_is_json(value: str) -> None:
    wishes, _ = requested_notifications(request(webhook="SLACK"))
    (problem,) = checked(wishes, {"SLACK": value})
    assert "'SLACK'" in problem and "plain text" in problem and "hunter2" not in problem


def test_preflight_lists_every_problem_and_no_value() -> None:
    wishes, _ = requested_notifications(
        request(webhook="SLACK", webhook_url="https://in.example/", lambda_function="after")
    )
    problems = checked(wishes, {"SLACK": "hunter2 is no url"}, addresses=["127.0.0.1"])
    assert len(problems) == 3
    assert "'SLACK'" in problems[0] and "hunter2" not in "".join(problems)
    assert "--webhook-url" in problems[1] and "loopback" in problems[1]
    assert "--lambda after" in problems[2]


def test_a_slack_secret_that_leads_home_is_a_problem_too() -> None:
    wishes, _ = requested_notifications(request(webhook="SLACK"))
    (problem,) = checked(wishes, {"SLACK": "https://x.example/hunter2"}, addresses=["169.254.169.254"])
    assert "metadata" in problem and "hunter2" not in problem
