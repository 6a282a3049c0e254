"""Messages with file descriptors between our own processes, over a unix stream socket.

A message is five bytes (length, number of descriptors) and a marshalled dict. Both ends run this very
code in the same interpreter, which is what marshal is for; nothing an agent says is ever decoded here.
"""

from __future__ import annotations

import array
import marshal
import os
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Message = dict[str, Any]

ENDED_LINE = b'{"ended": true}\n'
"""What a process that ends another one's sandbox adds to its record."""

_HEADER = struct.Struct("!IB")
_MAX_FDS = 64
_FD_SPACE = socket.CMSG_SPACE(_MAX_FDS * 4)


def encode(message: Message, fd_count: int = 0) -> bytes:
    """One message as bytes."""
    body = marshal.dumps(message)
    return _HEADER.pack(len(body), fd_count) + body


def send_some(sock: socket.socket, data: bytes | memoryview, fds: Sequence[int] = ()) -> int:
    """Send what goes now; descriptors travel with the first byte."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    return sock.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)


def send(sock: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send one message on a blocking socket."""
    data = memoryview(encode(message, len(fds)))
    sent = send_some(sock, data, fds)
    while sent < len(data):
        sent += send_some(sock, data[sent:])


class Inbox:
    """Puts messages back together from whatever pieces arrive."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = bytearray()
        self._fds: list[int] = []
        self.ended = False
        self.lacked_files = False
        """It ended because this process could not take the descriptors that came."""

    def receive(self) -> list[tuple[Message, list[int]]]:
        """Take in what is there; the messages that are complete. Raises BlockingIOError like the socket."""
        try:
            data, ancillary, flags, _ = self._sock.recvmsg(1 << 16, _FD_SPACE, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            data, ancillary, flags = b"", [], 0
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                self._fds.extend(fds)
        if not data or flags & socket.MSG_CTRUNC:
            self.lacked_files = bool(data)
            self.ended = True
            self.close()
            return []
        self._data += data
        return self._complete()

    def _complete(self) -> list[tuple[Message, list[int]]]:
        found: list[tuple[Message, list[int]]] = []
        while len(self._data) >= _HEADER.size:
            length, fd_count = _HEADER.unpack_from(self._data)
            end = _HEADER.size + length
            if len(self._data) < end:
                break
            message = marshal.loads(self._data[_HEADER.size : end])  # noqa: S302 - see above
            del self._data[:end]
            found.append((message, self._fds[:fd_count]))
            del self._fds[:fd_count]
        return found

    def close(self) -> None:
        """Close descriptors that came with a message that never completed."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
