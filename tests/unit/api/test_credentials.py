"""Credentials of requests, and how long a good one is remembered."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from valkyrie.api.capacity import WorkerPool
from valkyrie.api.context import REMEMBER_S, KeyIdentifier, RequestCredential
from valkyrie.domain import Identity
from valkyrie.errors import AccessError, InfrastructureError
from valkyrie.tenants.organisation import Joined, Mode


class Book:
    """An authenticator that counts how often it is asked."""

    mode: Mode = "self-hosted"

    def __init__(self) -> None:
        self.asked: list[str | None] = []
        self.known = {"good": Identity("o", "O", "ada", "k")}

    def identify(self, api_key: str | None, bearer: str | None) -> Identity:
        self.asked.append(api_key or bearer)
        if (api_key or bearer or "") not in self.known:
            raise AccessError("unknown")
        return self.known[api_key or bearer or ""]

    def init(self, api_key: str | None, bearer: str | None) -> Joined:
        raise NotImplementedError


def headers(**given: str) -> Headers:
    return Headers({name.replace("_", "-"): value for name, value in given.items()})


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ({"authorization": "Bearer abc"}, (None, "abc")),
        ({"authorization": "bearer  abc "}, (None, "abc")),
        ({"x_api_key": "abc"}, ("abc", None)),
        ({"authorization": "Basic abc"}, (None, None)),
        ({"authorization": "Bearer"}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_where_a_key_is_looked_for(sent: dict[str, str], shown: tuple[str | None, str | None]) -> None:
    assert RequestCredential.of(headers(**sent)) == shown


async def test_a_good_answer_is_remembered_a_moment_and_a_bad_one_never() -> None:
    book, now = Book(), [0.0]
    door = KeyIdentifier(book, WorkerPool("callers", 1), lambda: now[0])
    for _ in range(3):
        assert (await door.identify(headers(x_api_key="good"))).person == "ada"
    assert book.asked == ["good"]
    for _ in range(2):
        with pytest.raises(AccessError):
            await door.identify(headers(x_api_key="bad"))
    assert book.asked == ["good", "bad", "bad"]
    book.known.clear()  # revoked
    now[0] = REMEMBER_S - 0.1
    await door.identify(headers(x_api_key="good"))
    now[0] = REMEMBER_S
    with pytest.raises(AccessError):
        await door.identify(headers(x_api_key="good"))


async def test_without_a_key_nobody_is_asked() -> None:
    book = Book()
    with pytest.raises(AccessError, match="API key is needed"):
        await KeyIdentifier(book, WorkerPool("callers", 1)).identify(headers())
    assert book.asked == []


async def test_a_lane_takes_no_more_than_it_can_line_up() -> None:
    import asyncio
    import threading

    lane, go = WorkerPool("requests", 1, waiting=1), threading.Event()
    # All in one turn of the loop, before any of them can be seen to wait.
    working = [asyncio.create_task(lane.run(go.wait)) for _ in range(50)]
    done, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(InfrastructureError, match="busy"):
        await lane.run(lambda: None)
    go.set()
    ended = await asyncio.gather(*working, return_exceptions=True)
    assert ended[:2] == [True, True]
    assert len(done) == 48 and all(isinstance(one, InfrastructureError) for one in ended[2:])
    assert await lane.run(lambda: "free again") == "free again"
