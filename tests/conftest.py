"""What every test may ask for."""

from __future__ import annotations

import gc
import os
import signal
import sys
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


def pytest_configure() -> None:
    """Whoever runs the tests in the background may have them ignore what programs under test must obey."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # As in a shell where the program is installed: panels print commands by their names.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # Thousands of tests are imported and none of it is garbage: looking for some is a quarter of the time.
    gc.disable()


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
