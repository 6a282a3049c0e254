"""Find, start and reach the executor of a data folder; there is one at a time."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from valkyrie import __version__
from valkyrie.config.values import FETCH_PREFIX
from valkyrie.domain import Json
from valkyrie.errors import InfrastructureError
from valkyrie.store import REVISION
from valkyrie.store.layout import DataFolder

_LONGEST = 100
"""Unix socket paths may not be longer than about this."""


def socket_path(data: DataFolder) -> Path:
    """Beside the data, or in a private folder of ours when that path would be too long."""
    path = data.root / "executor.sock"
    if len(os.fsencode(path)) <= _LONGEST:
        return path
    name = hashlib.sha256(os.fsencode(data.root)).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"valkyrie-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} must belong to you and be closed to others")
    return folder / f"{name}.sock"


def home_mark(data: DataFolder) -> str:
    """Marks what belongs to this data folder of this machine, such as its sandboxes."""
    return hashlib.sha256(_machine() + os.fsencode(data.root)).hexdigest()[:16]


def _machine() -> bytes:
    """Folders of the same name on several machines are not the same; their sandboxes may be side by side."""
    for file in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            return Path(file).read_bytes() + os.fsencode(socket.gethostname())
        except OSError:
            continue
    return os.fsencode(socket.gethostname())


# How other processes reach the executor of a data folder, or start it.

READY_TIMEOUT_S = 60.0
"""One that dies on its way is noticed at once; this is for machines that are busy."""
LONGEST_LOG = 1 << 20
_KEPT_VARIABLES = (
    "AWS_SHARED_CREDENTIALS_FILE",
    "DOCKER_HOST",
    "HOME",
    "LANG",
    "LC_ALL",
    "LOGNAME",
    "NODE_EXTRA_CA_CERTS",
    "PATH",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TMPDIR",
    "TZ",
    "USER",
)
_KEPT_PREFIXES = ("VALKYRIE_", "XDG_", "PYTHON", "AWS_", "PIP_", "UV_", "npm_config_", "NPM_CONFIG_")
_SECRETIVE = re.compile("KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_PROXIES = re.compile("(?:https?|all|no)_proxy", re.IGNORECASE)


class ExecutorClient:
    """Talks to the executor of one data folder over its control socket."""

    def __init__(self, data: DataFolder) -> None:
        self._data = data

    def ask(self, verb: str, *, timeout: float = 10.0, **details: Any) -> Json | None:
        """Its answer; None when no executor lives."""
        path = socket_path(self._data)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
                link.settimeout(timeout)
                link.connect(str(path))
                if _suspended(link):
                    return None  # no answer would come, however long one waits
                link.sendall(json.dumps({"verb": verb, **details}).encode() + b"\n")
                with link.makefile("rb") as answers:
                    line = answers.readline()
        except OSError:
            return None
        if not line.endswith(b"\n"):
            return None  # it died, or was killed, before it had said all
        answer: Json = json.loads(line)
        if "error" in answer:
            raise InfrastructureError(f"The executor refused {verb}: {answer['error']}")
        return answer

    def status(self) -> Json | None:
        return self.ask("status")

    def lives(self) -> bool:
        """Return whether there is one, also if it is too busy to answer."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(1.0)
            try:
                link.connect(str(socket_path(self._data)))
            except (TimeoutError, BlockingIOError):
                pass  # more have come than it has listened to
            except OSError:
                return False
        return True

    def refuse_suspended(self) -> None:
        """Raise InfrastructureError for an executor that was stopped by a signal: it holds the data folder,
        and answers nobody."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(1.0)
            try:
                link.connect(str(socket_path(self._data)))
            except OSError:
                return
            pid = _suspended(link)
        if pid:
            raise InfrastructureError(
                f"Executor {pid} does not answer: it is suspended. `kill -CONT {pid}` lets it go on, "
                f"`kill -KILL {pid}` ends it; then try again.",
                cause="executor_suspended",
            )

    def begin(self) -> StartingExecutor | None:
        """Start one unless one lives; does not wait for it to be ready."""
        self.refuse_suspended()
        return None if self.status() else self._spawn()

    def ensure(self, starting: StartingExecutor | None = None) -> Json:
        """Its status, once it is up; starts it if need be.

        One of another version, or one that is leaving, finishes what it has in hand first; the new one
        waits for it, and so does whoever asked for nothing but that the work goes on.
        """
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            self.refuse_suspended()
            found = self.ask("wake")
            if found and _fits(found):
                if starting:  # the very one, up before it was waited for
                    starting.leave()
                return found
            if found:
                self.ask("drain")
                (starting or self._spawn()).leave()
                return found
            starting = starting or self._spawn()
            if not starting.wait(max(0.0, deadline - time.monotonic())):
                raise InfrastructureError(f"The executor did not start:\n{self._last_words()}")
            starting = None

    def _spawn(self) -> StartingExecutor:
        self._data.make()
        self._bound_log()
        read, write = os.pipe()
        with self._data.executor_log.open("ab") as log:
            launcher = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "valkyrie.executor"),
                    *(str(self._data.root), "--detach", str(write)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=clean_environment(),
                start_new_session=True,
                pass_fds=(write,),
            )
        os.close(write)
        return StartingExecutor(launcher, read)

    def _bound_log(self) -> None:
        """What executors said before the last so many bytes is let go."""
        log = self._data.executor_log
        with contextlib.suppress(OSError):
            if log.stat().st_size > LONGEST_LOG:
                log.replace(log.with_name(f"{log.name}.old"))

    def _last_words(self) -> str:
        try:
            text = self._data.executor_log.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-5:])


class StartingExecutor:
    """An executor on its way up: it says `ready`, or its end of the pipe closes."""

    def __init__(self, launcher: subprocess.Popen[bytes], pipe: int) -> None:
        self._launcher = launcher
        self._pipe = pipe

    def wait(self, timeout: float) -> bool:
        """Return whether it came up within so many seconds."""
        try:
            able, _, _ = select.select([self._pipe], [], [], timeout)
            return bool(able) and os.read(self._pipe, 16) == b"ready\n"
        finally:
            self.leave()

    def leave(self) -> None:
        """Wait for it no longer; when it finds nobody waiting and nothing to do, it goes at once."""
        os.close(self._pipe)
        self._launcher.wait()  # it forks and ends before it loads anything


def _suspended(link: socket.socket) -> int | None:
    """The process at the other end if a signal stopped it (SIGSTOP, Ctrl+Z), else None."""
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid = int(struct.unpack("3i", credentials)[0])
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None
    return pid if state == "T" else None


def _fits(status: Json) -> bool:
    """Of this version, with the schema it has, and not about to leave."""
    same = (status["version"], status["schema"]) == (__version__, REVISION)
    return same and not status["draining"]


def clean_environment() -> dict[str, str]:
    """Return what an executor may inherit; secrets in the caller's environment are not for it.

    Proxies are for the programs that fetch agents: services on this machine are reached without.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_VARIABLES or (name.startswith(_KEPT_PREFIXES) and not _SECRETIVE.search(name))
    }
    proxies = {name: value for name, value in os.environ.items() if _PROXIES.fullmatch(name)}
    return kept | {f"{FETCH_PREFIX}{name}": value for name, value in proxies.items()}


