"""Which version of the service, and of its data, is being served."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, metadata, packages_distributions, version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

_SEMVER = (
    r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$"
)


class DatasetVersion(BaseModel):
    """One immutable state of a dataset: `id` identifies it, `label` is for people."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(min_length=1, max_length=1024, pattern=r"^[!-~]+$")
    label: str | None = None


class DatasetVersionEntry(BaseModel):
    """One dataset's line in dataset_versions.yaml."""

    model_config = ConfigDict(extra="forbid")

    version: str = Field(pattern=_SEMVER)


class _VersionsFile(RootModel[dict[str, DatasetVersionEntry]]):
    pass


@lru_cache(maxsize=16)
def load_dataset_versions(path: Path) -> dict[str, DatasetVersionEntry]:
    """Read `{dataset: {version: semver}}`; anything else is a ValueError that names the file."""
    import yaml

    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        return _VersionsFile.model_validate(content if content is not None else {}).root
    except FileNotFoundError:
        raise ValueError(f"dataset versions file {path} does not exist") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"dataset versions file {path} is not YAML: {error}") from None
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise ValueError(
            f"dataset versions file {path} must be {{dataset: {{version: 1.2.3}}}}: {wrong}"
        ) from None


def owning_distribution(module: str) -> tuple[str | None, str | None]:
    """Name and version of the installed distribution a module belongs to; Nones when there is none."""
    package = module.partition(".")[0]
    # An editable installation does not list its modules; by convention it is named like its package.
    for name in [*packages_distributions().get(package, []), package]:
        try:
            return metadata(name)["Name"], version(name)
        except PackageNotFoundError:
            continue
    return None, None
