"""Programs of a layer that need an interpreter, as commands that bring it along.

They set nothing in the environment: what the agent starts sees the task's Python and Node.js, not the
agent's own packages.
"""

from __future__ import annotations

from pathlib import Path

_NODE = """#!/bin/sh
here=${0%/*}
node=node
[ -x "$here/node" ] && node=$here/node
exec "$node" "$here/../node_modules/.bin/NAME" "$@"
"""
_PYTHON = """#!/bin/sh
here=${0%/*}
exec python3 -I -c 'import runpy, sys
sys.path.insert(0, sys.argv[1])
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")' "$here/../python" "$here/../python/bin/NAME" "$@"
"""


def write_wrappers(layer: Path, *, node: bool) -> None:
    """`bin/NAME` for every program of `node_modules/.bin` (if they are for Node.js) and `python/bin`."""
    scripts = sorted((layer / "python" / "bin").glob("[!_]*"))
    for script in scripts:
        _, _, body = script.read_text(errors="replace").partition("\n")
        # What pip wrote there is the interpreter of the machine that fetched it.
        script.write_text(f"#!/usr/bin/env python3\n{body}")
        _write(layer, script.name, _PYTHON)
    for program in sorted((layer / "node_modules" / ".bin").glob("*")) if node else ():
        _write(layer, program.name, _NODE)


def _write(layer: Path, name: str, text: str) -> None:
    place = layer / "bin" / name
    place.parent.mkdir(exist_ok=True)
    place.write_text(text.replace("NAME", name))
    place.chmod(0o755)
