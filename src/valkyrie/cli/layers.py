"""`agent fetch` and `agent layers`: the installed software of catalogue agents, kept on this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from valkyrie.cli.options import verb
from valkyrie.cli.output import Output
from valkyrie.report.formats import safe, size
from valkyrie.report.layout import Column, Table

if TYPE_CHECKING:
    from valkyrie.agents.layers import Layers, RootKind
    from valkyrie.agents.protocol import LayerSpec


def _complete_installed(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from valkyrie.agents.catalog import CATALOG

    return [name for name, entry in CATALOG.items() if entry.version and name.startswith(incomplete)]


@verb(
    "fetch",
    examples="valk agent fetch claude-code\nvalk agent fetch codex --version 0.166.0 --image my-image",
)
@click.argument("name", shell_complete=_complete_installed)
@click.option("--version", metavar="VERSION", help="Which one [default: the catalogue's].")
@click.option(
    "--image", metavar="IMAGE", help="For containers of this image [default: this machine's files]."
)
def fetch(output: Output, *, name: str, version: str | None, image: str | None) -> None:
    """Install a catalogue agent ahead of its first run.

    It is installed once for each kind of root file system and shown to every trial. Packages come from where
    this machine's npm and pip take them; none of their code is run. Without network, copy the folder
    cache/layers of the data folder over from a machine that has it. One that was changed since it was
    installed is used by no run, and installed again by this command.
    """
    import asyncio

    from valkyrie.agents.layers import Layers, read_manifest
    from valkyrie.agents.layers.cache import as_json

    spec = _spec(name, version)
    layers = Layers(_folder())
    with _ended_by_sigterm():
        layer = asyncio.run(_fetched(layers, spec, image, output))
    manifest = read_manifest(layer)
    output.emit("agent_layer", layer=as_json(layer, manifest))
    output.line(f"{name} {spec.version} is ready  {size(manifest.bytes)}  {layer}")


@verb("layers", examples="valk agent layers")
def list_layers(output: Output) -> None:
    """List the catalogue agents that are installed here.

    A folder that is removed is installed again when it is needed.
    """
    from valkyrie.agents.layers.cache import as_json, layers_in

    found = layers_in(_folder())
    output.emit("agent_layers", layers=[as_json(layer, manifest) for layer, manifest in found])
    if not found:
        output.line("None yet. Install one ahead: valk agent fetch claude-code")
        return
    table = Table(
        [
            Column("Agent"),
            Column("Version"),
            Column("For"),
            Column("Size", "right"),
            Column("Folder", shrink=True),
        ]
    )
    for layer, manifest in found:
        root = " ".join(str(word) for word in manifest.root.values())
        table.rows.append(
            [safe(manifest.name), safe(manifest.version), safe(root), size(manifest.bytes), str(layer)]
        )
    output.table(table)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end what is under way as Ctrl+C does: npm and pip with all their children."""

    def interrupt(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the second one must not end the tidying up
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _folder() -> Path:
    from valkyrie.settings import data_folder

    return data_folder() / "cache" / "layers"


def _spec(name: str, version: str | None) -> LayerSpec:
    from valkyrie import plugins
    from valkyrie.agents.catalog import CATALOG, AgentOptions
    from valkyrie.agents.opening import PLUGIN_GROUP
    from valkyrie.errors import UsageError
    from valkyrie.suggest import did_you_mean

    installed = [known for known, entry in CATALOG.items() if entry.version]
    if name in CATALOG and name not in installed:
        raise UsageError(f"{name} is part of the program; there is nothing to fetch.")
    if name not in installed:
        hint = did_you_mean(name, installed) or f" There are {', '.join(installed)}."
        raise UsageError(f"no public agent of the catalogue is called {name!r}.{hint}")
    # The same software whatever the model; some want to be told one all the same.
    options = AgentOptions("openai/any", {"version": version} if version else {})
    spec: LayerSpec = plugins.load(CATALOG[name].target, group=PLUGIN_GROUP)(options).layer
    return spec


async def _fetched(layers: Layers, spec: LayerSpec, image: str | None, output: Output) -> Path:
    from valkyrie.agents.layers import kind_of_host

    root = await kind_of_host() if image is None else await _kind_of_image(image)
    return await layers.built(spec, root, lambda line: output.note(safe(line)), repair=True)


async def _kind_of_image(image: str) -> RootKind:
    from sandboxes.registry import open_provider
    from sandboxes.types import ImageSource
    from valkyrie.agents.layers import kind_of_root
    from valkyrie.settings import data_folder

    async with open_provider("docker", data_folder() / "sandboxes" / "docker") as provider:
        return await kind_of_root(provider, ImageSource(image=image), {})
