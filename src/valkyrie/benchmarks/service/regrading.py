"""Grading in a sandbox by a service that may go away meanwhile.

The client goes on from saved state by itself where a service gives one. Where it gives none, the sandbox is
still here: once the service is back, whatever it left running is killed and it grades the same sandbox
again, which costs less than running the agent again. A service that goes away over this sandbox each time,
and is back each time, gave no verdict on it: running the agent again is not the answer to that.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from benchmark_service.errors import BenchmarkServiceConnectionError, BenchmarkServiceError, StreamIdleError
from valkyrie.benchmarks.protocol import Grading
from valkyrie.benchmarks.service.verdict import check_data
from valkyrie.errors import GraderError
from valkyrie.nouns import Json

if TYPE_CHECKING:
    from benchmark_service.client import BenchmarkServiceClient
    from sandboxes.configs import SandboxProviderConfig

TRIES = 3
BACK_WITHIN_S = 60.0
ENDED_BY_ITSELF = 1000
STATE_LIMIT = 1024 * 1024
KEPT_FREELY = 100
KEPT_EVERY_S = 0.5


class StateKeeper:
    """Commits the states a service gives, the newest in place of the one before.

    Each is a write to the store that all runs share: of too many a service has to wait for every one.
    """

    def __init__(self, grading: Grading) -> None:
        self._grading = grading
        self._kept_at = 0.0
        self.kept = 0
        """How many were committed."""

    async def __call__(self, state: Json) -> None:
        try:
            check_data("saved state", state, STATE_LIMIT)
        except GraderError as error:
            self._grading.log("stderr", f"{error} It is not kept.\n")
            return
        if self.kept >= KEPT_FREELY:
            await asyncio.sleep(max(0.0, self._kept_at + KEPT_EVERY_S - time.monotonic()))
        await self._grading.save({"state": state})
        self._kept_at = time.monotonic()
        self.kept += 1


async def evaluate_in_sandbox(
    client: BenchmarkServiceClient, access: SandboxProviderConfig | None, grading: Grading
) -> Any:
    """The service's result for what is in the sandbox."""
    states = StateKeeper(grading)

    def tell(text: str) -> None:
        grading.log("stdout", text if text.endswith("\n") else f"{text}\n")

    for left in reversed(range(TRIES)):
        try:
            return await client.evaluate_instance(
                grading.task.id,
                grading.sandbox.id,
                sandbox_provider=access,
                on_message=tell,
                on_error=lambda text: tell(f"error: {text}"),
                on_resume_state=states,
                dataset=grading.task.metadata["dataset"],
            )
        except StreamIdleError:
            raise
        except BenchmarkServiceConnectionError as error:
            ended = getattr(error, "close_code", None) == ENDED_BY_ITSELF
            if ended or states.kept or not await _is_back(client):
                raise
            if not left:
                raise GraderError(
                    f"{error}; it went away {TRIES} times while it graded this sandbox, and is back.",
                    cause="service_failed",
                ) from error
            tell(f"{error}; it is back, and grades the sandbox again")
            await grading.sandbox.kill_all()
    raise AssertionError("the last try returns or raises")


async def _is_back(client: BenchmarkServiceClient) -> bool:
    """Whether the service answers again before long."""
    try:
        async with asyncio.timeout(BACK_WITHIN_S):
            while True:
                try:
                    if await client.health_check():
                        return True
                except BenchmarkServiceError:
                    pass
                await asyncio.sleep(0.5)  # nothing tells us when a service comes up
    except TimeoutError:
        return False
