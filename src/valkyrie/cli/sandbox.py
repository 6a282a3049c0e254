"""`sandbox serve`."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import shlex
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import click

from benchmark_runner.terminal import safe
from sandboxes.registry import open_provider
from sandboxes.server import SandboxServer
from valkyrie.cli.doctor import local_sandbox
from valkyrie.cli.options import WholeNumber, verb
from valkyrie.cli.output import Output
from valkyrie.config.schema import check_url
from valkyrie.config.values import data_folder
from valkyrie.errors import UserError
from valkyrie.store.layout import DataFolder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sandboxes.protocol import SandboxProvider
    from sandboxes.server import Grant

PROVIDERS = ["local", "process", "null"]


@dataclass(frozen=True, slots=True)
class Offer:
    """What is served, to whom, and where."""

    provider: str
    host: str
    port: int
    public_url: str | None
    host_image: bool
    key_file: str | None


def _check_url(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    try:
        return check_url(value) if value is not None else None
    except ValueError as error:
        raise click.BadParameter(f"{error}.", ctx=ctx, param=param) from None


@verb(
    "serve",
    examples="valk sandbox serve\n"
    "valk sandbox serve --port 3986 --public-url https://something.ngrok-free.dev\n"
    "valk sandbox serve --key-file ./key --json",
)
@click.option(
    "--provider",
    type=click.Choice(PROVIDERS),
    default="local",
    show_default=True,
    help="Whose sandboxes; `process` isolates nothing.",
)
@click.option(
    "--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Address to listen on."
)
@click.option(
    "--port",
    type=WholeNumber(min=0, max=65535),
    metavar="N",
    default=0,
    show_default=True,
    help="Port to listen on; 0 is any free one.",
)
@click.option(
    "--public-url",
    metavar="URL",
    callback=_check_url,
    help="Where clients reach it, when that is another address: a tunnel to it, for instance.",
)
@click.option(
    "--allow-remote", is_flag=True, help="Listen on an address that other machines can reach, unencrypted."
)
@click.option(
    "--host-image", is_flag=True, help="Give a sandbox that names an image the host's file system instead."
)
@click.option(
    "--key-file",
    metavar="FILE",
    help="Write the key to this file (mode 0600, removed at the end), do not print it.",
)
def serve(output: Output, *, allow_remote: bool, **given: Any) -> None:
    """Serve sandboxes over Daytona's REST until interrupted.

    A benchmark service, or any program that uses the Daytona SDK, then makes its sandboxes on this
    machine. `run start` does this by itself when a service needs it; by hand it is for trying a service
    out. The key is new each time. Ctrl+C ends the server and every sandbox made through it.
    """
    offer = Offer(**given)
    if not _is_loopback(offer.host):
        if not allow_remote:
            raise click.UsageError(
                f"{offer.host} can be reached from other machines, unencrypted. Better a tunnel to loopback "
                "and --public-url; else add --allow-remote."
            )
        output.note(f"Warning: {offer.host} is open to other machines; whoever has the key runs code here.")
    if not (output.terminal or output.json or offer.key_file):
        raise click.UsageError("Nobody would see the key here: add --key-file FILE or --json.")
    _check_provider(offer.provider, output)
    asyncio.run(_serve(offer, output))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_provider(name: str, output: Output) -> None:
    if name == "process":
        output.note("Warning: NOTHING IS ISOLATED: what clients run can do all that you can.")
    if name == "local" and not (local := local_sandbox()).works:
        raise click.ClickException(
            f"The local sandbox cannot work here: {local.problem}. `valk doctor` says how to get it."
        )


async def _serve(offer: Offer, output: Output) -> None:
    labels = {"Home": f"serve-{os.getpid()}-{token_hex(4)}"}
    # Apart from the folders of the executor, which sweeps its own.
    folder = DataFolder(data_folder()).make().root / "served" / offer.provider
    with _ending_signals() as asked_to_end:
        provider = open_provider(offer.provider, folder)
        server = SandboxServer(host=offer.host, port=offer.port, public_url=offer.public_url)
        try:
            await _start(server, offer)
            grant = server.grant(provider, labels=labels, host_image=offer.host_image)
            with _key_file(offer.key_file, grant.api_key):
                _show(grant, offer, provider, output)
                await asked_to_end.wait()
        finally:
            ended = await _end(server, provider, labels)
    output.emit("sandbox_server_ended", sandboxes=ended)
    output.line(f"Ended; sandboxes that were still there: {ended}.")


@contextmanager
def _ending_signals() -> Iterator[asyncio.Event]:
    """An event that the first signal to end sets; a second one has its usual force."""
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def forget() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)

    def end() -> None:
        asked.set()
        forget()

    for number in numbers:
        loop.add_signal_handler(number, end)
    try:
        yield asked
    finally:
        forget()


async def _start(server: SandboxServer, offer: Offer) -> None:
    try:
        await server.start()
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"Cannot listen on {offer.host}, port {offer.port}: {reason}.") from error


async def _end(server: SandboxServer, provider: SandboxProvider, labels: Mapping[str, str]) -> int:
    """End the server, then its sandboxes; how many there were."""
    try:
        await server.close()
    finally:
        try:
            ended = await provider.reap(labels)
        finally:
            await provider.close()
    return ended


@contextmanager
def _key_file(path: str | None, key: str) -> Iterator[None]:
    """The key in a file of its own that only its owner can read, as long as it is worth something."""
    if path is None:
        yield
        return
    file = Path(path)
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(key + "\n")
        yield
    finally:
        file.unlink(missing_ok=True)


def _show(grant: Grant, offer: Offer, provider: SandboxProvider, output: Output) -> None:
    shown_key = None if offer.key_file else grant.api_key
    output.emit(
        "sandbox_server",
        provider=offer.provider,
        api_url=grant.api_url,
        target=grant.target,
        api_key=shown_key,
        key_file=offer.key_file,
        pid=os.getpid(),
    )
    rows = [("API", safe(grant.api_url)), ("Target", safe(grant.target))]
    output.panel("Serving sandboxes", [*rows, ("Isolation", safe(provider.capabilities().isolation))])
    key = shown_key or f'"$(cat {shlex.quote(str(offer.key_file))})"'
    output.lines(
        [
            f"export DAYTONA_API_URL={shlex.quote(grant.api_url)}",
            f"export DAYTONA_TARGET={shlex.quote(grant.target)}",
            f"export DAYTONA_API_KEY={key}",
        ]
    )
    output.note("Ctrl+C ends the server and its sandboxes.")
