"""One message or call of each kind: done, failed, to be tried again, or waiting for someone."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from valkyrie.hooks import slack, webhook
from valkyrie.hooks.sending import Answer, Sender, SendingError
from valkyrie.hooks.slack import shortened
from valkyrie.hooks.threads import in_own_thread
from valkyrie.hooks.world import HookWorld
from valkyrie.keeping.keys import results_key
from valkyrie.secrets.delivery import hooks_of, unspeakable
from valkyrie.store.hook_leases import Due
from valkyrie.store.hooks import LAMBDA, RESULTS, SLACK, WEBHOOK
from valkyrie.targets import TargetError

if TYPE_CHECKING:
    from valkyrie.organisation import Organisation

_WORD = re.compile(r"[a-z][a-z_]{0,60}")
_LATER = frozenset({408, 425, 429})
MOST_ANSWER = 500
UNSURE = "it may have arrived, and progress is not told twice"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it went."""

    state: Literal["done", "failed", "again", "wait"]
    """again: another attempt may do better; wait: something is missing that only a person can give."""
    detail: str
    retry_after: float | None = None
    hidden: list[str] = field(default_factory=list, repr=False)
    """What the detail may not show."""


async def do(due: Due, world: HookWorld, sender: Sender) -> Outcome:
    """Do what a row says, once. InfrastructureError: another attempt may do better."""
    if due.superseded and due.kind in (RESULTS, LAMBDA):
        return Outcome("done", "left out: the run went on; its next ending does this")
    match due.kind:
        case "slack":
            return await _slack(due, world, sender)
        case "webhook":
            return await _webhook(due, world, sender)
        case "lambda":
            return await _lambda(due, world)
        case _:
            return await _results(due, world)


async def _slack(due: Due, world: HookWorld, sender: Sender) -> Outcome:
    secret = str(due.wishes[SLACK]["secret"])
    values = await world.values(due.run_id) or {}
    url = hooks_of(values).get(secret)
    if url is None:
        return _without(due, secret)
    if problem := slack.secret_problem(secret, url):
        return Outcome("failed", problem)
    headers = {"Content-Type": "application/json"}
    outcome = await _post(due, sender, url.strip(), headers, slack.body(due.told))
    return _hiding(outcome, values)


async def _webhook(due: Due, world: HookWorld, sender: Sender) -> Outcome:
    wish = due.wishes[WEBHOOK]
    values: Mapping[str, str] = {}
    key: str | None = None
    if wish["key"]:
        values = await world.values(due.run_id) or {}
        key = hooks_of(values).get(wish["key"])
        if key is None:
            return _without(due, wish["key"])
    delivery = f"{due.run_id}:{due.trigger}"
    links = await world.links(due.run_id)
    headers, body = webhook.message(due.told, delivery, links, key, time.time())
    return _hiding(await _post(due, sender, wish["url"], headers, body), values)


def _without(due: Due, secret: str) -> Outcome:
    return Outcome("wait", f"waits for secret {secret!r}; `valk run resume {due.run_id[:8]}` supplies it")


def _hiding(outcome: Outcome, values: Mapping[str, str]) -> Outcome:
    return Outcome(outcome.state, outcome.detail, outcome.retry_after, unspeakable(values))


async def _post(due: Due, sender: Sender, url: str, headers: Mapping[str, str], body: bytes) -> Outcome:
    try:
        answer = await sender.post(url, headers, body)
    except TargetError as error:
        return Outcome("failed", str(error))
    except SendingError as error:
        if error.maybe_taken and due.progress:
            return Outcome("failed", f"{error}; {UNSURE}")
        return Outcome("again", str(error))
    return _judged(answer, due.kind)


def _judged(answer: Answer, kind: str) -> Outcome:
    """What an answer means. Of its words only a code of Slack's is kept: a webhook may lead to something that
    is not for the eyes of whoever started the run."""
    said = f"HTTP {answer.status}"
    if answer.status < 300:
        return Outcome("done", said)
    if answer.status < 400:
        return Outcome("failed", f"{said}: redirects are not followed; give the address it leads to")
    if kind == SLACK and _WORD.fullmatch(word := answer.text.strip()):
        said = f"{said}: {word}"
    if answer.status >= 500 or answer.status in _LATER:
        return Outcome("again", said, answer.retry_after)
    return Outcome("failed", said)


async def _lambda(due: Due, world: HookWorld) -> Outcome:
    from valkyrie.aws import lambdas

    function = str(due.wishes[LAMBDA])
    hidden = unspeakable(await world.values(due.run_id) or {})
    organisation = await world.organisation(due.org_id, due.run_id)
    session = await in_own_thread(organisation.aws)
    if session is None:
        return Outcome("wait", f"waits for a way into AWS; `valk run resume {due.run_id[:8]}` supplies it")
    arguments = await world.arguments(due.run_id)
    payload = lambdas.lambda_payload(arguments, due.run_id, due.told["benchmark"])
    try:
        answer = await in_own_thread(lambda: lambdas.invoke(session, function, payload))
    except lambdas.LambdaFailedError as error:
        return Outcome("failed", str(error), hidden=hidden)
    return Outcome("done", shortened(json.dumps(answer, ensure_ascii=False), MOST_ANSWER), hidden=hidden)


async def _results(due: Due, world: HookWorld) -> Outcome:
    organisation = await world.organisation(due.org_id, due.run_id)
    document = await world.results(due.run_id)
    key = results_key(due.run_id, due.told["benchmark"])

    def upload(organisation: Organisation) -> str | None:
        artifacts = organisation.artifacts(due.place["artifacts"])
        if artifacts is None:
            return None
        artifacts.put_text(key, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        return artifacts.url(key)

    url = await in_own_thread(lambda: upload(organisation))
    if url is None:
        return Outcome("wait", "waits for access to where its artifacts are kept")
    return Outcome("done", url)
