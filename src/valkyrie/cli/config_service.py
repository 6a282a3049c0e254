"""`config service` and `config auth`: benchmark services and their credentials."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import click

from benchmark_runner.terminal import Column, Table, TerminalStyle, safe
from valkyrie.benchmarks.named.catalog import SHIPPED
from valkyrie.cli.config import HISTORY, asked, forget, name_argument
from valkyrie.cli.options import Decorated, verb
from valkyrie.cli.output import Output
from valkyrie.config.values import mapping, masked, registry, set_entry
from valkyrie.report.formats import NONE

if TYPE_CHECKING:
    from valkyrie.config.values import Entry


SERVICES = "custom_benchmark_services"
CHECK_SECONDS = 3.0
CHECKS_AT_ONCE = 20


@dataclass(frozen=True, slots=True)
class Service:
    """One service that can be named, and how it answered."""

    name: str
    url: str
    grading: str | None
    source: str
    """`custom` (the config file) or `registry`."""
    healthy: bool | None = None
    """None when it was not asked."""
    problem: str | None = None
    version: str | None = None


def _set_arguments(function: Decorated) -> Decorated:
    function = click.option(
        "--grading",
        type=click.Choice(["text", "sandbox"]),
        help="How it grades: the agent's answer as text, or in the sandbox [default: what the service says].",
    )(function)
    return name_argument(SERVICES)(click.argument("url")(function))


@verb(
    "set",
    examples="valk config service set my-benchmark http://localhost:8001\n"
    "valk config service set quiz https://quiz.example.com --grading text",
)
@_set_arguments
def set_service(output: Output, *, name: str, url: str, grading: str | None) -> None:
    """Say where the service of a benchmark is.

    `run start --benchmark NAME` then uses it. URL is http(s) with a host; credentials do not belong in it:
    see `config auth set`.
    """
    _set(output, name, url, grading)


@verb("add", examples="valk config service add my-benchmark https://something.ngrok-free.dev")
@_set_arguments
def add(output: Output, *, name: str, url: str, grading: str | None) -> None:
    """Same as `config service set`."""
    _set(output, name, url, grading)


def _set(output: Output, name: str, url: str, grading: str | None) -> None:
    kept = set_entry(SERVICES, name, {"url": url, "grading": grading} if grading else url)
    address = kept["url"] if isinstance(kept, dict) else str(kept)
    output.emit("service", name=name, url=address, grading=grading, shadows_shipped=name in SHIPPED)
    output.line(f"{name} is at {safe(address)}")
    if name in SHIPPED:
        output.note(
            f"Note: {name} is also a benchmark that comes along; --ignore-custom-services uses that one."
        )
    rows = [
        ("Does it answer?", "valk config service list"),
        ("Its tasks", f"valk benchmark tasks {name}"),
        ("Run it", f"valk run start --benchmark {name} --agent AGENT"),
    ]
    output.panel("Next", rows)


@verb("list", examples="valk config service list\nvalk config service list --no-check --json")
@click.option("--no-check", is_flag=True, help="Do not ask the services whether they are up.")
def list_services(output: Output, *, no_check: bool) -> None:
    """List the services, and whether each answers.

    Those of the config file, then those of the registry file (key service_registry). All are asked at
    once, 3 seconds at most; the exit code is 0 whatever they answer.
    """
    services = known_services()
    if not no_check and services:
        services = asyncio.run(_checked(services))
    output.emit("service_list", services=[asdict(service) for service in services])
    if not services:
        output.note("No services yet. Add one: valk config service set NAME URL")
        return
    table = Table(
        [
            Column("Name"),
            Column("URL", shrink=True),
            Column("Grading"),
            Column("From"),
            Column("Health", shrink=True),
        ]
    )
    for service in services:
        cells = [service.name, safe(service.url), service.grading or NONE, service.source]
        table.rows.append([*cells, _health(service, output.ink)])
    output.table(table)


def known_services() -> list[Service]:
    """Every service that can be named, the config file's first; no network."""
    custom = mapping(SERVICES)
    registered = {name: entry for name, entry in registry().items() if name not in custom}
    return [
        *(_service(name, entry, "custom") for name, entry in custom.items()),
        *(_service(name, entry, "registry") for name, entry in registered.items()),
    ]


