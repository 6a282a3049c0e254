"""Which framework a generated project depends on, as a requirement for its pyproject.toml."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from benchmark_service import __version__

DISTRIBUTION = "valkyrie-bench"
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
    """The framework this command was installed from, or the releases compatible with it."""
    url = _installed_from()
    if url is not None:
        return Framework(_direct(url, extra), f"{url}, which this command was installed from")
    major, minor = __version__.split(".")[:2]
    compatible = f"{_with(extra)}>={major}.{minor},<{major}.{int(minor) + 1}"
    return Framework(compatible, f"{compatible} from your package index")


def reference_of(record: dict[str, Any]) -> str | None:
    """The URL of a PEP 610 record as a requirement takes it; None when it leads nowhere from here."""
    url = _without_password(str(record["url"]))
    if urlsplit(url).scheme == "file" and not Path(unquote(urlsplit(url).path)).exists():
        return None
    if vcs := record.get("vcs_info"):
        revision = vcs.get("requested_revision") or vcs["commit_id"]
        url = f"{vcs['vcs']}+{url}@{revision}"
    folder = record.get("subdirectory")
    return f"{url}#subdirectory={folder}" if folder else url


def _installed_from() -> str | None:
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    return reference_of(json.loads(text)) if text else None


def _direct(url: str, extra: str | None) -> str:
    return f"{_with(extra)} @ {url}"


def _with(extra: str | None) -> str:
    return f"{DISTRIBUTION}[{extra}]" if extra else DISTRIBUTION


def _without_password(url: str) -> str:
    """The URL without a literal password, which must not end up in someone's repository."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at or ":" not in user or "${" in user:
        return url
    return urlunsplit(parts._replace(netloc=host))


def _project_name(pyproject: Path) -> str | None:
    try:
        project = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError):
        return None
    name = project.get("name") if isinstance(project, dict) else None
    return name if isinstance(name, str) else None
