"""The HTTP client, against a server that answers bytes as they are written here."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from benchmark_service import http_client
from benchmark_service.http_client import (
    BrokeOffError,
    HttpClient,
    NotConnectedError,
    SilentError,
    UndecodableError,
)
from tests.unit.benchmark_runner.canned import answering, http, looks_around

OK = http(b"fine")
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"


@asynccontextmanager
async def client_of(**options: Any) -> AsyncIterator[HttpClient]:
    client = HttpClient(**{"connect_s": 10, "read_s": 10, **options})
    try:
        yield client
    finally:
        await client.close()


async def body_of(client: HttpClient, url: str) -> str:
    async with client.request("POST", url, {"x-one": "1"}, b"question") as incoming:
        body = b"".join([piece async for piece in incoming.pieces])
        return f"{incoming.status} {body.decode()}"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (OK, "200 fine"),
        (http(b"", "204 No Content"), "204 "),
        (http(b"gone", "404 Not Found"), "404 gone"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, "200 fine"),
        (CHUNKED + b"3;x=y\r\nfin\r\n1\r\ne\r\n0\r\nx-t: 1\r\n\r\n", "200 fine"),
    ],
)
async def test_an_answer_is_read_and_its_connection_used_again(answer: bytes, said: str) -> None:
    async with answering(answer, OK) as server, client_of() as client:
        assert await body_of(client, f"{server.url}/a?b=c") == said
        assert await body_of(client, server.url) == "200 fine"
    assert server.connections == 1
    assert server.requests[0].startswith(b"POST /a?b=c HTTP/1.1\r\n")
    assert server.requests[0].endswith(b"\r\n\r\nquestion") and b"x-one: 1\r\n" in server.requests[0].lower()


@pytest.mark.parametrize(
    "answer",
    [
        http(b"fine", connection="close"),
        b"HTTP/1.0 200 OK\r\ncontent-length: 4\r\n\r\nfine",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nfine",
        OK + b"HTTP/1.1 408 Request Timeout\r\n\r\n",
    ],
)
async def test_a_connection_that_does_not_last_is_not_used_again(answer: bytes) -> None:
    async with answering(answer, OK) as server, client_of() as client:
        assert await body_of(client, server.url) == "200 fine"
        await looks_around()
        assert await body_of(client, server.url) == "200 fine"
    assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000,
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 9\r\n\r\nfine",
        b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\ncontent-length: 5\r\n\r\nfine",
        b"HTTP/1.1 200 OK\r\ncontent-length: -4\r\n\r\nfine",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nfine\r\n0\r\n\r\n",
    ],
)
async def test_what_is_no_answer_is_an_error_and_ends_the_connection(answer: bytes) -> None:
    async with answering(answer, OK) as server, client_of() as client:
        with pytest.raises(BrokeOffError):
            await body_of(client, server.url)
        assert await body_of(client, server.url) == "200 fine"
    assert server.connections == 2


async def test_a_large_answer_is_taken_at_the_readers_pace() -> None:
    large = b"x" * 5_000_000
    async with answering(http(large)) as server, client_of() as client:
        async with client.request("POST", server.url, content=b"question") as incoming:
            size = 0
            async for piece in incoming.pieces:
                size += len(piece)
                await asyncio.sleep(0)
    assert size == len(large)


async def test_a_compressed_answer_is_unpacked_no_faster_than_it_is_read() -> None:
    bomb = gzip.compress(bytes(200_000_000), compresslevel=1)
    async with answering(http(bomb, content_encoding="gzip"), OK) as server, client_of() as client:
        async with client.request("POST", server.url, content=b"question") as incoming:
            first = await anext(incoming.pieces)
        assert 0 < len(first) < 10_000_000
        assert await body_of(client, server.url) == "200 fine"
    assert server.connections == 2


async def test_what_is_not_compressed_as_it_says_cannot_be_decoded() -> None:
    async with answering(http(b"not gzip", content_encoding="gzip")) as server, client_of() as client:
        with pytest.raises(UndecodableError):
            await body_of(client, server.url)


async def test_an_answer_left_in_the_middle_leaves_its_connection() -> None:
    async with answering(http(b"x" * 5_000_000), OK) as server, client_of() as client:
        async with client.request("POST", server.url, content=b"question") as incoming:
            async for _ in incoming.pieces:
                break
        assert await body_of(client, server.url) == "200 fine"
    assert server.connections == 2


async def test_silence_ends_in_a_timeout() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\n") as server, client_of(read_s=0.05) as client:
        with pytest.raises(SilentError):
            await body_of(client, server.url)


async def test_idle_connections_are_let_go_in_time() -> None:
    async with answering(OK, OK) as server, client_of(keepalive_s=0.001) as client:
        await body_of(client, server.url)
        await looks_around()
        await body_of(client, server.url)
    assert server.connections == 2


async def test_nothing_listens() -> None:
    async with answering() as server:
        gone = server.url
    async with client_of() as client:
        with pytest.raises(NotConnectedError):
            await body_of(client, gone)


async def test_a_header_cannot_smuggle_another() -> None:
    async with answering(OK) as server, client_of() as client:
        with pytest.raises(ValueError, match="headers"):
            async with client.request("POST", server.url, {"x-one": "1\r\nx-two: 2"}, b""):
                pass
    assert not server.requests


async def test_user_and_password_of_a_url_travel_as_a_header() -> None:
    async with answering(OK) as server, client_of(headers={"authorization": "Bearer x"}) as client:
        assert await body_of(client, server.url.replace("://", "://me:pa%20ss@")) == "200 fine"
    (request,) = server.requests
    assert b"authorization: basic bwu6cgegc3m=\r\n" in request.lower() and b"bearer" not in request.lower()


async def test_a_redirect_is_an_answer_like_others() -> None:
    async with answering(http(b"", "302 Found", location="http://127.0.0.1:1/")) as server:
        async with client_of() as client, client.request("POST", server.url, content=b"") as incoming:
            assert (incoming.status, incoming.headers["Location"]) == (302, "http://127.0.0.1:1/")


async def test_connections_go_to_the_addresses_that_were_checked() -> None:
    asked: list[tuple[str, int]] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append((host, port))
        if host == "127.0.0.1":
            raise ConnectionRefusedError("not there")
        return ["127.0.0.9", "127.0.0.1"]

    async with answering(OK) as server, client_of(resolve=resolve) as client:
        port = server.url.rpartition(":")[2]
        assert await body_of(client, f"http://somewhere.example:{port}/") == "200 fine"
        for refused in (server.url, f"http://127.0.0.1:{port}/again"):
            with pytest.raises(NotConnectedError, match=r"^not there$"):
                await body_of(client, refused)
    assert asked == [("somewhere.example", int(port)), *[("127.0.0.1", int(port))] * 2]
    assert b"host: somewhere.example:" in server.requests[0].lower() and len(server.requests) == 1


@pytest.mark.parametrize("host", ["2130706433", "127.1", "0x7f.0.0.1", "[::ffff:127.0.0.1]"])
async def test_no_spelling_of_an_address_goes_round_the_check(host: str) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        raise ConnectionRefusedError("not there")

    async with answering(OK) as server, client_of(resolve=resolve) as client:
        with pytest.raises(NotConnectedError):
            await body_of(client, server.url.replace("127.0.0.1", host))
    assert not server.connections


async def test_the_certificate_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = self_signed(tmp_path)
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(certificate, key)
    async with answering(OK, tls=served) as server:
        async with client_of() as client:
            with pytest.raises(NotConnectedError, match="CERTIFICATE_VERIFY_FAILED"):
                await body_of(client, server.url)
        trusting = ssl.create_default_context(cafile=str(certificate))
        monkeypatch.setattr(http_client, "trusted_context", lambda: trusting)
        async with client_of() as client:
            assert await body_of(client, server.url) == "200 fine"
            with pytest.raises(NotConnectedError, match="CERTIFICATE_VERIFY_FAILED"):
                await body_of(client, server.url.replace("127.0.0.1", "localhost"))


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, and its key."""
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, secret.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(address, critical=False)
        .sign(secret, hashes.SHA256())
    )
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(Encoding.PEM))
    key.write_bytes(secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate, key


async def test_proxies_of_the_environment_are_used_but_not_for_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with answering(http(b"by proxy"), OK) as server:
        monkeypatch.setenv("http_proxy", server.url.replace("://", "://me:secret@"))
        monkeypatch.setenv("no_proxy", "direct.example")
        async with client_of() as client:
            assert await body_of(client, "http://somewhere.example/") == "200 by proxy"
            assert await body_of(client, server.url) == "200 fine"
    assert server.requests[0].startswith(b"POST http://somewhere.example/ HTTP/1.1")
    assert b"proxy-authorization: basic bwu6c2vjcmv0\r\n" in server.requests[0].lower()
    assert b"proxy-authorization" not in server.requests[1].lower()


async def test_a_proxy_is_not_the_callers_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        raise ConnectionRefusedError("not there")

    async with answering(http(b"by proxy")) as server, client_of(resolve=resolve) as client:
        monkeypatch.setenv("http_proxy", server.url)
        assert await body_of(client, "http://somewhere.example/") == "200 by proxy"
