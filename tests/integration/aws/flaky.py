"""A line to a server that can be cut at a chosen byte, and be dead for a while."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


class FlakyLine:
    """Forwards connections of a loopback port to another one."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self.up_left: int | None = None
        """How many bytes it still takes to the server before it is cut."""
        self.down_left: int | None = None
        """How many bytes it still brings back before it is cut."""
        self.cut = threading.Event()
        """Set once it is wholly dead: who mends it then is not undone by a cut still going on."""
        self._dead = False
        self._cutting = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._accept()

    def mend(self) -> None:
        """Whole again."""
        deadline = time.monotonic() + 60
        with self._cutting:
            self.up_left = self.down_left = None
            self.cut.clear()
            while True:
                try:
                    self._listening = socket.create_server(("127.0.0.1", self.port))
                    break
                except OSError:
                    # A connection of before may still be on its way out.
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
            self._dead = False
        self._accept()

    def close(self) -> None:
        self._cut()
        for thread in self._threads:
            thread.join(60)

    def _accept(self) -> None:
        self._start(self._take, self._listening)

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args)  # type: ignore[arg-type]
        with self._lock:
            self._threads.append(thread)
        thread.start()

    def _take(self, listening: socket.socket) -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            with self._lock:
                self._open |= {client, server}
            if self._dead:
                self._hang_up()
            self._start(self._forward, client, server, "up_left")
            self._start(self._forward, server, client, "down_left")

    def _forward(self, source: socket.socket, target: socket.socket, left: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                remaining = getattr(self, left)
                if remaining is not None:
                    if len(data) > remaining:
                        target.sendall(data[:remaining])
                        self._cut()
                        return
                    setattr(self, left, remaining - len(data))
                target.sendall(data)
        with self._lock:
            ends = self._open & {source, target}
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _cut(self) -> None:
        with self._cutting:
            if self._dead:
                return
            self._dead = True
            # A thread that waits in accept() holds the socket open until it is shut down.
            with contextlib.suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()
            self._hang_up()
            self.cut.set()

    def _hang_up(self) -> None:
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
