"""Inside a sandbox: offers a unix socket as a port of the sandbox's own loopback. Needs only Python 3.6.

usage: bridge.py SOCKET PORT. Returns once the port is open; a child goes on until it is killed.
"""

import os
import socket
import sys
import threading


def pump(source: socket.socket, target: socket.socket) -> None:
    """Carry bytes one way to the end of the stream."""
    try:
        while True:
            piece = source.recv(65536)
            if not piece:
                break
            target.sendall(piece)
    except OSError:
        pass
    try:
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def carry(client: socket.socket, path: str) -> None:
    """One connection, both ways."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.connect(path)
        back = threading.Thread(target=pump, args=(server, client))
        back.start()
        pump(client, server)
        back.join()
    except OSError:
        pass
    finally:
        server.close()
        client.close()


def main() -> None:
    """Open the port, then serve it from a child."""
    path, port = sys.argv[1], int(sys.argv[2])
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    if os.fork():
        os._exit(0)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    while True:
        client, _ = listener.accept()
        threading.Thread(target=carry, args=(client, path), daemon=True).start()


if __name__ == "__main__":
    main()
