"""Packages written by a test, and how often layers of them were built: real npm and pip, no network."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path

from valkyrie.agents.layers import BUILDS


def npm_package(folder: Path, name: str, version: str = "1.0.0", script: str | None = None) -> Path:
    """An archive as npm packs it, with one command; `script` would be run while it is installed."""
    package = {"name": name, "version": version, "bin": {name: "run.js"}}
    if script:
        package["scripts"] = {"postinstall": script, "preinstall": script, "install": script}
    target = folder / f"{name}-{version}.tgz"
    with tarfile.open(target, "w:gz") as archive:
        for path, text in (
            ("package/package.json", json.dumps(package)),
            ("package/run.js", "#!/usr/bin/env node\nconsole.log('node says hello')\n"),
        ):
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(text), 0o755
            archive.addfile(info, io.BytesIO(text.encode()))
    return target


def wheel(folder: Path, name: str, version: str = "1.0.0") -> Path:
    """A wheel with one module and one command that prints where it runs."""
    target = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": "def main():\n    print('python says hello')\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(target, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return target


def builds(cache: Path) -> list[str]:
    """The layers that were built below `cache`, in order."""
    log = cache / BUILDS
    return [json.loads(line)["layer"] for line in log.read_text().splitlines()] if log.exists() else []
