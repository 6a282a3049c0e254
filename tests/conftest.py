"""What every test may ask for."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

pytest_plugins = ["tests.docker_engine", "tests.postgres"]

LONG = (
    *("crash/", "integration/test_docs_", "integration/test_service_", "integration/test_jobs"),
    "integration/",
)
"""Where the tests are that take longest, those first: begun last, they would be waited for at the end."""

# The same examples every time, however slow the machine; `--hypothesis-profile=search` looks for new ones.
# Left to itself, hypothesis also reads the constants of every module of ours that is loaded by then: seconds
# for the first such test of a process, and other examples with each order of the tests.
providers.is_local_module_file = lambda _path: False
STEADY = settings(
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("steady", STEADY)
settings.register_profile("search", STEADY, derandomize=False, max_examples=1000)
settings.load_profile("steady")


TEMPORARY = pytest.StashKey[Path]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give the session its own temporary folder, and undo what a shell in the background set up.

    By default pytest keeps folders of several sessions side by side and deletes the oldest when it ends:
    suites that run beside each other then fail on each other's leftovers, after their last test.
    """
    if config.option.basetemp is None and not hasattr(config, "workerinput"):
        config.stash[TEMPORARY] = Path(tempfile.mkdtemp(prefix="valkyrie-tests-"))
        config.option.basetemp = str(config.stash[TEMPORARY] / "t")
    # Whoever runs the tests in the background may have them ignore what programs under test must obey.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # As in a shell where the program is installed: panels print commands by their names.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # Thousands of tests are imported and none of it is garbage: looking for some is a quarter of the time.
    gc.disable()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Delete the temporary folder of a session that passed; the files of one that failed are of use."""
    folder = session.config.stash.get(TEMPORARY, None)
    if folder is not None and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long ones first; otherwise as they were found. Crashes have a suite of their own."""
    for item in items:
        if "crash/" in item.nodeid:
            item.add_marker(pytest.mark.slow)
    ranks = {name: rank for rank, name in enumerate(LONG)}
    items.sort(key=lambda item: next((r for n, r in ranks.items() if n in item.nodeid), len(ranks)))


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the tests' own garbage is all there is to look for."""
    gc.freeze()
    gc.enable()
