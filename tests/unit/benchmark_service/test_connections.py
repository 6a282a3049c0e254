"""The transport for many requests at once, against a server that answers bytes as they are written here."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from benchmark_service import http_connections
from benchmark_service.client_http import PooledTransport
from tests.unit.benchmark_runner.canned import answering, http, looks_around

OK = http(b"fine")
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"


async def body_of(client: httpx.AsyncClient, url: str) -> str:
    response = await client.post(url, content=b"question", headers={"x-one": "1"})
    return f"{response.status_code} {response.text}"


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
    async with answering(answer, OK) as server, httpx.AsyncClient(transport=PooledTransport()) as client:
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
    async with answering(answer, OK) as server, httpx.AsyncClient(transport=PooledTransport()) as client:
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
    async with answering(answer, OK) as server, httpx.AsyncClient(transport=PooledTransport()) as client:
        with pytest.raises(httpx.TransportError):
            await body_of(client, server.url)
        assert await body_of(client, server.url) == "200 fine"
    assert server.connections == 2


async def test_a_large_answer_is_taken_at_the_readers_pace() -> None:
    large = b"x" * 5_000_000
    async with answering(http(large)) as server, httpx.AsyncClient(transport=PooledTransport()) as client:
        async with client.stream("POST", server.url, content=b"question") as response:
            size = 0
            async for piece in response.aiter_bytes():
                size += len(piece)
                await asyncio.sleep(0)
    assert size == len(large)


async def test_an_answer_left_in_the_middle_leaves_its_connection() -> None:
    async with (
        answering(http(b"x" * 5_000_000), OK) as server,
        httpx.AsyncClient(transport=PooledTransport()) as client,
    ):
        async with client.stream("POST", server.url, content=b"question") as response:
            async for _ in response.aiter_bytes():
                break
        assert await body_of(client, server.url) == "200 fine"
    assert server.connections == 2


async def test_silence_ends_in_a_timeout() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\n") as server:
        async with httpx.AsyncClient(
            transport=PooledTransport(), timeout=httpx.Timeout(60, read=0.05)
        ) as client:
            with pytest.raises(httpx.ReadTimeout):
                await body_of(client, server.url)


async def test_idle_connections_are_let_go_in_time() -> None:
    async with (
        answering(OK, OK) as server,
        httpx.AsyncClient(
            transport=PooledTransport(http_connections.ConnectionPool(keepalive_s=0))
        ) as client,
    ):
        await body_of(client, server.url)
        await body_of(client, server.url)
    assert server.connections == 2


async def test_nothing_listens() -> None:
    async with answering() as server:
        gone = server.url
    async with httpx.AsyncClient(transport=PooledTransport()) as client:
        with pytest.raises(httpx.ConnectError):
            await body_of(client, gone)


async def test_a_header_cannot_smuggle_another() -> None:
    async with answering(OK) as server, httpx.AsyncClient(transport=PooledTransport()) as client:
        with pytest.raises(httpx.LocalProtocolError):
            await client.post(server.url, headers={"x-one": "1\r\nx-two: 2"})
    assert not server.requests


async def test_the_certificate_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = self_signed(tmp_path)
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(certificate, key)
    async with answering(OK, tls=served) as server:
        async with httpx.AsyncClient(transport=PooledTransport()) as client:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await body_of(client, server.url)
        trusting = ssl.create_default_context(cafile=str(certificate))
        monkeypatch.setattr(http_connections, "trusted_context", lambda: trusting)
        async with httpx.AsyncClient(transport=PooledTransport()) as client:
            assert await body_of(client, server.url) == "200 fine"
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
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
        monkeypatch.setenv("http_proxy", server.url)
        monkeypatch.setenv("no_proxy", "direct.example")
        async with httpx.AsyncClient(transport=PooledTransport()) as client:
            assert await body_of(client, "http://somewhere.example/") == "200 by proxy"
            assert await body_of(client, server.url) == "200 fine"
    assert server.requests[0].startswith(b"POST http://somewhere.example/ HTTP/1.1")
