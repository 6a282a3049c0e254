"""Where tool servers run, seen from inside the sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from valkyrie.benchmarks.eval_spec.source import EvalOptions, servers_inside
from valkyrie.specs.model import EnvironmentSpec, FileEntry, Stimulus


@pytest.mark.parametrize(
    ("cwd", "inside"),
    [
        ("/spec", "/workspace"),
        ("/spec/servers/a", "/workspace/servers/a"),
        ("/spec/tools/deep", "/workspace/bin/deep"),
        ("/project/x", "/workspace/x"),
        ("/spec/${workspace}/y", "/workspace/y"),
        ("/opt/own", "/opt/own"),
    ],
)
def test_a_folder_is_found_in_the_workspace(cwd: str, inside: str) -> None:
    files = (FileEntry("tools", "bin/", Path("/spec")),)
    servers = {"one": {"type": "stdio", "command": "x", "cwd": cwd}, "two": {"type": "http", "url": "u"}}
    stimulus = Stimulus("s", ("p",), environment=EnvironmentSpec(files=files, mcp_servers=servers))
    found = servers_inside(stimulus, EvalOptions(work_dir="/project"), Path("/spec"))
    assert found == {"one": {**servers["one"], "cwd": inside}, "two": servers["two"]}
