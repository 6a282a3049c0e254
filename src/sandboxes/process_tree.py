"""Ending processes that can only be told by a mark in their environment."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

PATIENCE_SECONDS = 10.0


def marked(mark: str) -> list[int]:
    """Processes started with `mark` (NAME=value) in their environment, whatever they did since."""
    wanted = mark.encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:  # gone meanwhile, or another user's
                continue
            if wanted in environment.split(b"\0"):
                found.append(int(entry.name))
    return found


def kill_marked(mark: str) -> bool:
    """Kill them, and those forked meanwhile, until none is left; whether that came about in time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while pids := marked(mark):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True
