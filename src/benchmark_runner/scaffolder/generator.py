"""What a new benchmark runner is made of."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from benchmark_service.scaffold import GenerationError, author_python, rendered_files, write_project

PACKAGE = "runner"
"""The importable package of every generated project."""

LONGEST_PROJECT = 64
"""Characters that the name of an agent may have, which the project is as well."""


@dataclass(frozen=True, slots=True)
class RunnerSpec:
    """What a generated project is made of."""

    name: str
    """The benchmark's name, lower case and hyphenated."""
    requirement: str
    """The framework, as pyproject.toml names it."""

    @property
    def project(self) -> str:
        """Name of the folder, the distribution, the command and the agent."""
        return f"{self.name}-{PACKAGE}"

    def values(self) -> dict[str, str]:
        """Return what the templates are filled in with."""
        return {
            "benchmark_name": self.name,
            "benchmark_camel": "".join(part.capitalize() for part in self.name.split("-")),
            "benchmark_upper": self.name.upper().replace("-", "_"),
            "benchmark_package": PACKAGE,
            "project": self.project,
            "requirement": self.requirement,
            "python": author_python(),
        }


def generate(spec: RunnerSpec, parent: Path, templates: Path | None = None) -> Path:
    """Write the project as the new folder `parent/<name>-runner`, from the given templates or our own."""
    if len(spec.project) > LONGEST_PROJECT:
        most = LONGEST_PROJECT - len(spec.project) + len(spec.name)
        raise GenerationError(
            f"{spec.name!r} is too long; a runner's benchmark has at most {most} characters."
        )
    root = resources.files("benchmark_runner.scaffolder") / "templates" if templates is None else templates
    try:
        files = rendered_files(root, spec.values())
    except OSError as error:
        raise GenerationError(
            f"The templates cannot be read: {error.filename}: {error.strerror or error}. Nothing was written."
        ) from None
    if not files:
        raise GenerationError(f"{templates} holds no templates. Nothing was written.")
    return write_project(parent / spec.project, files)
