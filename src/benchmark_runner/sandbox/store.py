"""Benchmarks that are installed here: `./benchmarks/<name>.manifest.yaml`, and the agents' bundles beside."""

from __future__ import annotations

import re
from pathlib import Path

from benchmark_runner.agent_bundle.bundle import NAME
from benchmark_runner.sandbox.manifest import BundlePin, Manifest, load_manifest
from benchmark_runner.sandbox.yaml_files import write_whole, write_yaml

STORE = Path("benchmarks")
SUFFIX = ".manifest.yaml"


def manifest_path(name: str, store: Path = STORE) -> Path:
    """Where a benchmark's manifest lies; ValueError for what is no benchmark's name."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no benchmark's name: letters, digits, `.`, `_` and `-`.")
    return store / f"{name}{SUFFIX}"


def load_installed(name: str, store: Path = STORE) -> Manifest | None:
    """An installed benchmark, if there is one of that name."""
    path = manifest_path(name, store)
    return load_manifest(path) if path.is_file() else None


def list_installed(store: Path = STORE) -> list[Manifest]:
    """All installed benchmarks, by name."""
    return [load_manifest(path) for path in sorted(store.glob(f"*{SUFFIX}"))]


def installed_names(store: Path = STORE) -> list[str]:
    """Their names alone."""
    return sorted(path.name.removesuffix(SUFFIX) for path in store.glob(f"*{SUFFIX}"))


def install_manifest(manifest: Manifest, folder: Path, store: Path = STORE) -> Path:
    """Keep a manifest, and its bundle from `folder`, in place of an earlier one of that name."""
    bundle = manifest.bundle(folder)
    if bundle is not None:
        pin = BundlePin(file=f"{manifest.benchmark}.bundle.zip", sha256=bundle.sha256)
        write_whole(store / pin.file, bundle.content)
        manifest = manifest.model_copy(update={"agent": manifest.agent.model_copy(update={"bundle": pin})})
    path = manifest_path(manifest.benchmark, store)
    write_yaml(path, manifest.model_dump(mode="json"))
    return path


def pin_diff(old: Manifest, new: Manifest) -> list[str]:
    """What is pinned otherwise in another manifest of the benchmark, in words."""
    before, now = _pins(old), _pins(new)
    changed = (name for name in now if before[name] != now[name])
    return [f"{name}: {_short(before[name])} → {_short(now[name])}" for name in changed]


def image_summary(manifest: Manifest) -> str:
    """The image of the tasks, or how many there are."""
    images = {task.image for task in manifest.tasks}
    if len(images) > 1:
        return f"{len(images)} images"
    return _short(images.pop()) if images != {None} else "no image"


def _pins(manifest: Manifest) -> dict[str, str | None]:
    agent = manifest.agent
    return {
        "service.url": manifest.service.url,
        "dataset.name": manifest.dataset.name,
        "agent.bundle": agent.bundle.sha256 if agent.bundle else None,
        "agent.install_cmd": agent.install_cmd,
        "agent.run_cmd": agent.run_cmd,
        "agent.final_output": agent.final_output,
        "agent.required_env": ", ".join(agent.required_env),
        "eval.payload_schema": manifest.eval.payload_schema,
        "versions.framework": manifest.versions.framework,
        "versions.service": manifest.versions.service,
        "versions.dataset": manifest.versions.dataset,
        "tasks": f"{len(manifest.tasks)} tasks, {manifest.fingerprint()[:12]}",
        "images": image_summary(manifest),
    }


def _short(value: str | None) -> str:
    if value is None:
        return "nothing"
    text = re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1", value)
    return text if len(text) <= 100 else f"{text[:99]}…"
