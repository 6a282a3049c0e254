"""`agent init`, `push`, `list`, `remove`, `download`, `catalog`, `outputs`, `fetch`, `layers`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmark_runner.terminal import Column, Table, safe
from sandboxes.registry import open_provider
from sandboxes.types import ImageSource
from valkyrie import plugins
from valkyrie.agents.catalog import CATALOG
from valkyrie.agents.layers import LayerCache, as_json, layers_in, read_manifest
from valkyrie.agents.library import checked_out
from valkyrie.agents.loader import PLUGIN_GROUP
from valkyrie.agents.packages import kind_of_host, kind_of_root
from valkyrie.agents.protocol import AgentOptions
from valkyrie.agents.scaffold import init_agent
from valkyrie.cli.options import (
    Number,
    chosen_tasks,
    confirm,
    run_argument,
    task_options,
    tracker,
    verb,
    yes_option,
)
from valkyrie.cli.output import Output
from valkyrie.cli.run_outputs import take_outputs
from valkyrie.cli.run_watch import show_table
from valkyrie.config.values import data_folder
from valkyrie.errors import UsageError, ValkyrieError
from valkyrie.git.repository import TIMEOUT_S, parse_source
from valkyrie.report.formats import NONE, moment_short, size
from valkyrie.text import did_you_mean
from valkyrie.views import to_json

if TYPE_CHECKING:
    from valkyrie.agents.catalog import CatalogAgent
    from valkyrie.agents.packages import RootKind
    from valkyrie.agents.protocol import LayerSpec
    from valkyrie.views import AgentView


_output_dir = click.option(
    "--output-dir",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Folder to put it in [default: this one].",
)


def _complete_agent(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    try:
        with tracker() as opened:
            return [agent.name for agent in opened.agents() if agent.name.startswith(incomplete)]
    except (ValkyrieError, OSError):
        return []


_name_argument = click.argument("name", shell_complete=_complete_agent)


@verb(
    "init",
    examples="valk agent init my-agent\nvalk agent init my-agent --calls-model\n"
    "valk run start --agent ./my-agent --benchmark quickstart",
)
@click.argument("name")
@click.option(
    "--calls-model",
    is_flag=True,
    help="An agent in plain Python that asks an OpenAI-compatible model what to do.",
)
@_output_dir
def init(output: Output, *, name: str, calls_model: bool, output_dir: Path) -> None:
    """Write a new agent with a valid contract.

    A folder with a contract.yaml and a script to start from; it runs as it is.
    """
    folder = init_agent(name, output_dir, calls_model=calls_model)
    output.emit("agent_created", name=name, folder=str(folder.absolute()))
    output.line(f"Wrote {folder}")
    shown = str(folder) if folder.is_absolute() else f"./{folder}"
    model = " --model any --model-url http://127.0.0.1:8000" if calls_model else ""
    commands = [
        ("Try it", f"valk run start --agent {shown}{model} --benchmark quickstart --slice :1 --connect"),
        ("Keep it", f"valk agent push {shown}"),
    ]
    output.panel("Next", commands)


@verb("push", examples="valk agent push ./agents/sweagent\nvalk agent push ./agents/sweagent --name my-agent")
@click.argument("directory", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option("--name", "-n", metavar="NAME", help="Name to keep it under [default: the folder's].")
def push(output: Output, *, directory: Path, name: str | None) -> None:
    """Take an agent's folder into the library.

    The contract is checked first. An agent of the same name is replaced; runs keep the copy they began with.
    """
    with tracker() as opened:
        pushed = opened.push_agent(directory, name)
    output.emit("agent", agent=_plain(pushed))
    output.line(f"Pushed {pushed.name}  {size(pushed.bytes)}  {(pushed.digest or '')[:12]}")
    output.panel("Next", [("Run it", f"valk run start --agent {pushed.name} --benchmark quickstart")])


@verb("list", examples="valk agent list")
def list_agents(output: Output) -> None:
    """List the pushed agents.

    Built-in ones are in `agent catalog`. On a terminal long lists are paged: h previous, l next, q quit.
    """
    with tracker() as opened:
        found = opened.agents()
    output.emit("agent_list", agents=[_plain(agent) for agent in found])
    if output.json:
        return
    if not found:
        output.line("No agents yet. Make one: valk agent init my-agent. Built in: valk agent catalog")
        return
    table = Table(
        [
            Column("Agent", shrink=True),
            Column("Last Modified"),
            Column("Size", "right"),
            Column("Digest"),
            Column("Pushed By", shrink=True, optional=True),
        ]
    )
    for agent in found:
        digest = agent.digest[:12] if agent.digest else "damaged archive"
        cells = [safe(agent.name), moment_short(agent.modified_at), size(agent.bytes), digest]
        table.rows.append([*cells, safe(agent.pushed_by) if agent.pushed_by else NONE])
    show_table(table, output)


@verb("remove", examples="valk agent remove sweagent --yes")
@_name_argument
@yes_option
def remove(output: Output, *, name: str, yes: bool) -> None:
    """Forget a pushed agent; runs keep their own copy.

    Cannot be undone, so it asks first; where nobody can be asked it needs --yes.
    """
    with tracker() as opened:
        if any(agent.name == name for agent in opened.agents()):
            confirm(output, f"Remove agent {name} for good?", yes=yes)
        opened.remove_agent(name)  # refuses one that is not there, with the names that are
    output.emit("agent_removed", name=name)
    output.line(f"Removed {name}.")


@verb("download", examples="valk agent download sweagent -o ./agents")
@_name_argument
@_output_dir
def download(output: Output, *, name: str, output_dir: Path) -> None:
    """Unpack a pushed agent into a folder.

    It becomes a new folder of the agent's name; an existing one is refused.
    """
    with tracker() as opened:
        folder = opened.download_agent(name, output_dir)
    output.emit("agent_downloaded", name=name, folder=str(folder.absolute()))
    output.line(f"Wrote {folder}")


@verb("catalog", examples="valk agent catalog\nvalk agent catalog --json")
def catalog(output: Output) -> None:
    """List the agents that are built in.

    Public agents are installed at their first run, once for all trials (`agent fetch` does it ahead). Their
    keys are taken from secrets of the same name or the environment; with --model-url none is needed.
    """
    if output.json:
        output.emit("agent_catalog", agents=[_entry(name, entry) for name, entry in CATALOG.items()])
        return
    table = Table(
        [
            Column("Agent"),
            Column("Version"),
            Column("Keys", shrink=True),
            Column("Model"),
            Column("Tried", shrink=True),
        ]
    )
    for name, entry in CATALOG.items():
        keys = "; ".join(f"{group.said}{'' if group.required else ' (any)'}" for group in entry.keys)
        model = "needed" if entry.needs_model else "optional" if entry.version else ""
        table.rows.append([name, entry.version or "", keys, model, entry.tried or entry.description])
    output.table(table)


def _entry(name: str, entry: CatalogAgent) -> dict[str, object]:
    return {
        "name": name,
        "description": entry.description,
        "version": entry.version,
        "keys": [{"any_of": list(group.names), "required": group.required} for group in entry.keys],
        "needs_model": entry.needs_model,
        "parameters": _parameters(entry),
        "tried": entry.tried or None,
    }


def _parameters(entry: CatalogAgent) -> dict[str, str]:
    """What -k sets, and its meaning; `version` besides, which every public agent takes."""
    if entry.version is None:
        return {}
    return dict(getattr(plugins.load(entry.target, group=PLUGIN_GROUP), "parameters", {}))


@verb("outputs", examples="valk agent outputs 3f2a --output-dir ./outputs")
@run_argument
@click.option(
    "--output-dir",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to [default: ./<benchmark>_<agent>_<run>].",
)
@task_options
def outputs(
    output: Output, *, ref: str, output_dir: Path | None, task_ids: str | None, task_ids_file: str | None
) -> int:
    """Same as `run outputs`."""
    return take_outputs(output, ref, output_dir, chosen_tasks(task_ids, task_ids_file))


def _plain(agent: AgentView) -> dict[str, object]:
    plain = to_json(agent)
    return plain if agent.origin else {name: value for name, value in plain.items() if name != "origin"}


# `agent fetch` and `agent layers`: the installed software of catalogue agents, kept on this machine.


def _complete_installed(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
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
    spec = _spec(name, version)
    layers = LayerCache(_folder())
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
    return data_folder() / "cache" / "layers"


def _spec(name: str, version: str | None) -> LayerSpec:
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


async def _fetched(layers: LayerCache, spec: LayerSpec, image: str | None, output: Output) -> Path:
    root = await kind_of_host() if image is None else await _kind_of_image(image)
    return await layers.built(spec, root, lambda line: output.note(safe(line)), repair=True)


async def _kind_of_image(image: str) -> RootKind:
    async with open_provider("docker", data_folder() / "sandboxes" / "docker") as provider:
        return await kind_of_root(provider, ImageSource(image=image), {})


# `agent install`: an agent out of a git repository.

_EXAMPLES = """
valk agent install https://github.com/owner/my-agent
valk agent install https://github.com/owner/agents/tree/main/sweagent --name swe
valk agent install git@example.com:owner/my-agent --ref v1.2
"""


@verb("install", examples=_EXAMPLES)
@click.argument("url", metavar="URL")
@click.option(
    "--name", "-n", metavar="NAME", help="Name to keep it under [default: the repository's or folder's]."
)
@click.option("--ref", metavar="REF", help="Branch, tag or commit [default: the default branch].")
@click.option(
    "--timeout", type=Number(min=1), default=TIMEOUT_S, show_default=True, help="Seconds git may take."
)
def install(output: Output, *, url: str, name: str | None, ref: str | None, timeout: float) -> None:
    """Take an agent in from a git repository.

    Its newest commit is fetched and recorded; nothing of the repository is run. A folder of it is named as
    in a browser: URL/tree/BRANCH/FOLDER. Private repositories are reached with git's own credentials.
    """
    source = parse_source(url, ref)
    with tracker() as opened:
        with (
            _progress(output, source.url) as progress,
            checked_out(source, name, timeout=timeout, progress=progress) as found,
        ):
            before = next((agent for agent in opened.agents() if agent.name == found.name), None)
            pushed = opened.push_agent(found.folder, found.name, origin=found.origin)
    _report(output, pushed, before, found.commit)
    output.notices(found.notices)


def _report(output: Output, pushed: AgentView, before: AgentView | None, commit: str) -> None:
    changed = before is None or before.digest is None or before.digest != pushed.digest
    was = before.origin if before else None
    output.emit("agent", agent=to_json(pushed), commit=commit, previous_origin=was, changed=changed)
    output.line(f"Installed {pushed.name}  {size(pushed.bytes)}  {(pushed.digest or '')[:12]}")
    output.line(f"From {safe(pushed.origin or '')}")
    if before:
        output.line(_compared(before, pushed, commit))
    output.panel("Next", [("Run it", f"valk run start --agent {pushed.name} --benchmark quickstart")])


def _compared(before: AgentView, pushed: AgentView, commit: str) -> str:
    """What was there under this name, and whether it is another now."""
    place, _, was = (before.origin or "").rpartition("@")
    if before.origin == pushed.origin:
        return "It is the commit that was installed before."
    if place and place == (pushed.origin or "").rpartition("@")[0]:
        same = " Its files are the same." if before.digest == pushed.digest else ""
        return f"The commit changed: {was[:12]} before, {commit[:12]} now.{same}"
    return f"It takes the place of one {f'from {safe(before.origin)}' if before.origin else 'pushed before'}."


@contextmanager
def _progress(output: Output, url: str) -> Iterator[Callable[[int], None] | None]:
    """A line on the terminal that says how much was fetched, gone when it is done."""
    if not (output.redraws and sys.stderr.isatty()):
        yield None
        return

    def show(fetched: int) -> None:
        line = f"Fetching {safe(url)}  {size(fetched)}"
        sys.stderr.write(f"\r\x1b[K{line[: (output.width or 80) - 1]}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
