"""What a request's body may cost, and which token a request shows."""

from __future__ import annotations

import asyncio

import pytest
from starlette.datastructures import Headers
from starlette.types import Message

from sandboxes.web_gate import BodyError, BodyPace, RequestBody, bearer_token


@pytest.mark.parametrize(
    ("shown", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Bearer", ""),
        ("Basic abc", ""),
        ("abc", ""),
        ("", ""),
    ],
)
def test_the_token_of_a_bearer(shown: str, token: str) -> None:
    assert bearer_token(Headers({"Authorization": shown})) == token
    assert bearer_token(Headers({})) == ""


@pytest.mark.parametrize(
    ("limit", "told"),
    [(16 << 20, "larger than 16 MiB"), (100, "larger than 100 bytes")],
)
def test_an_announced_length_over_the_limit(limit: int, told: str) -> None:
    body = RequestBody(_pieces, Headers({"Content-Length": str(limit + 1)}), limit, BodyPace())
    with pytest.raises(BodyError, match=told) as caught:
        body.check_announced()
    assert (caught.value.status_code, caught.value.cause) == (413, "too_large")
    RequestBody(_pieces, Headers({"Content-Length": str(limit)}), limit, BodyPace()).check_announced()


async def test_an_application_that_reads_slowly_is_not_the_clients_fault() -> None:
    body = RequestBody(_pieces, Headers({}), 100, BodyPace(pause_s=0.5, rate=1 << 30))
    await body.receive()
    await asyncio.sleep(0.6)  # what the application does between two pieces
    assert (await body.receive())["body"] == b"x"


async def _pieces() -> Message:
    await asyncio.sleep(0)
    return {"type": "http.request", "body": b"x", "more_body": True}