def _service(name: str, entry: Entry, source: str) -> Service:
    if isinstance(entry, dict):
        return Service(name, entry["url"], entry["grading"], source)
    return Service(name, str(entry), None, source)


def _health(service: Service, ink: TerminalStyle) -> str:
    if service.healthy is None:
        return NONE
    if not service.healthy:
        return ink.paint(f"down: {safe(service.problem)}", "red")
    return ink.paint("ok", "green") + (f"  {safe(service.version)}" if service.version else "")


async def _checked(services: Sequence[Service]) -> list[Service]:
    credentials = mapping("benchmark_auth")
    room = asyncio.Semaphore(CHECKS_AT_ONCE)

    async def check(service: Service) -> Service:
        credential = credentials.get(service.name)
        async with room:
            return await _ask(service, {"Authorization": credential} if credential else {})

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(check(service)) for service in services]
    return [task.result() for task in asked]


async def _ask(service: Service, headers: dict[str, str]) -> Service:
    from benchmark_service.client import BenchmarkServiceClient
    from benchmark_service.errors import BenchmarkServiceError

    async with BenchmarkServiceClient(service.url, headers, timeout=CHECK_SECONDS) as client:
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                healthy = await client.health_check(retry=False)
        except TimeoutError:
            return replace(service, healthy=False, problem=f"no answer in {CHECK_SECONDS:g} s")
        except BenchmarkServiceError as error:
            return replace(service, healthy=False, problem=str(error))
        if not healthy:
            return replace(service, healthy=False, problem="/health does not say that it is well")
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                version = (await client.version()).service_version
        except (TimeoutError, BenchmarkServiceError):
            version = None  # services of the first framework versions have no /version
    return replace(service, healthy=True, version=version)


@verb("remove", examples="valk config service remove my-benchmark")
@name_argument(SERVICES)
def remove(output: Output, *, name: str) -> int:
    """Forget where a service is.

    Its credential stays: see `config auth remove`. Exit 1 when there was none of that name.
    """
    return forget(output, SERVICES, name, "service_removed")


# `config auth set`, `list`, `remove`.

AUTH = "benchmark_auth"


@verb(
    "set",
    examples="valk config auth set my-benchmark\n"
    'valk config auth set my-benchmark "Bearer $KEY"\n'
    'printf "Bearer %s" "$KEY" | valk config auth set my-benchmark -',
)
@name_argument(AUTH)
@click.argument("credential", required=False)
def set_credential(output: Output, *, name: str, credential: str | None) -> None:
    """Keep the credential of a benchmark's service.

    It is sent as the header `Authorization`, as it is (`Bearer …` included), with every request to the
    service called NAME. Left out it is asked for, or read from stdin in a pipe; `-` reads stdin.
    """
    as_argument = credential not in (None, "-")
    kept = str(
        set_entry(AUTH, name, credential if as_argument else asked(f"Credential of {name}", credential))
    )
    output.emit("auth", name=name, credential=masked(kept))
    output.line(f"Kept the credential of {name}: {masked(kept)}")
    if as_argument:
        output.note(HISTORY.format(what="the credential"))


@verb("list", examples="valk config auth list")
def list_credentials(output: Output) -> None:
    """List the services with a credential, masked."""
    found = [(name, masked(credential)) for name, credential in mapping(AUTH).items()]
    output.emit("auth_list", credentials=[{"name": name, "credential": shown} for name, shown in found])
    if not found:
        output.note("No credentials yet. Keep one: valk config auth set NAME")
        return
    table = Table([Column("Name"), Column("Credential")])
    table.rows += [[name, shown] for name, shown in found]
    output.table(table)


@verb("remove", examples="valk config auth remove my-benchmark")
@name_argument(AUTH)
def remove_credential(output: Output, *, name: str) -> int:
    """Forget a credential.

    Exit 1 when there was none of that name.
    """
    return forget(output, AUTH, name, "auth_removed")