# One executor per data folder: who comes second leaves, or waits until it may take the first one's place.

PARENT_PIPE = "VALKYRIE_PARENT_PIPE"
"""File descriptor of a pipe whose other end the server holds that started us."""
_LOOK_EVERY_S = 0.05
_STAND_BY_S = 0.5
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def only_one(data: DataFolder, *, server: bool = False) -> Iterator[bool]:
    """Hold the data folder's executor lock. False: one of this version is at work, leave it to that one.

    One of another version, or one that is leaving, is waited for; an executor of a `server` also asks such
    a one to leave, and one that is none of a server, which could not open what is sealed. The child of a
    server stands by until whoever is at work has left: its own server counts on it.
    """
    with data.executor_lock.open("a") as file:
        yield _stand_by(file, data) if server and PARENT_PIPE in os.environ else _lock(file, data, server)


def _lock(file: IO[str], data: DataFolder, server: bool) -> bool:
    while not _locked(file):
        if _is_good(ExecutorClient(data), server):
            return False
        time.sleep(_LOOK_EVERY_S)  # a lock cannot be awaited with a look at who holds it
    return True


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_good(holder: ExecutorClient, server: bool) -> bool:
    """Return whether the holder of the lock can do all we could; if not, a server's tells it to leave."""
    found = holder.status()
    if not found or found["draining"]:
        return False  # it is starting or leaving
    if found["version"] == __version__ and found.get("server", False) >= server:
        return True
    if server:
        holder.ask("drain")
    return False


def _stand_by(file: IO[str], data: DataFolder) -> bool:
    """Wait for the executor of a killed server; False when our own server is gone too, or tells us to leave.

    What our server tells us meanwhile is for the one that works: the first signal lets it finish its trials,
    the second makes it give them back.
    """
    holder, server_gone, told = ExecutorClient(data), int(os.environ[PARENT_PIPE]), list[int]()
    before = {number: signal.signal(number, lambda got, _: told.append(got)) for number in _SIGNALS}
    passed_on, said = 0, False
    try:
        while not _locked(file):
            if _is_good(holder, server=True) and not said:
                said = True
                sys.stderr.write(f"An executor is at work on {data.root} already; this one stands by.\n")
            if passed_on < len(told):
                passed_on = len(told)
                holder.ask("drain" if passed_on == 1 else "end")
            if select.select([server_gone], [], [], _STAND_BY_S if said else _LOOK_EVERY_S)[0]:
                return False
        return not told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
