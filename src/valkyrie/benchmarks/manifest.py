"""`benchmark.toml`: a name, a description and named datasets for a folder of tasks. Ours, so strict."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from valkyrie.benchmarks.task_toml import MOST_BYTES, parse_toml
from valkyrie.errors import BenchmarkError, UsageError
from valkyrie.regular_files import read_regular
from valkyrie.suggest import did_you_mean

FILE_NAME = "benchmark.toml"


class BenchmarkManifest(BaseModel):
    """What a folder of tasks says about itself; every field may be left out."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: str | None = Field(default=None, min_length=1)
    description: str = ""
    datasets: dict[str, list[str]] = Field(default_factory=dict)
    """Dataset name → task ids or globs, in the order they are to run. `default` is all tasks if unsaid."""

    @property
    def dataset_names(self) -> list[str]:
        """`default` first."""
        return ["default", *(name for name in self.datasets if name != "default")]

    def choose(self, dataset: str, task_ids: Sequence[str], where: str, name: str = "") -> list[str]:
        """Ids of the tasks in `dataset`; a pattern that fits no task is an error."""
        if dataset not in self.dataset_names:
            known = ", ".join(self.dataset_names)
            raise UsageError(
                f"unknown dataset {dataset!r} of {name or where}; it has: {known}."
                f"{did_you_mean(dataset, self.dataset_names)}"
            )
        if dataset not in self.datasets:
            return list(task_ids)
        chosen: dict[str, None] = {}
        for pattern in self.datasets[dataset]:
            fitting = [task_id for task_id in task_ids if fnmatchcase(task_id, pattern)]
            if not fitting:
                raise BenchmarkError(
                    f"{where}/{FILE_NAME}: dataset {dataset!r} names {pattern!r}, which fits no task."
                    f"{did_you_mean(pattern, task_ids)}"
                )
            chosen.update(dict.fromkeys(fitting))
        if not chosen:
            raise UsageError(f"{where}/{FILE_NAME}: dataset {dataset!r} is empty")
        return list(chosen)


def read_manifest(folder: Path) -> BenchmarkManifest:
    """The manifest of `folder`; an empty one when there is no file."""
    path = folder / FILE_NAME
    try:
        data = parse_toml(read_regular(path, MOST_BYTES).decode("utf-8"))
    except FileNotFoundError:
        return BenchmarkManifest()
    except OSError as error:
        raise BenchmarkError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise BenchmarkError(f"{path} is not valid TOML: {error}") from error
    try:
        return BenchmarkManifest.model_validate(data)
    except ValidationError as error:
        lines = []
        for item in error.errors(include_url=False):
            key = ".".join(map(str, item["loc"]))
            if item["type"] == "extra_forbidden":
                lines.append(f"{path}: unknown key {key}.{did_you_mean(key, BenchmarkManifest.model_fields)}")
            else:
                lines.append(f"{path}: {key}: {item['msg']}")
        raise BenchmarkError("\n".join(lines)) from error
