"""Every verb on three back ends: the same exit codes, the same words."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.backends.belonging_scenes import BELONGING_SCENES, KEYED, VALUE
from tests.integration.backends.ingest_scenes import INGEST_SCENES
from tests.integration.backends.installations import Installation
from tests.integration.backends.job_scenes import JOB_SCENES, SLOW_JOB_SCENES
from tests.integration.backends.scenes import RUN_SCENES, WORKER
from tests.integration.conftest import until

pytest_plugins = ["tests.postgres"]
Scene = Callable[[Installation], None]


@pytest.fixture(scope="session")
def told_at_home() -> dict[Scene, Any]:
    """What was said on embedded mode, scene by scene."""
    return {}


@pytest.mark.parametrize(
    "scene",
    [
        *RUN_SCENES,
        *JOB_SCENES,
        *(pytest.param(scene, marks=pytest.mark.slow) for scene in SLOW_JOB_SCENES),
        *BELONGING_SCENES,
        *INGEST_SCENES,
    ],
    ids=lambda scene: scene.__name__,
)
def test_the_same_words(
    installation: Installation, at_home: Installation, scene: Scene, told_at_home: dict[Scene, Any]
) -> None:
    if scene in SLOW_JOB_SCENES and installation.name != "server-postgres":
        pytest.skip("played with PostgreSQL, after all the others: scenes see what those before them left")
    if scene not in told_at_home:
        told_at_home[scene] = at_home.play(scene)
    if installation is at_home:
        return
    for here, there in zip(told_at_home[scene], installation.play(scene), strict=True):
        assert "\n".join(map(str, there)).splitlines() == "\n".join(map(str, here)).splitlines()


def test_ctrl_c_detaches(installation: Installation) -> None:
    run_id = installation.start(*WORKER, "-k", "seconds", "60", "--task-ids", "right")
    watching = subprocess.Popen(
        [sys.executable, "-m", "valkyrie", "run", "fetch", run_id, "--connect"],
        env={**os.environ, **installation.settings},
        cwd=installation.folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    with watching.stdout:
        assert "worker on tasks" in watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        assert "goes on without this window" in watching.stdout.read()
    assert watching.wait(60) == 130
    until(lambda: installation.run(run_id)["counts"]["IN_PROGRESS"] == 1)
    assert installation.ask("run", "stop", run_id, "--force", "--yes").code == 0


def test_the_persons_machine_keeps_nothing(installation: Installation, at_home: Installation) -> None:
    if installation is not at_home:
        assert not (installation.root / "nothing").exists()
        assert not (installation.root / "config" / "secrets.json").exists()


def test_a_shell_is_opened_where_the_sandbox_is(installation: Installation, at_home: Installation) -> None:
    run_id = installation.finish(*WORKER, "--task-ids", "right", "--keep-sandbox")
    said = installation.ask("run", "debug", run_id, "right", "--json")
    if installation is at_home:
        assert said.code == 0 and said.json["argv"]
        return
    error = json.loads(said.err)
    assert (
        said.code == 1 and error["reason"] == "elsewhere" and socket.gethostname() in error["error_message"]
    )
    assert "Type there:\n  " in error["error_message"]


def test_what_only_the_caller_has_is_kept_with_a_notice(
    installation: Installation, at_home: Installation
) -> None:
    words, env = ("run", "start", *KEYED), {"API_KEY": VALUE}
    refused = installation.ask(*words, "--no-store-secrets", env=env)
    started = installation.ask(*words, env=env)
    assert started.code == 0 and VALUE not in started.out + started.err
    kept = installation.ask("secret", "list", "--json").json["names"]
    if installation is at_home:  # nothing leaves the machine, so there is nothing to refuse or to say
        assert refused.code == 0 and kept == [] and "stored" not in started.err
        return
    assert refused.code == 1 and "--no-store-secrets keeps it here" in refused.err
    assert "Note: stored team/key, encrypted, for organisation default" in started.err
    assert kept == ["team/key"]
    run_id = installation.finish(*KEYED, "--no-store-secrets")
    assert installation.ask("secret", "remove", "team/key", "--yes").code == 0
    refused = installation.ask("run", "retry", run_id, env=env)
    assert refused.code == 1 and "--no-store-secrets keeps it here" in refused.err, "the run remembers"
    assert installation.ask("secret", "list").out == ""
