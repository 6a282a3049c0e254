"""One message over a real connection: to the checked address, in time, nowhere else."""

from __future__ import annotations

import asyncio
import datetime
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.integration.notifications.receiver import Receiver, Reply
from valkyrie.notifications.outbox import DeliveryError, Sender
from valkyrie.targets import TargetError


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver().running() as running:
        yield running


def to_loopback(_host: str, _port: int) -> Sequence[str]:
    return ["127.0.0.1"]


async def test_a_message_arrives_whole_under_the_name_it_was_sent_to(receiver: Receiver) -> None:
    sender = Sender(True, resolver=to_loopback)
    url = f"http://hooks.example:{receiver.port}/services/T0?x=1"
    answer = await sender.post(url, {"X-One": "1"}, b"{}")
    assert answer.status == 200
    (arrived,) = receiver.arrived
    assert arrived.path == "/services/T0?x=1"
    assert arrived.body == b"{}"
    assert arrived.headers["host"] == f"hooks.example:{receiver.port}"
    assert arrived.headers["x-one"] == "1"


async def test_loopback_is_refused_before_anything_is_sent(receiver: Receiver) -> None:
    for url in (
        receiver.url,
        f"http://hooks.example:{receiver.port}/",
        f"http://2130706433:{receiver.port}/",
    ):
        resolver = to_loopback if "example" in url else None
        sender = Sender(False, resolver=resolver) if resolver else Sender(False)
        with pytest.raises(TargetError, match="loopback"):
            await sender.post(url, {}, b"")
    assert receiver.arrived == []


async def test_whether_loopback_is_allowed_is_asked_for_every_message(receiver: Receiver) -> None:
    said = [False, True]
    sender = Sender(lambda: said.pop(0))
    with pytest.raises(TargetError, match="loopback"):
        await sender.post(receiver.url, {}, b"")
    assert (await sender.post(receiver.url, {}, b"")).status == 200


async def test_a_name_that_answers_differently_the_second_time_gains_nothing(receiver: Receiver) -> None:
    asked: list[str] = []

    def rebinding(host: str, _port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    await Sender(True, resolver=rebinding).post(f"http://twice.example:{receiver.port}/", {}, b"")
    assert asked == ["twice.example"]
    assert len(receiver.arrived) == 1


async def test_redirects_are_not_followed(receiver: Receiver) -> None:
    receiver.replies = [Reply(302, {"Location": "/elsewhere"}), Reply(200)]
    answer = await Sender(True).post(receiver.url, {}, b"")
    assert answer.status == 302
    assert [one.path for one in receiver.arrived] == ["/hook"]


async def test_a_silent_receiver_is_given_up(receiver: Receiver) -> None:
    receiver.replies = [Reply(silent=True)]
    for seconds in (0.3, 3.0, 30.0):  # it must have been reached, which takes a busy machine longer
        with pytest.raises(DeliveryError) as caught:
            await Sender(True, timeout=seconds).post(receiver.url, {}, b"")
        if receiver.arrived:
            break
    assert f"no answer within {seconds:g} s" in str(caught.value)
    assert caught.value.maybe_taken


async def test_a_connection_that_breaks_may_have_taken_the_message(receiver: Receiver) -> None:
    receiver.replies = [Reply(hang_up=True)]
    with pytest.raises(DeliveryError, match="broke") as caught:
        await Sender(True).post(receiver.url, {}, b"")
    assert caught.value.maybe_taken


async def test_where_nobody_listens_nothing_was_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        with pytest.raises(DeliveryError, match="no connection") as caught:
            await Sender(True).post(url, {}, b"")
    assert not caught.value.maybe_taken


async def test_the_next_address_is_tried_when_one_does_not_listen(receiver: Receiver) -> None:
    sender = Sender(True, resolver=lambda _host, _port: ["127.0.0.9", "127.0.0.1"])
    assert (await sender.post(f"http://two.example:{receiver.port}/", {}, b"")).status == 200


async def test_a_name_without_an_address_was_sent_nothing() -> None:
    def unknown(_host: str, _port: int) -> Sequence[str]:
        raise socket.gaierror("unknown")

    with pytest.raises(DeliveryError, match="resolved") as caught:
        await Sender(True, resolver=unknown).post("http://nobody.example/", {}, b"")
    assert not caught.value.maybe_taken


async def test_a_resolver_that_hangs_holds_nobody_up() -> None:
    import threading

    released = threading.Event()

    def hanging(_host: str, _port: int) -> Sequence[str]:
        released.wait()
        return ["127.0.0.1"]

    try:
        with pytest.raises(DeliveryError, match="not resolved"):
            await Sender(True, timeout=0.2, resolver=hanging).post("http://slow.example/", {}, b"")
    finally:
        released.set()


async def test_what_a_refusal_says_is_read_only_so_far(receiver: Receiver) -> None:
    receiver.replies = [Reply(500, body=b"x" * 100_000)]
    assert len((await Sender(True).post(receiver.url, {}, b"")).text) == 500


async def test_no_log_shows_the_address(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await Sender(True).post(f"http://127.0.0.1:{receiver.port}/services/hunter2", {}, b"")
    assert len(receiver.arrived) == 1
    assert "hunter2" not in caplog.text


async def test_tls_is_checked_against_the_name_not_the_address(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "hooks.example")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    asked_for: list[str | None] = []
    serving.sni_callback = lambda _socket, name, _context: asked_for.append(name)
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with Receiver().running(serving) as receiver:
        sender = Sender(True, resolver=to_loopback, tls=trusting)
        answer = await sender.post(f"https://hooks.example:{receiver.port}/", {}, b"")
        assert answer.status == 200
        assert asked_for == ["hooks.example"]
        for wrong in (f"https://other.example:{receiver.port}/", f"https://127.0.0.1:{receiver.port}/"):
            with pytest.raises(DeliveryError, match="no connection"):
                await sender.post(wrong, {}, b"")
        assert len(receiver.arrived) == 1


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = folder / "cert.pem", folder / "key.pem"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return files


async def test_cancelling_hangs_up(receiver: Receiver) -> None:
    receiver.replies = [Reply(silent=True)]
    task = asyncio.create_task(Sender(True).post(receiver.url, {}, b""))
    while not receiver.arrived:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while receiver.at_once:
        await asyncio.sleep(0)
