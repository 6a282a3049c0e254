"""YAML from elsewhere, read within bounds, and written so that a reader never sees half of it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping

Model = TypeVar("Model", bound=BaseModel)

LARGEST = 64 * 1024 * 1024


def read_yaml(path: Path, model: type[Model], what: str) -> Model:
    """The file as a model; ValueError names the file and what is wrong with it."""
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"{path} is too large for {what} (more than {LARGEST >> 20} MiB).")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text.") from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        # A few lines of aliases of aliases stand for more than there is memory.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=loader)):
            raise ValueError(f"{path} uses YAML aliases (`*name`); write the values out.")
        return model.model_validate(yaml.load(text, Loader=loader))  # noqa: S506 - a safe loader
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path} is no YAML: {' '.join(str(error).split())[:300]}") from None
    except ValidationError as error:
        raise ValueError(f"{path} is not {what}: {problems(error)}") from None


def write_yaml(path: Path, values: Mapping[str, Any]) -> None:
    """Write values; the file appears whole or not at all."""

    class Plain(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        def ignore_aliases(self, _data: Any) -> bool:
            return True  # what is read back has none

    text = yaml.dump(dict(values), Dumper=Plain, sort_keys=False, allow_unicode=True)
    write_whole(path, text.encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        part.write_bytes(content)
        os.replace(part, path)  # noqa: PTH105
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def problems(error: ValidationError, most: int = 3) -> str:
    """A model's complaints in a line, without the values."""
    found = [f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in error.errors()[:most]]
    rest = error.error_count() - most
    return "; ".join(found) + (f"; and {rest} more" if rest > 0 else "")
