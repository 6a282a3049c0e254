"""The engine's end of a socket to one of our helper processes, on the event loop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from sandboxes.local import wire

Receiver = Callable[["wire.Message", list[int]], None]


class Channel:
    """Sends whole messages without waiting, and hands each one that comes to `receiver`."""

    def __init__(self, sock: socket.socket, receiver: Receiver, on_end: Callable[[], None]) -> None:
        self._sock = sock
        self._sock.setblocking(False)
        self._inbox = wire.Inbox(sock)
        self._receiver = receiver
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[tuple[memoryview, list[int]]] = deque()
        self.closed = False
        # By number: asyncio describes a socket object in words each time it looks one up.
        self._fd = sock.fileno()
        self._writing = False
        self._loop.add_reader(self._fd, self._on_readable)

    def post(self, message: wire.Message, fds: Sequence[int] = ()) -> None:
        """Send a message. The descriptors are taken over: closed here once they are on their way."""
        if self.closed:
            _close_all(fds)
            return
        self._unsent.append((memoryview(wire.encode(message, len(fds))), list(fds)))
        if len(self._unsent) == 1:
            self._send()

    @property
    def lacked_files(self) -> bool:
        """Whether it ended because this process has too many files open."""
        return self._inbox.lacked_files

    def close(self) -> None:
        """Hang up; the other side sees the end. Again is fine, and `on_end` is not called."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._fd)
        self._stop_writing()
        for _, fds in self._unsent:
            _close_all(fds)
        self._unsent.clear()
        self._inbox.close()
        self._sock.close()

    def _send(self) -> None:
        while self._unsent:
            data, fds = self._unsent[0]
            try:
                sent = wire.send_some(self._sock, data, fds)
            except BlockingIOError:
                self._loop.add_writer(self._fd, self._send)
                self._writing = True
                return
            except OSError:  # the other side is gone; its end arrives on the reading side
                sent = len(data)
            _close_all(fds)
            if sent < len(data):
                self._unsent[0] = (data[sent:], [])
            else:
                self._unsent.popleft()
        self._stop_writing()

    def _stop_writing(self) -> None:
        if self._writing:
            self._loop.remove_writer(self._fd)
            self._writing = False

    def _on_readable(self) -> None:
        try:
            arrived = self._inbox.receive()
        except BlockingIOError:
            return
        for message, fds in arrived:
            self._receiver(message, fds)
        if self._inbox.ended and not self.closed:
            self.close()
            self._on_end()


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
