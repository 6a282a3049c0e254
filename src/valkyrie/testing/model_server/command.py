"""`model-server`: the scripted model server from the command line."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

import click

from valkyrie.cli.options import WholeNumber, verb
from valkyrie.cli.output import Output
from valkyrie.testing.model_server.script import Script
from valkyrie.testing.model_server.server import ModelServer


@verb(
    "model-server",
    examples="valk model-server --script script.json --port 8000\n"
    "valk run start --agent claude-code --model any --model-url http://127.0.0.1:8000 --benchmark quickstart",
)
@click.option(
    "--script",
    metavar="FILE",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What the model answers, turn by turn, as JSON.",
)
@click.option(
    "--port", type=WholeNumber(0, 65535), default=0, help="Port on 127.0.0.1 [default: a free one]."
)
def model_server(output: Output, *, script: Path, port: int) -> None:
    """Play a model by a script, on this machine's loopback, until interrupted.

    For trying agents without a key or a network: it speaks Anthropic Messages, OpenAI Responses and Chat
    Completions, and Gemini. The first line it prints is its address, for --model-url.
    """
    turns = Script.from_file(script)
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(output, turns, port))


async def _serve(output: Output, script: Script, port: int) -> None:
    async with ModelServer(script, port=port) as server:
        output.emit("model_server", url=server.url)
        output.line(server.url)
        sys.stdout.flush()  # who started it reads the address there
        await server.serve_forever()
