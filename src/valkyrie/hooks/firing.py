"""Sends what stands in the outbox: takes what is due, does it, writes down how it went, and looks again."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from sandboxes.masker import Masker
from sandboxes.retry import Backoff
from valkyrie.errors import InfrastructureError, StoreError, ValkyrieError
from valkyrie.hooks import deeds
from valkyrie.hooks.deeds import Outcome
from valkyrie.hooks.sending import Sender
from valkyrie.hooks.world import HookWorld
from valkyrie.store import hook_leases, hooks
from valkyrie.store.hook_leases import Due, Look
from valkyrie.store.hooks import LAMBDA, RESULTS, SLACK, WEBHOOK
from valkyrie.store.writer import Writer

if TYPE_CHECKING:
    from valkyrie.store import Connection

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


class HookRunner:
    """An executor's sender. Nothing it meets ends it but the store's own failure."""

    def __init__(
        self, executor_id: str, writer: Writer, world: HookWorld, sender: Sender, home: str = ""
    ) -> None:
        self._executor_id = executor_id
        self._writer = writer
        self._world = world
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
        """Look now."""
        self._pending = True  # until looked at
        self._wake.set()

    def drain(self) -> None:
        """Take nothing more; `run` returns when what is in hand has ended."""
        self._draining = True
        self._wake.set()

    async def supplied(self, run_id: str) -> None:
        """What the run was waiting for has been handed over."""
        self._waiting.discard(run_id)
        await self._writer.call(lambda connection: hooks.supplied(connection, run_id))
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
        if not hook_leases.any_pending(connection):
            return [], (False, None)
        used = Counter(due.kind for due in self._in_hand.values())
        look = Look(
            self._executor_id,
            room={kind: most - used[kind] for kind, most in ROOM.items()},
            in_hand=Counter((due.org_id, due.kind) for due in self._in_hand.values()),
            home=self._home,
        )
        hook_leases.recover(connection, look)
        return hook_leases.due(connection, look), self._outlook(connection)

    def _outlook(self, connection: Connection) -> tuple[bool, float | None]:
        return hook_leases.outlook(connection, self._waiting)

    async def _fire(self, due: Due) -> None:
        try:
            outcome = await self._do(due)
            await self._write(due, outcome)
        finally:
            del self._in_hand[due.id]
            self.wake()

    async def _do(self, due: Due) -> Outcome:
        limit = LIMITS_S[due.kind]
        try:
            async with asyncio.timeout(limit):
                return await deeds.do(due, self._world, self._sender)
        except TimeoutError:
            return Outcome("failed" if due.progress else "again", f"took longer than {limit:g} s")
        except (InfrastructureError, StoreError) as error:
            return Outcome("again", str(error))
        except ValkyrieError as error:
            return Outcome("failed", str(error))
        except Exception as error:  # noqa: BLE001 - one message must not end the others
            sys.stderr.write(f"hook {due.kind} {due.trigger} of {due.run_id}: {type(error).__name__}\n")
            return Outcome("failed", f"a defect in Valkyrie ({type(error).__name__}); please report it")

    async def _write(self, due: Due, outcome: Outcome) -> None:
        detail = Masker(outcome.hidden).text(outcome.detail) if outcome.hidden else outcome.detail
        pause = self._pause_after(due, outcome)
        waits = outcome.state == "wait" and pause is not None
        (self._waiting.add if waits else self._waiting.discard)(due.run_id)

        def write(connection: Connection) -> tuple[bool, bool]:
            if outcome.state == "done":
                ours = hook_leases.done(connection, due, detail)
            elif outcome.state == "wait" and pause is not None:
                ours = hook_leases.wait(connection, due, detail, pause)
            else:
                ours = hook_leases.failed(connection, due, detail, pause)
            return ours, hooks.settled(connection, due.run_id)

        ours, settled = await self._writer.call(write)
        if not ours:
            sys.stderr.write(
                f"hook {due.kind} {due.trigger} of {due.run_id}: another executor has it; not recorded\n"
            )
        if settled:
            await self._world.settled(due.run_id)

    def _pause_after(self, due: Due, outcome: Outcome) -> float | None:
        """How long until it is tried again; None when that was the last time."""
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
