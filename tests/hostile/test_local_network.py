"""What an agent with network `public` reaches, and what it does not, whatever it tries.

Each scenario plays in network namespaces of its own (see `sandbox_network`); no packet leaves them.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

NETWORK_PROGRAM = Path(__file__).with_name("sandbox_network.py")
NEEDED = ("bwrap", "ip", "unshare", "nsenter", "setpriv")
MISSING = [name for name in NEEDED if shutil.which(name) is None]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="making a fake host needs root"),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]


def python_for_everyone() -> str | None:
    """An interpreter that users without a home here can run, too; ours may lie in root's."""
    path = "/usr/bin/python3"
    check = [path, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    return path if os.path.exists(path) and subprocess.run(check, check=False).returncode == 0 else None


@pytest.fixture(params=["pasta", "slirp4netns"], scope="module")
def tool(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    return name


@pytest.fixture(params=["root", "user"], scope="module")
def who(request: pytest.FixtureRequest) -> str:
    if request.param == "user" and python_for_everyone() is None:
        pytest.skip("no Python that an ordinary user may run")
    return str(request.param)


@functools.cache
def played(tool: str, who: str, scenario: str) -> dict[str, Any]:
    """What was found by playing a scenario in fresh namespaces."""
    with TemporaryDirectory(prefix="valkyrie-network-") as folder:
        os.chmod(folder, 0o755)
        argv = ["unshare", "--net", "--mount", "--propagation", "private", "--"]
        argv += [
            python_for_everyone() or sys.executable,
            str(NETWORK_PROGRAM),
            "hosts",
            tool,
            who,
            scenario,
            folder,
        ]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture
def reach(tool: str, who: str) -> dict[str, Any]:
    return played(tool, who, "reach")


def unreached(outcomes: dict[str, str]) -> dict[str, str]:
    return {name: outcome for name, outcome in outcomes.items() if not outcome.startswith("reached")}


def reached(outcomes: dict[str, str]) -> dict[str, str]:
    return {name: outcome for name, outcome in outcomes.items() if outcome.startswith("reached")}


def test_public_addresses_names_and_allowed_networks_are_reached(reach: dict[str, Any]) -> None:
    assert unreached(reach["allowed"]) == {}
    assert len(reach["allowed"]) == 12


def test_every_forbidden_server_is_there_for_the_host_itself(reach: dict[str, Any]) -> None:
    assert unreached(reach["control"]) == {}


def test_nothing_of_host_metadata_private_networks_and_other_sandboxes_is_reached(
    reach: dict[str, Any],
) -> None:
    assert reached(reach["denied"]) == {}
    assert len(reach["denied"]) > 130


def test_frames_past_the_sandboxes_own_routes_reach_only_the_public(reach: dict[str, Any], who: str) -> None:
    sent = set(reach["frames"])
    arrived = [said for said in reach["arrived"] if said.startswith("frame")]
    if who == "root":
        assert sent == {"reached sent"}
        assert arrived == ["frame control"]
    else:
        # Of the two user namespaces bubblewrap makes, the agent's is not the one that owns the network.
        assert sent == {"EPERM"}
        assert arrived == []


def test_without_an_attachment_nothing_is_reached(reach: dict[str, Any]) -> None:
    assert reached(reach["alone"]) == {}


def test_closing_takes_the_network_away(reach: dict[str, Any]) -> None:
    assert not reach["after close"].startswith("reached")


@pytest.mark.slow
def test_no_process_outlives_its_purpose(tool: str, who: str) -> None:
    found = played(tool, who, "live_and_end")
    assert found.pop("cancelled") > 5
    assert f"{tool} did not start" in found.pop("broken")
    assert found == {
        "during": 1,
        "after close": 0,
        "after failure": 0,
        "after cancellation": 0,
        "leaked fds": 0,
        "ends with the sandbox": True,
        "alive": False,
    }


def test_no_process_outlives_a_killed_parent(tool: str, who: str) -> None:
    assert played(tool, who, "be_killed") == {"left": []}


@pytest.mark.slow
def test_root_without_a_user_namespace(tool: str) -> None:
    found = played(tool, "plain-root", "reach")
    assert unreached(found["allowed"]) == {}
    assert reached(found["denied"]) == {}
