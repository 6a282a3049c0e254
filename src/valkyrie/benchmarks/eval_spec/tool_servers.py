"""Where a stimulus's tool servers run: folders of this machine, as the sandbox knows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from valkyrie.benchmarks.eval_spec.options import WORKSPACE, EvalOptions
from valkyrie.nouns import Json
from valkyrie.specs.model import Stimulus

_LITERAL = "${workspace}"


def servers_inside(stimulus: Stimulus, options: EvalOptions, folder: Path) -> Mapping[str, Json]:
    """The stimulus's servers, each with its `cwd` below the workspace; `folder` is the spec's.

    A spec says where on this machine a server runs, and the sandbox has the workspace only: what `files`
    brought there, or what stands there as it stands below `--work-dir` or beside the spec.
    """
    places = list(_places(stimulus, options, folder))
    return {
        name: {**server, "cwd": _inside(str(server["cwd"]), places)} if server.get("cwd") else server
        for name, server in stimulus.environment.mcp_servers.items()
    }


def _places(stimulus: Stimulus, options: EvalOptions, folder: Path) -> Iterator[tuple[Path, str]]:
    for entry in stimulus.environment.files:
        yield entry.source.absolute(), f"{WORKSPACE}/{entry.dest.strip('/')}".rstrip("/")
    if options.work_dir:
        yield Path(options.work_dir).absolute(), WORKSPACE
    yield folder.absolute(), WORKSPACE


def _inside(cwd: str, places: list[tuple[Path, str]]) -> str:
    """The folder in the sandbox; one that is none of ours is a folder of the sandbox's own."""
    _, literal, rest = cwd.partition(_LITERAL)
    if literal:
        return f"{WORKSPACE}{rest}"
    for source, target in places:
        if Path(cwd).is_relative_to(source):
            below = Path(cwd).relative_to(source).as_posix()
            return target if below == "." else f"{target}/{below}"
    return cwd
