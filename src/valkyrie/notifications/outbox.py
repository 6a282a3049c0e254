"""Send the messages of the outbox: take what is due, post it within a time, write down how it went."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from benchmark_service.http_client import HttpClient, HttpConnectionError, Incoming, NotConnectedError
from sandboxes.masker import Masker
from sandboxes.retry import Backoff, parse_retry_after
from valkyrie import aws
from valkyrie.artifact_store.protocol import results_key
from valkyrie.domain import Json
from valkyrie.errors import InfrastructureError, StoreError, ValkyrieError
from valkyrie.notifications import messages
from valkyrie.notifications.messages import shortened
from valkyrie.secrets.delivery import hooks_of, unspeakable
from valkyrie.store import notifications
from valkyrie.store.journal import Writer
from valkyrie.store.notifications import LAMBDA, RESULTS, SLACK, WEBHOOK, Due, DueQuery
from valkyrie.targets import ConnectionTarget, Resolver, TargetError, resolve_target, system_resolver

if TYPE_CHECKING:
    from valkyrie.store import Connection
    from valkyrie.tenants import Organisation


T = TypeVar("T")


async def in_own_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns or raises; when cancelled, it is left to itself."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value: T | None = None
        error: BaseException | None = None
        try:
            value = work()
        except BaseException as problem:  # noqa: BLE001 - whatever it is belongs to whoever waits
            error = problem
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name="hook", daemon=True).start()
    return await future


# One message, posted: to a checked address, within a time, without following anyone elsewhere.

TIMEOUT_S = 5.0
MOST_ADDRESSES = 4
MOST_ANSWER_BYTES = 500


class DeliveryError(Exception):
    """Nothing came back; `maybe_taken` when the message may have arrived all the same."""

    def __init__(self, message: str, *, maybe_taken: bool) -> None:
        super().__init__(message)
        self.maybe_taken = maybe_taken


@dataclass(frozen=True, slots=True)
class EndpointAnswer:
    """What the other side said."""

    status: int
    retry_after: float | None
    """Seconds it asks to be left alone for."""
    text: str
    """The beginning of what it said, if it refused."""


class Sender:
    """Posts messages. No log shows where to: a Slack webhook's address is a secret."""

    def __init__(
        self,
        allow_local: bool | Callable[[], bool],
        *,
        timeout: float = TIMEOUT_S,
        resolver: Resolver = system_resolver,
        tls: ssl.SSLContext | None = None,
        networks: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        """`networks`: of a tracker's executor, what besides public addresses messages may be sent to."""
        self._allow_local = allow_local if callable(allow_local) else lambda: allow_local
        self._timeout = timeout
        self._resolver = resolver
        self._tls = tls
        self._networks = networks

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> EndpointAnswer:
        """Send once. TargetError: it may not be sent there; DeliveryError: no answer."""
        sent = False
        try:
            async with asyncio.timeout(self._timeout):
                target = await in_own_thread(lambda: self._resolved(url))
                sent = True
                return await self._send(target, headers, body)
        except TimeoutError:
            why = "no answer" if sent else "its name was not resolved"
            raise DeliveryError(f"{why} within {self._timeout:g} s", maybe_taken=sent) from None
        except OSError:
            raise DeliveryError("its name could not be resolved", maybe_taken=False) from None

    def _resolved(self, url: str) -> ConnectionTarget:
        """Return where it leads now, by the rules of now: an executor outlives changes of the config file."""
        networks = self._networks() if self._networks else None
        return resolve_target(url, self._allow_local(), self._resolver, networks=networks)

    async def _send(
        self, target: ConnectionTarget, headers: Mapping[str, str], body: bytes
    ) -> EndpointAnswer:
        """Send to the first of the checked addresses that takes a connection."""

        async def checked(_host: str, _port: int) -> Sequence[str]:
            return target.addresses[:MOST_ADDRESSES]

        http = HttpClient(
            {"User-Agent": "valkyrie", "Accept-Encoding": "identity"},
            connect_s=self._timeout,
            read_s=self._timeout,
            resolve=checked,
            tls=self._tls,
            proxies=False,
        )
        try:
            async with http.request("POST", str(target.url), headers, body) as incoming:
                retry_after = parse_retry_after(incoming.headers.get("retry-after"))
                said = await _beginning(incoming) if incoming.status >= 400 else ""
                return EndpointAnswer(incoming.status, retry_after, said)
        except NotConnectedError:
            raise DeliveryError("no connection could be made", maybe_taken=False) from None
        except (HttpConnectionError, ValueError) as error:
            why = f"the connection broke ({type(error).__name__})"
            raise DeliveryError(why, maybe_taken=True) from None
        finally:
            await http.close()


async def _beginning(incoming: Incoming) -> str:
    held = b""
    async for piece in incoming.pieces:
        held += piece
        if len(held) >= MOST_ANSWER_BYTES:
            break
    return held[:MOST_ANSWER_BYTES].decode("utf-8", "replace")


# Send what stands in the outbox, write down how it went, and look again.


class NotificationContext(Protocol):
    """Where messages find what they need. Every call may fail with a ValkyrieError."""

    async def values(self, run_id: str) -> Mapping[str, str] | None:
        """Everything the run was handed (valkyrie.secrets.delivery); None when nobody has it now."""
        ...

    async def organisation(self, org_id: str, run_id: str) -> Organisation:
        """Return whose run it is, with the credentials the run was handed."""
        ...

    async def results(self, run_id: str) -> Json:
        """The run's results document."""
        ...

    async def arguments(self, run_id: str) -> Json:
        """Return what the run was asked with, secrets by name only."""
        ...

    async def links(self, run_id: str) -> Mapping[str, str]:
        """Return where people can look at the run: artifacts, logs."""
        ...

    async def settled(self, run_id: str) -> None:
        """The run has ended and nothing is left to tell of it: what it was handed can go."""
        ...


# One message or call of each kind: done, failed, to be tried again, or waiting for someone.

_WORD = re.compile(r"[a-z][a-z_]{0,60}")
_LATER = frozenset({408, 425, 429})
MOST_ANSWER = 500
UNSURE = "it may have arrived, and progress is not told twice"


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """How it went."""

    state: Literal["done", "failed", "again", "wait"]
    """again: another attempt may do better; wait: something is missing that only a person can give."""
    detail: str
    retry_after: float | None = None
    hidden: list[str] = field(default_factory=list, repr=False)
    """What the detail may not show."""


async def deliver(due: Due, context: NotificationContext, sender: Sender) -> DeliveryOutcome:
    """Do what a row says, once. InfrastructureError: another attempt may do better."""
    if due.superseded and due.kind in (RESULTS, LAMBDA):
        return DeliveryOutcome("done", "left out: the run went on; its next ending does this")
    match due.kind:
        case "slack":
            return await _slack(due, context, sender)
        case "webhook":
            return await _webhook(due, context, sender)
        case "lambda":
            return await _lambda(due, context)
        case _:
            return await _results(due, context)


async def _slack(due: Due, context: NotificationContext, sender: Sender) -> DeliveryOutcome:
    secret = str(due.wishes[SLACK]["secret"])
    values = await context.values(due.run_id) or {}
    url = hooks_of(values).get(secret)
    if url is None:
        return _without(due, secret)
    if problem := messages.secret_problem(secret, url):
        return DeliveryOutcome("failed", problem)
    headers = {"Content-Type": "application/json"}
    outcome = await _post(due, sender, url.strip(), headers, messages.slack_body(due.told))
    return _hiding(outcome, values)


async def _webhook(due: Due, context: NotificationContext, sender: Sender) -> DeliveryOutcome:
    wish = due.wishes[WEBHOOK]
    values: Mapping[str, str] = {}
    key: str | None = None
    if wish["key"]:
        values = await context.values(due.run_id) or {}
        key = hooks_of(values).get(wish["key"])
        if key is None:
            return _without(due, wish["key"])
    delivery = f"{due.run_id}:{due.trigger}"
    links = await context.links(due.run_id)
    headers, body = messages.webhook_message(due.told, delivery, links, key, time.time())
    return _hiding(await _post(due, sender, wish["url"], headers, body), values)


def _without(due: Due, secret: str) -> DeliveryOutcome:
    return DeliveryOutcome(
        "wait", f"waits for secret {secret!r}; `valk run resume {due.run_id[:8]}` supplies it"
    )


def _hiding(outcome: DeliveryOutcome, values: Mapping[str, str]) -> DeliveryOutcome:
    return DeliveryOutcome(outcome.state, outcome.detail, outcome.retry_after, unspeakable(values))


async def _post(
    due: Due, sender: Sender, url: str, headers: Mapping[str, str], body: bytes
) -> DeliveryOutcome:
    try:
        answer = await sender.post(url, headers, body)
    except TargetError as error:
        return DeliveryOutcome("failed", str(error))
    except DeliveryError as error:
        if error.maybe_taken and due.progress:
            return DeliveryOutcome("failed", f"{error}; {UNSURE}")
        return DeliveryOutcome("again", str(error))
    return _judged(answer, due.kind)


def _judged(answer: EndpointAnswer, kind: str) -> DeliveryOutcome:
    """Return what an answer means. Of its words only a code of Slack's is kept: a webhook may lead to
    something that is not for the eyes of whoever started the run."""
    said = f"HTTP {answer.status}"
    if answer.status < 300:
        return DeliveryOutcome("done", said)
    if answer.status < 400:
        return DeliveryOutcome("failed", f"{said}: redirects are not followed; give the address it leads to")
    if kind == SLACK and _WORD.fullmatch(word := answer.text.strip()):
        said = f"{said}: {word}"
    if answer.status >= 500 or answer.status in _LATER:
        return DeliveryOutcome("again", said, answer.retry_after)
    return DeliveryOutcome("failed", said)


async def _lambda(due: Due, context: NotificationContext) -> DeliveryOutcome:
    function = str(due.wishes[LAMBDA])
    hidden = unspeakable(await context.values(due.run_id) or {})
    organisation = await context.organisation(due.org_id, due.run_id)
    session = await in_own_thread(organisation.aws)
    if session is None:
        return DeliveryOutcome(
            "wait", f"waits for a way into AWS; `valk run resume {due.run_id[:8]}` supplies it"
        )
    arguments = await context.arguments(due.run_id)
    payload = aws.lambda_payload(arguments, due.run_id, due.told["benchmark"])
    try:
        answer = await in_own_thread(lambda: aws.invoke_function(session, function, payload))
    except aws.LambdaFailedError as error:
        return DeliveryOutcome("failed", str(error), hidden=hidden)
    return DeliveryOutcome(
        "done", shortened(json.dumps(answer, ensure_ascii=False), MOST_ANSWER), hidden=hidden
    )


async def _results(due: Due, context: NotificationContext) -> DeliveryOutcome:
    organisation = await context.organisation(due.org_id, due.run_id)
    document = await context.results(due.run_id)
    key = results_key(due.run_id, due.told["benchmark"])

    def upload(organisation: Organisation) -> str | None:
        artifacts = organisation.artifacts(due.place["artifacts"])
        if artifacts is None:
            return None
        artifacts.put_text(key, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        return artifacts.url(key)

    url = await in_own_thread(lambda: upload(organisation))
    if url is None:
        return DeliveryOutcome("wait", "waits for access to where its artifacts are kept")
    return DeliveryOutcome("done", url)


# Sends what stands in the outbox: takes what is due, does it, writes down how it went, and looks again.

LOOK_EVERY_S = 1.0
WAIT_S = 30.0
WAIT_AT_MOST_S = 24 * 3600.0
"""How long a message waits for what only a person can give."""
MOST_ATTEMPTS = {SLACK: 3, WEBHOOK: 3, LAMBDA: 1}
RESULTS_FOR_S = 3600.0
BACKOFF = Backoff(first_s=1.0, longest_s=120.0, factor=4.0, cap_asked_s=300.0)
RESULTS_BACKOFF = replace(BACKOFF, first_s=5.0)
LIMITS_S = {SLACK: 30.0, WEBHOOK: 30.0, LAMBDA: 15 * 60.0 + 30.0, RESULTS: 15 * 60.0}
"""The longest one attempt may take; a sender's own timeout comes long before."""
ROOM = {SLACK: 8, WEBHOOK: 8, LAMBDA: 8, RESULTS: 4}


class NotificationRunner:
    """An executor's sender. Nothing it meets ends it but the store's own failure."""

    def __init__(
        self, executor_id: str, writer: Writer, context: NotificationContext, sender: Sender, home: str = ""
    ) -> None:
        self._executor_id = executor_id
        self._writer = writer
        self._context = context
        self._sender = sender
        self._home = home
        self._wake = asyncio.Event()
        self._in_hand: dict[int, Due] = {}
        self._waiting: set[str] = set()
        """Runs that wait for a person."""
        self._pending = True  # until looked at
        self._draining = False

    @property
    def busy(self) -> bool:
        """Something is in hand, or will be without a person: not the time to leave."""
        return bool(self._in_hand) or self._pending

    def wake(self) -> None:
        self._pending = True  # until looked at
        self._wake.set()

    def drain(self) -> None:
        """Take nothing more; `run` returns when what is in hand has ended."""
        self._draining = True
        self._wake.set()

    async def supplied(self, run_id: str) -> None:
        """Note that what the run was waiting for has been handed over."""
        self._waiting.discard(run_id)
        await self._writer.call(lambda connection: notifications.supplied(connection, run_id))
        self.wake()

    async def run(self) -> None:
        """Work until drained. Cancelled, it leaves what is in hand to whoever comes next."""
        async with asyncio.TaskGroup() as group:
            while not self._draining:
                self._wake.clear()
                later = await self._take(group)
                await self._pause(later)

    async def run_once(self) -> float | None:
        """Take what is due, see it through, and tell in how many seconds the next pause ends, if any."""
        async with asyncio.TaskGroup() as group:
            await self._take(group)
        self._pending, later = await self._writer.call(self._outlook)
        return later

    async def _take(self, group: asyncio.TaskGroup) -> float | None:
        taken, (self._pending, later) = await self._writer.call(self._look)
        for due in taken:
            self._in_hand[due.id] = due
            group.create_task(self._fire(due))
        return later

    def _look(self, connection: Connection) -> tuple[list[Due], tuple[bool, float | None]]:
        """On the writer's thread."""
        if not notifications.any_pending(connection):
            return [], (False, None)
        used = Counter(due.kind for due in self._in_hand.values())
        look = DueQuery(
            self._executor_id,
            room={kind: most - used[kind] for kind, most in ROOM.items()},
            in_hand=Counter((due.org_id, due.kind) for due in self._in_hand.values()),
            home=self._home,
        )
        notifications.recover_hooks(connection, look)
        return notifications.due(connection, look), self._outlook(connection)

    def _outlook(self, connection: Connection) -> tuple[bool, float | None]:
        return notifications.outlook(connection, self._waiting)

    async def _fire(self, due: Due) -> None:
        try:
            outcome = await self._do(due)
            await self._write(due, outcome)
        finally:
            del self._in_hand[due.id]
            self.wake()

    async def _do(self, due: Due) -> DeliveryOutcome:
        limit = LIMITS_S[due.kind]
        try:
            async with asyncio.timeout(limit):
                return await deliver(due, self._context, self._sender)
        except TimeoutError:
            return DeliveryOutcome("failed" if due.progress else "again", f"took longer than {limit:g} s")
        except (InfrastructureError, StoreError) as error:
            return DeliveryOutcome("again", str(error))
        except ValkyrieError as error:
            return DeliveryOutcome("failed", str(error))
        except Exception as error:  # noqa: BLE001 - one message must not end the others
            sys.stderr.write(f"hook {due.kind} {due.trigger} of {due.run_id}: {type(error).__name__}\n")
            return DeliveryOutcome(
                "failed", f"a defect in Valkyrie ({type(error).__name__}); please report it"
            )

    async def _write(self, due: Due, outcome: DeliveryOutcome) -> None:
        detail = Masker(outcome.hidden).text(outcome.detail) if outcome.hidden else outcome.detail
        pause = self._pause_after(due, outcome)
        waits = outcome.state == "wait" and pause is not None
        (self._waiting.add if waits else self._waiting.discard)(due.run_id)

        def write(connection: Connection) -> tuple[bool, bool]:
            if outcome.state == "done":
                ours = notifications.done(connection, due, detail)
            elif outcome.state == "wait" and pause is not None:
                ours = notifications.wait(connection, due, detail, pause)
            else:
                ours = notifications.failed(connection, due, detail, pause)
            return ours, notifications.settled(connection, due.run_id)

        ours, settled = await self._writer.call(write)
        if not ours:
            sys.stderr.write(
                f"hook {due.kind} {due.trigger} of {due.run_id}: another executor has it; not recorded\n"
            )
        if settled:
            await self._context.settled(due.run_id)

    def _pause_after(self, due: Due, outcome: DeliveryOutcome) -> float | None:
        """Return how long until it is tried again; None when that was the last time."""
        if outcome.state == "wait":
            return WAIT_S if due.age < WAIT_AT_MOST_S else None
        if outcome.state != "again":
            return None
        if due.kind == RESULTS:
            backoff, once_more = RESULTS_BACKOFF, due.age < RESULTS_FOR_S
        else:
            backoff, once_more = BACKOFF, due.attempt < MOST_ATTEMPTS[due.kind]
        return backoff.delay(due.attempt, outcome.retry_after) if once_more else None

    async def _pause(self, later: float | None) -> None:
        try:
            async with asyncio.timeout(LOOK_EVERY_S if later is None else min(LOOK_EVERY_S, later)):
                await self._wake.wait()
        except TimeoutError:
            return
