"""How other processes reach the executor of a data folder, or start it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from valkyrie import __version__
from valkyrie.errors import InfrastructureError
from valkyrie.executor.address import socket_path
from valkyrie.nouns import Json
from valkyrie.settings import FETCH_PREFIX
from valkyrie.store.layout import DataFolder

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
        """What it says of itself."""
        return self.ask("status")

    def lives(self) -> bool:
        """Whether there is one, also if it is too busy to answer."""
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

    def begin(self) -> Starting | None:
        """Start one unless one lives; does not wait for it to be ready."""
        self.refuse_suspended()
        return None if self.status() else self._spawn()

    def ensure(self, starting: Starting | None = None) -> Json:
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

    def _spawn(self) -> Starting:
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
        return Starting(launcher, read)

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


class Starting:
    """An executor on its way up: it says `ready`, or its end of the pipe closes."""

    def __init__(self, launcher: subprocess.Popen[bytes], pipe: int) -> None:
        self._launcher = launcher
        self._pipe = pipe

    def wait(self, timeout: float) -> bool:
        """Whether it came up within so many seconds."""
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
    # Here, because it takes SQLAlchemy, which need not be waited for before an executor is started.
    from valkyrie.store.schema import REVISION

    same = (status["version"], status["schema"]) == (__version__, REVISION)
    return same and not status["draining"]


def clean_environment() -> dict[str, str]:
    """What an executor may inherit; secrets in the caller's environment are not for it.

    Proxies are for the programs that fetch agents: services on this machine are reached without.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_VARIABLES or (name.startswith(_KEPT_PREFIXES) and not _SECRETIVE.search(name))
    }
    proxies = {name: value for name, value in os.environ.items() if _PROXIES.fullmatch(name)}
    return kept | {f"{FETCH_PREFIX}{name}": value for name, value in proxies.items()}
