"""Ports for programs that must be told one."""

from __future__ import annotations

import random
import socket

_CHOICE = range(15_000, 32_000)
"""Below those the system gives to connections: what is free now is still free when a program comes back."""


def free_port() -> int:
    """A port of loopback nobody has, and nobody gets who does not ask for this very one."""
    while True:
        port = random.choice(_CHOICE)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
