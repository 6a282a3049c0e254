"""Whom a run wishes to tell, as its request says and its row keeps it (`run.notify`), secrets by name only:

{"slack":   {"secret": NAME, "intervals": [25, 75]} or null,
 "webhook": {"url": URL, "key": SECRET NAME or null, "intervals": [...]} or null,
 "lambda":  NAME or null}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from valkyrie import config
from valkyrie.errors import UsageError, ValkyrieError
from valkyrie.hooks import slack
from valkyrie.nouns import Json
from valkyrie.targets import Resolver, TargetError, check_target, parse_target, system_resolver
from valkyrie.views import RunRequest

if TYPE_CHECKING:
    from valkyrie.organisation import Organisation

MOST_INTERVALS = 3
STEP = 5
AT_THE_END = (100,)


def notify_wishes(request: RunRequest) -> tuple[Json | None, list[str]]:
    """What a request wishes, None when nothing; and what the user should know. UsageError when it makes no
    sense."""
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
    """Names of the secrets whose values its messages need, each under its own name."""
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
    """Whether messages may go to this machine itself, as `allow_local_webhooks` says."""
    return bool(config.effective("allow_local_webhooks").value)


def preflight(
    wishes: Json | None,
    organisation: Organisation,
    values: Mapping[str, str],
    *,
    allow_local: bool | None = None,
    resolver: Resolver = system_resolver,
) -> list[str]:
    """Why messages of a run could not be sent, asked before it starts; `values` by secret name.

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
        if problem := slack.secret_problem(secret, values[secret]):
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
    from valkyrie.aws import lambdas

    try:
        lambdas.check(session, function)
    except ValkyrieError as error:
        return [f"--lambda {function}: {error}"]
    return []
