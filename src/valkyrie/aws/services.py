"""Lambda functions, secrets of Secrets Manager, and logs in CloudWatch."""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

from valkyrie.artifact_store.logs import EVERY_S, ShippedLogs, whole_characters
from valkyrie.artifact_store.protocol import LogName, stream_name
from valkyrie.aws.session import Act, AwsSession, explained, fault_code
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


def invoke_function(session: AwsSession, function: str, payload: Json) -> Json:
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


def check_function(session: AwsSession, function: str) -> None:
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


# Logs in CloudWatch: a group per run, a stream per attempt, an event per line.
#
# An event keeps the end of its line, so that a stream read back is the file. A request whose answer was lost
# is looked for before it is repeated, and a program that was killed goes on after what the stream holds:
# lines come twice only when CloudWatch does not show yet what it took, or when reading it is not allowed.

RETENTIONS = (
    *(1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731),
    *(1096, 1827, 2192, 2557, 2922, 3288, 3653),
)
"""The numbers of days CloudWatch knows."""
_GROUP = re.compile(r"[A-Za-z0-9._/#-]{1,400}")
_MOST_BYTES = 1_048_576
_MOST_EVENTS = 10_000
_EVENT_BYTES = 26
"""What an event counts besides its text."""
_LONGEST_EVENT = 256 * 1024 - _EVENT_BYTES


class _Stream:
    """How far one stream is."""

    __slots__ = ("doubt", "stamp")

    def __init__(self) -> None:
        self.stamp = 0
        """Of the last batch, in milliseconds; each has one of its own."""
        self.doubt: tuple[int, int] | None = None
        """Stamp and length of a batch that was sent, and of which no answer came."""


