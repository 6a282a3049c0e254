"""Which framework a generated project depends on, as a requirement for its pyproject.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from sandboxes.installation import DISTRIBUTION, origin

PLACEHOLDER = "file:///FILL-IN/where-the-framework-is"
"""Leads nowhere, so that installing fails until somebody says where the framework is: an index may hold
another author's package of its name."""
ARCHIVES = (".whl", ".tar.gz")


@dataclass(frozen=True, slots=True)
class Framework:
    """A requirement, and where it leads in words for a person."""

    requirement: str
    origin: str


def framework_at(path: Path, extra: str | None = None) -> Framework:
    """The framework in a checkout folder, a wheel or a source archive; ValueError when it is none."""
    found = path.resolve()
    if found.is_dir():
        if _project_name(found / "pyproject.toml") != DISTRIBUTION:
            raise ValueError(
                f"{path} is not a checkout of {DISTRIBUTION}: its pyproject.toml does not name it"
            )
    elif not found.name.startswith("valkyrie_bench-") or not found.name.endswith(ARCHIVES):
        raise ValueError(f"{path} is neither a checkout nor a wheel or .tar.gz of {DISTRIBUTION}")
    return Framework(_direct(found.as_uri(), extra), str(found))


def installed_framework(extra: str | None = None) -> Framework:
    """Return the framework this command was installed from; where no record says that, a placeholder."""
    url = origin()
    if url is not None:
        return Framework(_direct(url, extra), f"{url}, which this command was installed from")
    return Framework(
        _direct(PLACEHOLDER, extra),
        "not known: nothing records where this command was installed from. Put the framework's checkout, "
        "wheel or repository into pyproject.toml, or create the project again with --framework",
    )


def _direct(url: str, extra: str | None) -> str:
    return f"{_with(extra)} @ {url}"


def _with(extra: str | None) -> str:
    return f"{DISTRIBUTION}[{extra}]" if extra else DISTRIBUTION


def _project_name(pyproject: Path) -> str | None:
    try:
        project = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError):
        return None
    name = project.get("name") if isinstance(project, dict) else None
    return name if isinstance(name, str) else None
