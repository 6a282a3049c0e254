"""Lambda functions that are called, and secrets that Secrets Manager keeps."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from valkyrie.aws.session import Act, AwsSession, explained
from valkyrie.domain import Json
from valkyrie.errors import InfrastructureError, UnknownError, UserError, ValkyrieError
from valkyrie.secrets.sources import parts_of, split_name

LONGEST_CALL_S = 900
"""How long a function may take at AWS."""
MOST_BYTES = 6 * 1024 * 1024
"""Of a payload, and of an answer."""
LONGEST_MESSAGE = 500
_NAME = re.compile(r"[A-Za-z0-9:_$-]{1,256}")


class LambdaFailedError(UserError):
    """The function ran, and said or showed that it failed."""

    default_cause = "lambda_failed"


def lambda_payload(arguments: Json, run_id: str, benchmark_name: str) -> Json:
    """Return what a function is called with: what the run was started with, and which run it is."""
    return {**arguments, "benchmark_id": run_id, "run_id": run_id, "benchmark_name": benchmark_name}


def invoke(session: AwsSession, function: str, payload: Json) -> Json:
    """Call a function, wait for it, and give its answer (`{"answer": …}` when that is no object).

    It is called once: a call whose answer was lost is not repeated. LambdaFailedError when it raised, or
    answered with a `statusCode` of 400 or more.
    """
    data = json.dumps(payload).encode()
    if len(data) > MOST_BYTES:
        raise UserError(
            f"The run's arguments are {len(data)} bytes, more than the {MOST_BYTES} a function can be given.",
            cause="lambda_config",
        )
    # The last seconds are for the answer of a function that used all its time.
    client = session.client("lambda", read_timeout=LONGEST_CALL_S + 20, attempts=1)
    with _explained(function):
        answer = client.invoke(FunctionName=function, InvocationType="RequestResponse", Payload=data)
        with answer["Payload"] as body:
            text = body.read(MOST_BYTES + 1)
    result = _parsed(text)
    if answer.get("FunctionError"):
        raise LambdaFailedError(f"Lambda function {function} failed: {_message(result)}")
    if (status := _status(result)) >= 400:
        raise LambdaFailedError(f"Lambda function {function} answered {status}: {_message(result)}")
    return result if isinstance(result, dict) else {"answer": result}


def check(session: AwsSession, function: str) -> None:
    """Raise unless the function is there and may be called. It does not run."""
    client = session.client("lambda", read_timeout=20)
    with _explained(function):
        client.invoke(FunctionName=function, InvocationType="DryRun", Payload=b"{}")


@contextmanager
def _explained(function: str) -> Iterator[None]:
    if not _NAME.fullmatch(function):
        raise UserError(
            f"{function[:80]!r} is not the name or ARN of a Lambda function.", cause="lambda_config"
        )
    try:
        with explained(
            Act(
                f"call the Lambda function {function}",
                f"lambda:InvokeFunction on {function}",
                refused="lambda_config",
            )
        ):
            yield
    except UnknownError:
        raise UserError(
            f"There is no Lambda function {function} in this account and region.", cause="lambda_config"
        ) from None


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text or b"null")
    except (ValueError, RecursionError):
        return text.decode("utf-8", "replace")


def _status(result: Any) -> int:
    status = result.get("statusCode") if isinstance(result, dict) else None
    try:
        return int(status or 0)
    except (TypeError, ValueError):
        return 0


def _message(result: Any) -> str:
    """The function's own words, on one line and not too many."""
    said = result
    if isinstance(result, dict):
        said = next((result[key] for key in ("errorMessage", "body", "message") if result.get(key)), result)
    text = said if isinstance(said, str) else json.dumps(said)
    shown = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * LONGEST_MESSAGE])
    shown = " ".join(shown.split())
    return shown if len(shown) <= LONGEST_MESSAGE else f"{shown[:LONGEST_MESSAGE]}…"


# Secrets in AWS Secrets Manager.

_SECRETS_MANAGER_NAME = re.compile(r"[A-Za-z0-9/_+=.@:-]{1,2048}")


class SecretsManagerSource:
    """Secrets by name or ARN, fetched once. A JSON object comes whole; `name#key` is one value of it.

    What cannot be fetched is no value and a problem: another source may have it.
    """

    place = "AWS Secrets Manager"
    by_variable = False
    remote = True

    def __init__(self, session: AwsSession) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._fetched: dict[str, str | None] = {}
        self._problems: dict[str, str] = {}
        self._unreachable = False

    def __repr__(self) -> str:
        return "SecretsManagerSource()"

    @property
    def problems(self) -> Sequence[str]:
        """What could not be fetched, and what was not as it was asked for."""
        return list(self._problems.values())

    def get(self, name: str) -> str | None:
        """The value, or None when there is none."""
        secret, key = split_name(name)
        with self._lock:
            if secret not in self._fetched:
                self._fetched[secret] = self._fetch(secret)
            text = self._fetched[secret]
            if text is None or key is None:
                return text or None
            held = parts_of(text)
            if not held or not held.get(key):
                has = (
                    f"has {', '.join(list(held)[:20])}" if held else "is not a JSON object of several values"
                )
                self._problems[name] = f"{secret} in {self.place} has no value {key!r}: it {has}."
                return None
            return held[key]

    def _fetch(self, secret: str) -> str | None:
        if not _SECRETS_MANAGER_NAME.fullmatch(secret) or self._unreachable:
            return None
        act = Act(f"read the secret {secret}", f"secretsmanager:GetSecretValue on the secret {secret}")
        try:
            with explained(act):
                client = self._session.client("secretsmanager", read_timeout=15, attempts=3)
                answer = client.get_secret_value(SecretId=secret)
        except UnknownError:
            return None
        except ValkyrieError as error:
            # Asked for ten secrets, ten waits for the same silence help nobody.
            self._unreachable = isinstance(error, InfrastructureError)
            self._problems[secret] = str(error)
            return None
        if "SecretString" not in answer:
            self._problems[secret] = (
                f"{secret} in {self.place} is binary; only texts can be secrets of a run."
            )
            return None
        return str(answer["SecretString"])
