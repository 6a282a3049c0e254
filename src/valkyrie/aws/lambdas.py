"""Functions of the user's own, called when a run is over."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from valkyrie.aws.session import Act, AwsSession, explained
from valkyrie.domain import Json
from valkyrie.errors import UnknownError, UserError

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
    """What a function is called with: what the run was started with, and which run it is."""
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
