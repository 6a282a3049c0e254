"""`python -m valkyrie.testing.model_server --script FILE [--port N]`: serves until it is stopped."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from valkyrie.errors import UsageError
from valkyrie.testing.model_server.script import Script
from valkyrie.testing.model_server.server import ModelServer


async def _serve(script: Script, port: int) -> None:
    async with ModelServer(script, port=port) as server:
        print(server.url, flush=True)  # noqa: T201 - who started it reads the address here
        await server.serve_forever()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m valkyrie.testing.model_server", description=__doc__)
    parser.add_argument("--script", type=Path, required=True, metavar="FILE", help="turns, as JSON")
    parser.add_argument("--port", type=int, default=0, help="0, the default, takes a free one")
    given = parser.parse_args(argv)
    try:
        script = Script.from_file(given.script)
    except UsageError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the process edge
        return 2
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(script, given.port))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
