"""A private container engine for tests: its own data, socket, network namespace and image, gone at the end.

Needs root, `dockerd` and `debootstrap` (scripts/setup-system --docker). The image is made once, from Debian's
packages, and kept under ~/.cache/valkyrie-tests.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

CACHE = Path.home() / ".cache" / "valkyrie-tests"
IMAGE = "valkyrie-test:latest"
PACKAGES = "bash,ca-certificates,git,procps,python3"
SUITE = "bookworm"
ROOM_BYTES = 20 << 30
"""For the engine's data; no more is taken than is written."""
OUTSIDE = "203.0.113.1"
"""An address beyond the engine's network that is not the gateway's: it stands for the internet."""


@dataclass(frozen=True, slots=True)
class PrivateEngine:
    """A running engine."""

    url: str
    pid: int
    has_quota: bool

    def docker(self, *words: str) -> str:
        """What the engine's own client prints."""
        done = subprocess.run(
            ["docker", "-H", self.url, *words], capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    def inside(self, *command: str) -> list[str]:
        """`command` where the engine's network is."""
        return ["nsenter", "-t", str(self.pid), "-n", *command]

    def left(self) -> list[str]:
        """Everything of ours there is on it, built images apart."""
        ours = ("--filter", "label=valkyrie.kind")
        return [
            *self.docker("ps", "-aq", *ours).split(),
            *self.docker("network", "ls", "-q", *ours).split(),
            *self.docker("volume", "ls", "-q", *ours).split(),
        ]


def obstacle() -> str | None:
    """Why no engine can be started here."""
    if os.geteuid() != 0:
        return "only root can start a container engine"
    for program in ("dockerd", "docker", "debootstrap", "unshare", "nsenter", "ip"):
        if shutil.which(program) is None:
            return f"{program} is not installed: scripts/setup-system --docker"
    return None


@pytest.fixture(scope="session")
def engine() -> Iterator[PrivateEngine]:
    if reason := obstacle():
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch:
        archive = root_archive()
        # Not below /tmp: what is there may be limited in size, and a socket's path in length.
        folder = CACHE / f"engine-{os.getpid()}"
        folder.mkdir(parents=True)
        try:
            yield from _started(folder, archive, patch)
        finally:
            _succeeds(["umount", "-l", folder / "data"])
            shutil.rmtree(folder)


def root_archive() -> Path:
    """The root file system the image is imported from."""
    wanted = hashlib.sha256(f"{SUITE} {PACKAGES}".encode()).hexdigest()[:12]
    archive = CACHE / f"debian-{wanted}.tar"
    if archive.exists():
        return archive
    CACHE.mkdir(parents=True, exist_ok=True)
    root = CACHE / f"root-{os.getpid()}"
    unfinished = archive.with_suffix(f".{os.getpid()}")
    try:
        made = subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, root],
            capture_output=True,
            text=True,
        )
        if made.returncode:
            pytest.skip(f"debootstrap could not make an image: {made.stdout[-300:]}")
        for leftover in ("var/cache/apt/archives", "var/lib/apt/lists"):
            shutil.rmtree(root / leftover)
        subprocess.run(["tar", "-C", root, "-cf", unfinished, "."], check=True)
        unfinished.rename(archive)
    finally:
        shutil.rmtree(root, ignore_errors=True)
        unfinished.unlink(missing_ok=True)
    return archive


def _started(folder: Path, archive: Path, patch: pytest.MonkeyPatch) -> Iterator[PrivateEngine]:
    (folder / "data").mkdir()
    has_quota = _mount_data(folder)
    url = f"unix://{folder}/s"
    prepare = (
        "ip link set lo up; ip link add out type bridge; ip link set out up;"
        f' ip address add {OUTSIDE}/24 dev out; exec "$@"'
    )
    daemon = ("dockerd", "--data-root", folder / "data", "--exec-root", folder / "exec", "-H", url)
    command = ["unshare", "-n", "sh", "-c", prepare, "sh", *daemon, "--pidfile", folder / "pid"]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            _wait_until_ready(url, process, folder / "log")
            made = PrivateEngine(url, process.pid, has_quota)
            made.docker("import", str(archive), IMAGE)
            patch.setenv("DOCKER_HOST", url)
            patch.setenv("VALKYRIE_DOCKER_IMAGE", IMAGE)
            yield made
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _mount_data(folder: Path) -> bool:
    """Put the engine's data on a file system that can limit a container's share of it, where the kernel has
    one; else on any that is in one file, which is quicker to delete than what is in it."""
    disk = folder / "disk"
    for make, options in ((["mkfs.xfs", "-qf"], "loop,pquota"), (["mkfs.ext4", "-qF"], "loop")):
        with disk.open("wb") as sparse:
            sparse.truncate(ROOM_BYTES)
        mount: list[str | Path] = ["mount", "-o", options, disk, folder / "data"]
        if shutil.which(make[0]) and _succeeds([*make, disk]) and _succeeds(mount):
            return "pquota" in options
    return False


def _succeeds(command: list[str | Path]) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while subprocess.run(["docker", "-H", url, "version"], capture_output=True).returncode:
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.skip(f"dockerd did not start: {log.read_text()[-500:]}")
        time.sleep(0.1)
