"""A service in a process of its own, reached through a line that can be cut."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import defaultdict
from pathlib import Path

from tests.ports import free_port

ROOT = Path(__file__).parents[2]


class Line:
    """A TCP relay to wherever the service listens now; `cut` breaks every connection through it."""

    def __init__(self) -> None:
        self.target = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[socket.socket] = []
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        with self._guard:
            pairs, self._pairs = self._pairs, []
        for one in pairs:
            hang_up(one)

    def close(self) -> None:
        hang_up(self._listener)
        self._listener.close()
        self._thread.join(60)
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target), timeout=5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._guard:
                self._pairs += [near, far]
            threading.Thread(target=relay, args=(near, far), daemon=True).start()


def relay(near: socket.socket, far: socket.socket) -> None:
    """Carry bytes both ways until one side hangs up."""
    other = {near: far, far: near}
    with near, far:
        while True:
            for one in select.select([near, far], [], [])[0]:
                try:
                    piece = one.recv(65536)
                    other[one].sendall(piece)
                except OSError:
                    return
                if not piece:
                    return


def hang_up(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


class KillableService:
    """The service's process, its journal, and the line to it."""

    def __init__(self, folder: Path, mode: str, tasks: int) -> None:
        self.mode, self._tasks = mode, tasks
        self.journal = folder / "journal.jsonl"
        self.line = Line()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        port = free_port()
        command = [sys.executable, str(ROOT / "tests/crash/crash_service.py"), str(port), str(self._tasks)]
        self._process = subprocess.Popen(
            [*command, self.mode, str(self.journal)],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "HOME": os.environ["HOME"]},
        )
        self._wait_until_it_answers(port)
        self.line.target = port

    def _wait_until_it_answers(self, port: int) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    return
            except OSError:
                assert time.monotonic() < deadline, "the service does not come up"
                assert self._process is not None and self._process.poll() is None, "the service ended"
                time.sleep(0.05)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.kill()
        self.line.close()

    def answers(self) -> dict[str, set[str]]:
        """The different answers it was given for each task."""
        found: dict[str, set[str]] = defaultdict(set)
        for line in self.journal.read_text().splitlines():
            task_id, answer = json.loads(line)
            found[task_id].add(answer)
        return found
