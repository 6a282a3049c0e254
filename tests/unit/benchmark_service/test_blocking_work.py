"""Thread work that ends before its cancelled caller does; the numeric Retry-After."""

from __future__ import annotations

import asyncio
import threading

import pytest

from benchmark_service.aws import run_blocking
from benchmark_service.retry_after import parse_retry_after_seconds
from sandboxes.retry import LONGEST_ASKED_S


async def test_the_result_and_the_error_come_back() -> None:
    assert await run_blocking(divmod, 7, 3) == (2, 1)
    with pytest.raises(ZeroDivisionError):
        await run_blocking(divmod, 1, 0)


async def test_a_cancelled_caller_waits_for_the_thread() -> None:
    started, go, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        go.wait(60)
        ended.set()

    calling = asyncio.ensure_future(run_blocking(work))
    await asyncio.to_thread(started.wait, 30)
    calling.cancel()
    await asyncio.sleep(0)
    assert not calling.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert ended.is_set()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        (" 17 ", 17.0),
        ("2.5", 2.5),
        (None, None),
        ("", None),
        ("-1", None),
        ("1e9", None),
        ("inf", None),
        ("٣", None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        ("9999999999", LONGEST_ASKED_S),
    ],
)
def test_retry_after(text: str | None, seconds: float | None) -> None:
    assert parse_retry_after_seconds(text) == seconds
