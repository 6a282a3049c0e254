"""Writes a new benchmark service from the templates: the whole project, or nothing."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

SUFFIX = ".tmpl"
"""Templates carry it so that no tool takes them for code of this package."""
_MARK = re.compile(r"@@(\w+)@@")


class GenerationError(Exception):
    """The project cannot be generated; nothing was written."""


@dataclass(frozen=True, slots=True)
class ProjectSpec:
    """What a generated project is made of."""

    name: str
    """The benchmark's name, lower case and hyphenated."""
    requirement: str
    """The framework, as pyproject.toml names it."""
    image: str | None = None
    """The container image its tasks ask for, if any."""

    @property
    def project(self) -> str:
        """Name of the folder and of the distribution."""
        return f"{self.name}-benchmark-service"

    @property
    def package(self) -> str:
        """Name of the importable package."""
        return self.project.replace("-", "_")

    def values(self) -> dict[str, str]:
        """What stands for each mark in the templates."""
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        return {
            "name": self.name,
            "project": self.project,
            "package": self.package,
            "requirement": self.requirement,
            "image": "None" if self.image is None else json.dumps(self.image),
            # The author has this interpreter; another in .python-version would stop pyenv's shims.
            "python": python,
        }


def benchmark_name(given: str) -> str:
    """The name as it is used everywhere: lower case, hyphenated. GenerationError when it cannot be one."""
    if not given.strip():
        raise GenerationError("The benchmark name cannot be empty.")
    if not re.fullmatch(r"[a-zA-Z0-9_-]+", given):
        raise GenerationError(
            f"{given!r} is no benchmark name: use only alphanumeric characters, hyphens and underscores."
        )
    if not given[0].isalpha():
        raise GenerationError(f"{given!r} is no benchmark name: it must start with a letter.")
    name = given.lower().replace("_", "-")
    module = name.replace("-", "_")
    if module in sys.stdlib_module_names:
        raise GenerationError(
            f"{given!r} conflicts with Python standard library module {module!r}; choose another name."
        )
    return name


def generate(spec: ProjectSpec, parent: Path) -> Path:
    """Write the project as the new folder `parent/<name>-benchmark-service`."""
    target = parent / spec.project
    try:
        if target.exists() or target.is_symlink():
            raise GenerationError(f"{target} already exists; nothing was written. Choose another name.")
        parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=parent, prefix=".create-"))
        try:
            part.chmod(0o755)
            for path, content in rendered(spec).items():
                _write(part / path, content)
            part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise GenerationError(f"{target} cannot be written: {reason}. Nothing was created.") from None
    return target


def rendered(spec: ProjectSpec) -> dict[str, str]:
    """Every file of the project: its path and its content."""
    values = spec.values()
    root = resources.files("benchmark_service") / "templates"
    return {_placed(path, values): _filled(text, values) for path, text in _templates(root)}


def _templates(folder: Traversable, prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if entry.is_dir():
            found += _templates(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(SUFFIX):
            found.append((f"{prefix}{entry.name}", entry.read_text(encoding="utf-8")))
    return found


def _placed(template: str, values: dict[str, str]) -> str:
    """Where a template's text goes: `dot-` becomes a leading dot, `package` the project's package."""
    parts = template.removesuffix(SUFFIX).split("/")
    named = [values["package"] if part == "package" else part for part in parts]
    return "/".join(re.sub(r"^dot-", ".", part) for part in named)


def _filled(text: str, values: dict[str, str]) -> str:
    return _MARK.sub(lambda mark: values[mark[1]], text)


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    if content.startswith("#!"):
        path.chmod(0o755)
