"""Software an agent needs, installed once on the host and shown to every trial.

A layer is a folder, seen in the sandbox as `LayerSpec.target`:

- `node_modules/` what npm installed; its programs are in `node_modules/.bin`
- `python/` what pip installed, seen by the commands in `bin/` only
- `bin/` commands that need nothing but a shell: those of Python packages, those of npm packages that are
  for Node.js (`LayerSpec.node`), and `node` itself where the root file system has none
- `layer.json` what it is, and what was installed
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import shutil
import stat
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from sandboxes.folder_contents import FolderDigests, UnreadableContentError, walk_folder
from sandboxes.protocol import SandboxProvider
from valkyrie.agents.packages import (
    NODE_PACKAGE,
    Log,
    RootKind,
    fetch_failed,
    filled,
    install,
    kind_of_host,
    kind_of_root,
    locked,
)
from valkyrie.agents.protocol import LayerSpec
from valkyrie.domain import content_digest
from valkyrie.errors import DiskFullError, UsageError, UserError, ValkyrieError

if TYPE_CHECKING:
    from sandboxes.types import SandboxSource


# Keep layers by content: each is built at most once for a kind of root file system, and has a manifest.


NAME = "layer.json"
MOST_BYTES = 4 * 1024**3
MOST_FILES = 200_000


@dataclass(frozen=True, slots=True)
class LayerManifest:
    """Kept as `layer.json` in the layer."""

    name: str
    version: str
    root: Mapping[str, Any]
    """What of the kind of root file system it depends on."""
    installed: Mapping[str, str] = field(default_factory=dict)
    """Package → version, those that were brought along included."""
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    """How long it took to install."""
    built_at: str = ""
    digest: str = ""
    """Of everything else in the layer; compared whenever the layer is used."""

    def write(self, layer: Path) -> None:
        (layer / NAME).write_text(json.dumps(asdict(self), indent=1, sort_keys=True) + "\n")


def read_manifest(layer: Path) -> LayerManifest:
    """Return what `layer` says of itself."""
    return LayerManifest(**json.loads((layer / NAME).read_text()))


def layer_digest(layer: Path, digests: FolderDigests) -> str:
    """Return the digest of all of a layer but its manifest; compiled Python files are run, so they count."""
    entries = walk_folder(os.fspath(layer), ".", frozenset())
    return digests.known_or_read(layer, tuple(entry for entry in entries if entry.path != f"./{NAME}"))


def installed_packages(layer: Path) -> dict[str, str]:
    """Return every package in it and its version."""
    found: dict[str, str] = {}
    lock = layer / "node_modules" / ".package-lock.json"
    if lock.is_file():
        for place, package in json.loads(lock.read_text()).get("packages", {}).items():
            found[place.rpartition("node_modules/")[2]] = str(package.get("version", ""))
    for info in (layer / "python").glob("*.dist-info"):
        name, _, version = info.name.removesuffix(".dist-info").partition("-")
        found[name] = version
    return found


def settle(layer: Path) -> tuple[int, int]:
    """Make all of it readable for everyone and writable for nobody else; how many files and bytes it has.

    Links may not leave it: it is seen elsewhere under another name.
    """
    files = size = 0
    inside = layer.resolve()
    layer.chmod(0o755)
    for parent, folders, names in os.walk(layer):
        for name in (*folders, *names):
            path = Path(parent, name)
            info = path.lstat()
            if stat.S_ISLNK(info.st_mode):
                if path.readlink().is_absolute() or not path.resolve().is_relative_to(inside):
                    raise fetch_failed(f"{path.relative_to(layer)} is a link that leads out of its package.")
                continue
            executable = stat.S_ISDIR(info.st_mode) or info.st_mode & 0o111
            path.chmod(0o755 if executable else 0o644)
            if stat.S_ISREG(info.st_mode):
                files, size = files + 1, size + info.st_size
        if files > MOST_FILES or size > MOST_BYTES:
            raise fetch_failed(
                f"the packages have more than {MOST_BYTES >> 30} GiB or {MOST_FILES:,} files; not kept."
            )
    return files, size


# Layers by content: built at most once for each kind of root file system, whoever asks.

BUILD_TIMEOUT_S = 600.0
FAILURE_REMEMBERED_S = 30.0
"""So long the others who wait for the same layer are told what the first one was told."""
BUILDS = "builds.jsonl"
"""One line for each layer that was built."""
_FORMAT = 1
_LEFT_AFTER_S = 3600.0
_VERSION = re.compile(r"\d[0-9A-Za-z.+-]{0,60}")


@dataclass(eq=False)
class LayerCache:
    """The layers below one folder, shared by all trials and all processes that use it."""

    folder: Path
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of the sandboxes that are looked into, so that a reaper finds what a crash left."""
    on_install: Log | None = None
    """Told that something is being installed, and when it is; the rest is in the attempt's log."""
    _kinds: dict[str, RootKind] = field(default_factory=dict)
    _failed: dict[str, tuple[float, ValkyrieError]] = field(default_factory=dict)
    _digests: FolderDigests = field(default_factory=FolderDigests)
    _turns: defaultdict[str, asyncio.Lock] = field(default_factory=partial(defaultdict, asyncio.Lock))

    async def ready(
        self, spec: LayerSpec, provider: SandboxProvider, source: SandboxSource, log: Log
    ) -> Path:
        """The folder of the layer for sandboxes made from `source`, installed if it is not there yet."""
        return await self.built(spec, await self._kind(provider, source), log)

    async def built(self, spec: LayerSpec, root: RootKind, log: Log, *, repair: bool = False) -> Path:
        """The folder of the layer for this kind of root, with just what was installed in it.

        One that was changed since is an error; `repair` installs it again.
        """
        if not _VERSION.fullmatch(spec.version):
            raise UsageError(f"{spec.name}: {spec.version[:60]!r} is no version; give it as 1.2.3.")
        facts = _facts(spec, root)
        key = content_digest(facts).removeprefix("sha256:")[:16]
        layer = self.folder / f"{spec.name}-{spec.version}-{key}"
        async with self._turns[key]:
            if (layer / NAME).is_file():
                problem = await asyncio.to_thread(self._changed, layer)
                if problem is None:
                    return layer
                if not repair:
                    raise UserError(
                        f"{spec.name} {spec.version} is not what was installed: {problem} ({layer}). "
                        f"Install it again: valk agent fetch {spec.name} --version {spec.version}",
                        cause="agent_layer_changed",
                    )
                log(f"{spec.name} {spec.version} is not what was installed: {problem}. Installing it again.")
                await asyncio.to_thread(_put_aside, layer)
            self._raise_again(key)
            try:
                await self._build(spec, root, layer, facts, log)
            except ValkyrieError as error:
                self._failed[key] = time.monotonic(), error
                raise
        return layer

    def _changed(self, layer: Path) -> str | None:
        """Return what is wrong with an installed layer; the digest of one without is noted down."""
        try:
            manifest = read_manifest(layer)
            found = layer_digest(layer, self._digests)
        except (OSError, ValueError, TypeError, UnreadableContentError) as error:
            return f"it cannot be read ({error})"
        if not manifest.digest:
            with contextlib.suppress(OSError):
                replace(manifest, digest=found).write(layer)
            return None
        if manifest.digest == found:
            return None
        return f"its digest is {found[:12]}, not {manifest.digest[:12]}"

    def _raise_again(self, key: str) -> None:
        at, error = self._failed.get(key, (0.0, None))
        if error is not None and time.monotonic() - at < FAILURE_REMEMBERED_S:
            raise type(error)(str(error), cause=error.cause)

    async def _kind(self, provider: SandboxProvider, source: SandboxSource) -> RootKind:
        key = f"{provider.admission_pool_id} {source.model_dump_json()}"
        async with self._turns[key]:
            if key not in self._kinds:
                self._kinds[key] = await kind_of_root(provider, source, self.labels)
            return self._kinds[key]

    async def _build(self, spec: LayerSpec, root: RootKind, layer: Path, facts: Any, log: Log) -> None:
        with _disk_trouble(spec):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o755)
            async with locked(self.folder / f".{layer.name}.lock", log):
                if (layer / NAME).is_file():
                    return
                await asyncio.to_thread(_sweep, self.folder, layer.name)
                draft = Path(mkdtemp(prefix=f".draft-{layer.name}-", dir=self.folder))
                try:
                    await self._fill(spec, root, draft, facts, log)
                    await asyncio.to_thread(_settle_under, draft, layer)
                finally:
                    await asyncio.shield(asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True))

    async def _fill(self, spec: LayerSpec, root: RootKind, draft: Path, facts: Any, log: Log) -> None:
        begun = f"Installing {spec.name} {spec.version} for {root.machine} {root.libc}, once for all trials."
        self._tell(begun, log)
        start = time.monotonic()
        try:
            async with asyncio.timeout(BUILD_TIMEOUT_S):
                await install(spec, root, draft, self.folder / ".tools", log)
        except TimeoutError:
            raise fetch_failed(
                f"fetching {spec.name} {spec.version} took longer than {BUILD_TIMEOUT_S:g} s; "
                f"`valk agent fetch {spec.name}` tries again and shows how it goes."
            ) from None
        seconds = round(time.monotonic() - start, 1)
        files, size = await asyncio.to_thread(settle, draft)
        LayerManifest(
            name=spec.name,
            version=spec.version,
            root=facts["root"],
            installed=await asyncio.to_thread(installed_packages, draft),
            files=files,
            bytes=size,
            seconds=seconds,
            built_at=datetime.now(UTC).isoformat(timespec="seconds"),
            digest=await asyncio.to_thread(layer_digest, draft, FolderDigests()),
        ).write(draft)
        (draft / NAME).chmod(0o644)
        done = f"Installed {spec.name} {spec.version}: {files:,} files, {size >> 20} MiB, {seconds:g} s."
        self._tell(done, log)

    def _tell(self, line: str, log: Log) -> None:
        log(line)
        if self.on_install is not None:
            self.on_install(line)


