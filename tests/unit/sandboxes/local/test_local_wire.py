"""Messages and descriptors arrive whole, however the stream cuts them."""

from __future__ import annotations

import os
import socket

from sandboxes.local import processes


def test_messages_and_descriptors_arrive_in_order() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        read, write = os.pipe()
        processes.send_message(ours, {"n": 1})
        processes.send_message(ours, {"n": 2}, (write,))
        processes.send_message(ours, {"n": 3})
        os.close(write)
        inbox = processes.MessageInbox(theirs)
        received: list[tuple[processes.Message, list[int]]] = []
        while len(received) < 3:
            received += inbox.receive()
        assert [message["n"] for message, _ in received] == [1, 2, 3]
        assert [len(fds) for _, fds in received] == [0, 1, 0]
        (fd,) = received[1][1]
        assert not os.get_inheritable(fd)
        os.write(fd, b"through")
        os.close(fd)
        assert os.read(read, 100) == b"through"
        os.close(read)


def test_a_message_may_come_byte_by_byte() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        inbox = processes.MessageInbox(theirs)
        message = {"argv": ["echo", "ü" * 1000, "\udcff"], "env": {}, "user": None}
        received = []
        for byte in processes.encode_message(message):
            ours.send(bytes((byte,)))
            received += inbox.receive()
        assert received == [(message, [])]


def test_the_end_closes_what_never_completed() -> None:
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    with theirs:
        with ours:
            processes.send_some_bytes(ours, processes.encode_message({"n": 1}, 1)[:7], (write,))
            os.close(write)
        inbox = processes.MessageInbox(theirs)
        assert inbox.receive() == []
        assert inbox.receive() == []
        assert inbox.ended
    assert os.read(read, 1) == b""
    os.close(read)