class CloudWatchLogs(ShippedLogs):
    """Log groups `<group>/<run>`, whose events are removed after so many days."""

    def __init__(
        self, session: AwsSession, group: str, retention_days: int, *, every: float = EVERY_S
    ) -> None:
        super().__init__(every)
        if not _GROUP.fullmatch(group):
            raise UserError(
                f"LOG_GROUP {group[:80]!r} cannot name a log group: letters, digits and . _ / # - can.",
                cause="logs_config",
            )
        self._session = session
        self._group = group.rstrip("/")
        self._retention_days = retention_days
        self._groups: set[str] = set()
        self._streams: dict[LogName, _Stream] = {}

    def __repr__(self) -> str:
        return f"CloudWatchLogs({self._group!r})"

    @property
    def place(self) -> Json:
        return {
            "kind": "cloudwatch",
            "group": self._group,
            "retention_days": self._retention_days,
            "region": self._session.region,
        }

    def read(self, name: LogName) -> Iterator[str]:
        with suppress(UnknownError):
            for events in self._pages(name):
                yield "".join(event["message"] for event in events)

    def url(self, run_id: str) -> str | None:
        if self._session.endpoint:
            return None
        region = self._session.region
        # The console decodes what follows # twice, with $25 for %.
        group = quote(self._of_run(run_id), safe="").replace("%", "$25")
        console = f"https://{region}.console.aws.amazon.com/cloudwatch/home?region={region}"
        return f"{console}#logsV2:log-groups/log-group/{group}"

    def check(self) -> None:
        """Raise unless a group and a stream can be made, and an event written."""
        if self._retention_days not in RETENTIONS:
            raise UserError(
                f"CloudWatch cannot keep logs for {self._retention_days} days; the next it can is "
                f"{_retention(self._retention_days)}: `valk config set LOG_RETENTION_POLICY …`.",
                cause="logs_config",
            )
        probe = CloudWatchLogs(self._session, self._group, 1)
        name = LogName(f"check-{uuid.uuid4().hex}", "check", 0, 1, time.time())
        try:
            probe._begin(name)
            probe._limit(name.run_id)
            probe._ship(name, b"written by the check before a run\n")
        finally:
            # Whoever may write logs need not be allowed to remove them; this one is gone in a day.
            with suppress(ValkyrieError), explained(self._act("remove", "logs:DeleteLogGroup", name.run_id)):
                probe._client().delete_log_group(logGroupName=probe._of_run(name.run_id))

    def _begin(self, name: LogName) -> int:
        self._make_group(name.run_id)
        stream = self._streams[name] = _Stream()
        act = self._act("make a log stream", "logs:CreateLogStream", name.run_id)
        if self._made(act, lambda: self._client().create_log_stream(**self._where(name))):
            return 0
        kept = 0
        try:
            for events in self._pages(name):
                kept += sum(len(event["message"].encode()) for event in events)
                stream.stamp = max(stream.stamp, *(event["timestamp"] for event in events), 0)
        except UserError:
            return 0
        return kept

    def _ship(self, name: LogName, data: bytes) -> int:
        stream = self._streams[name]
        if stream.doubt:
            (stamp, length), arrived = stream.doubt, self._has_arrived(name, stream.doubt[0])
            stream.doubt = None
            if arrived:
                stream.stamp = stamp
                return length
        messages, taken = batch(data)
        stamp = max(int(time.time() * 1000), stream.stamp + 1)
        try:
            self._send(name, messages, stamp)
        except InfrastructureError:
            stream.doubt = (stamp, taken)
            raise
        stream.stamp = stamp
        return taken

    def _finish(self, name: LogName) -> None:
        del self._streams[name]

    def _send(self, name: LogName, messages: list[str], stamp: int) -> None:
        events = [{"timestamp": stamp, "message": message} for message in messages]
        act = self._act("write logs", "logs:PutLogEvents", name.run_id)
        try:
            with explained(act):
                self._client().put_log_events(**self._where(name), logEvents=events)
        except UnknownError:
            # Someone removed the group meanwhile.
            self._groups.discard(name.run_id)
            self._begin(name)
            with explained(act):
                self._client().put_log_events(**self._where(name), logEvents=events)

    def _has_arrived(self, name: LogName, stamp: int) -> bool:
        try:
            with explained(self._act("read logs", "logs:GetLogEvents", name.run_id)):
                answer = self._client().get_log_events(
                    **self._where(name), startTime=stamp, endTime=stamp + 1, limit=1, startFromHead=True
                )
        except UserError:
            return False
        return bool(answer["events"])

    def _make_group(self, run_id: str) -> None:
        if run_id in self._groups:
            return
        act = self._act("make a log group", "logs:CreateLogGroup", run_id)
        self._made(act, lambda: self._client().create_log_group(logGroupName=self._of_run(run_id)))
        # Logs that are kept too long are better than none; the check before the run told.
        with suppress(UserError):
            self._limit(run_id)
        self._groups.add(run_id)

    def _limit(self, run_id: str) -> None:
        with explained(self._act("set how long logs are kept", "logs:PutRetentionPolicy", run_id)):
            self._client().put_retention_policy(
                logGroupName=self._of_run(run_id), retentionInDays=_retention(self._retention_days)
            )

    def _pages(self, name: LogName) -> Iterator[list[Any]]:
        act, token = self._act("read logs", "logs:GetLogEvents", name.run_id), None
        while True:
            more: Json = {"nextToken": token} if token else {}
            with explained(act):
                answer = self._client().get_log_events(**self._where(name), startFromHead=True, **more)
            if answer["events"]:
                yield answer["events"]
            if answer["nextForwardToken"] == token:
                return
            token = answer["nextForwardToken"]

    def _made(self, act: Act, make: Callable[[], object]) -> bool:
        """Return whether it was made, and not there before."""
        with explained(act):
            try:
                make()
            except Exception as error:
                if fault_code(error) != "ResourceAlreadyExistsException":
                    raise
                return False
        return True

    def _where(self, name: LogName) -> dict[str, str]:
        return {"logGroupName": self._of_run(name.run_id), "logStreamName": stream_name(name)}

    def _of_run(self, run_id: str) -> str:
        return f"{self._group}/{run_id}"

    def _act(self, what: str, permission: str, run_id: str) -> Act:
        group = self._of_run(run_id)
        on = f"{permission} on log-group:{self._group}/*"
        return Act(f"{what} in {group}", on, unreachable="logs", refused="logs_config")

    def _client(self) -> Any:
        # Never repeated by the client: what arrived although its answer was lost is looked for first.
        return self._session.client("logs", read_timeout=20, attempts=1)


def batch(data: bytes) -> tuple[list[str], int]:
    """As many lines as one request takes, and their length; a line that is too long is in pieces."""
    messages: list[str] = []
    at = weight = 0
    while at < len(data) and len(messages) < _MOST_EVENTS:
        end = data.find(b"\n", at, at + _LONGEST_EVENT) + 1
        if not end:
            piece = data[at : at + _LONGEST_EVENT]
            end = at + (whole_characters(piece) if at + len(piece) < len(data) else len(piece))
        message = data[at:end].decode("utf-8", "replace")
        weight += len(message.encode()) + _EVENT_BYTES
        if weight > _MOST_BYTES and messages:
            break
        messages.append(message)
        at = end
    return messages, at


def _retention(days: int) -> int:
    return next((known for known in RETENTIONS if known >= days), RETENTIONS[-1])
