"""What every test may ask for."""

from __future__ import annotations

import signal

pytest_plugins = ["tests.docker_engine", "tests.postgres"]


def pytest_configure() -> None:
    """Whoever runs the tests in the background may have them ignore what programs under test must obey."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