def _facts(spec: LayerSpec, root: RootKind) -> dict[str, Any]:
    """Return all that decides what is in the layer: the same facts are the same layer."""
    needed: dict[str, Any] = {"machine": root.machine, "libc": root.libc}
    own_node = spec.node and root.node is None
    if spec.pip:
        needed["python"] = root.python
    if spec.pip or own_node:
        needed["libc_version"] = root.libc_version
    return {
        "format": _FORMAT,
        "name": spec.name,
        "version": spec.version,
        "npm": filled(spec.npm, root),
        "pip": list(spec.pip),
        "node": NODE_PACKAGE if own_node else None,
        "root": needed,
    }


def _settle_under(draft: Path, layer: Path) -> None:
    """Give a whole layer its name, on disk before anyone relies on it, and count it."""
    os.sync()
    draft.rename(layer)
    line = json.dumps({"layer": layer.name, "pid": os.getpid(), "at": time.time()}) + "\n"
    with (layer.parent / BUILDS).open("a") as builds:
        builds.write(line)


def _put_aside(layer: Path) -> None:
    """Take a changed layer's name away; who builds it anew sweeps it up."""
    with contextlib.suppress(FileNotFoundError):
        layer.rename(layer.with_name(f".draft-{layer.name}-changed-{time.time_ns()}"))


def _sweep(folder: Path, name: str) -> None:
    """Remove what builders that were killed left: of this layer (its lock is ours), and old ones."""
    oldest = time.time() - _LEFT_AFTER_S
    for draft in folder.glob(".draft-*"):
        with contextlib.suppress(FileNotFoundError):
            if draft.name.startswith(f".draft-{name}-") or draft.stat().st_mtime < oldest:
                shutil.rmtree(draft, ignore_errors=True)


@contextlib.contextmanager
def _disk_trouble(spec: LayerSpec) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        said = f"{spec.name} {spec.version} could not be installed: {error}."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(said) from error
        raise fetch_failed(said) from error


def layers_in(folder: Path) -> list[tuple[Path, LayerManifest]]:
    """Return every whole layer below `folder`."""
    found = sorted(file.parent for file in folder.glob(f"[!.]*/{NAME}"))
    return [(layer, read_manifest(layer)) for layer in found]


def as_json(layer: Path, manifest: LayerManifest) -> dict[str, Any]:
    """One layer for `--json`."""
    return {**asdict(manifest), "folder": str(layer)}


__all__ = [
    "LayerCache",
    "LayerManifest",
    "RootKind",
    "kind_of_host",
    "kind_of_root",
    "read_manifest",
]
