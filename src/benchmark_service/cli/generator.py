"""What a new benchmark service is made of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from benchmark_service.scaffold import author_python, rendered_files, write_project


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
        """What the templates are filled in with."""
        return {
            "name": self.name,
            "project": self.project,
            "package": self.package,
            "requirement": self.requirement,
            "image": "None" if self.image is None else json.dumps(self.image),
            "python": author_python(),
        }


def generate(spec: ProjectSpec, parent: Path) -> Path:
    """Write the project as the new folder `parent/<name>-benchmark-service`."""
    templates = resources.files("benchmark_service") / "templates"
    return write_project(parent / spec.project, rendered_files(templates, spec.values()))
