"""`contract.yaml`: how an agent is installed, run, and what it leaves behind."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from benchmark_runner import yaml_documents
from benchmark_runner.agent_bundle import CONTRACT_FILES
from benchmark_runner.agent_bundle.bundle import NAME, NAME_RULE
from benchmark_runner.agent_bundle.placeholders import placeholder_names
from benchmark_runner.agent_bundle.resolution import RUNTIME_PLACEHOLDERS, TYPES, ParameterType, coerce, fits
from benchmark_runner.errors import ContractValidationError, did_you_mean
from benchmark_runner.yaml_documents import KeyPath, YamlDocument

MAX_OUTPUT_ARTIFACTS = 10
MAX_COMMAND_BYTES = 64 * 1024
"""Linux takes no argument above 128 KiB, and values are still to be filled in."""
ARTIFACT_FOLDER = "/tmp/valkyrie"
_PARAMETER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LATER = ("conversation", "finalize_cmd")
"""Keys that contracts of other versions have."""
_IN_A_FILE = "file"
"""Tells validators that someone wrote the values: a key without a value is a mistake there."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Parameter(_Strict):
    """One value a contract asks for."""

    type: ParameterType = "str"
    required: bool = False
    default: Any = None
    choices: list[str | int | float | bool] | None = None
    description: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Parameter:
        if self.choices is not None:
            if not self.choices:
                raise ValueError("`choices` is empty; list at least one value or leave the key out")
            for choice in self.choices:
                coerce(str(choice).lower() if isinstance(choice, bool) else str(choice), self.type)
        if self.default is not None:
            if not fits(self.default, self.type):
                raise ValueError(f"the default {self.default!r} is no {TYPES[self.type]}")
            if self.choices is not None and self.default not in self.allowed:
                raise ValueError(f"the default {self.default!r} is not among the choices {self.choices}")
        return self

    @property
    def allowed(self) -> list[Any]:
        """The choices as values of the parameter's type."""
        texts = (str(c).lower() if isinstance(c, bool) else str(c) for c in self.choices or ())
        return [coerce(text, self.type) for text in texts]


class ArtifactEntry(_Strict):
    """One file (or glob) to keep after the agent ran."""

    path: str
    """Where it is kept, relative to the trial's artifacts."""
    source: str | None = None
    """Absolute path in the sandbox; default `/tmp/valkyrie/<path>`."""
    required: bool = True
    """A missing required artifact fails the trial; an optional one is skipped and logged."""

    @field_validator("path")
    @classmethod
    def _relative(cls, path: str) -> str:
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts) or "\\" in path or not path.isprintable():
            raise ValueError(f"{path!r} must be a relative path without empty, `.` or `..` parts")
        return path

    @field_validator("source")
    @classmethod
    def _absolute(cls, source: str | None) -> str | None:
        if source is None:
            return None
        parts = source.split("/")
        if not source.startswith("/") or not parts[1] or ".." in parts or "\0" in source:
            raise ValueError(f"{source!r} must be an absolute path in the sandbox, without `..`")
        if re.search(r"[*?\[]", parts[1]):
            raise ValueError(f"{source!r} must name a folder before its first `*`, `?` or `[`")
        return source

    @property
    def source_path(self) -> str:
        """Where it is looked for in the sandbox."""
        return self.source or f"{ARTIFACT_FOLDER}/{self.path}"


def _artifact(entry: object) -> object:
    return {"path": entry} if isinstance(entry, str) else entry


def _parameter(value: object) -> object:
    """Take a bare value in `defaults` for the default of a parameter of its type."""
    types = {str: "str", int: "int", float: "float", bool: "bool"}
    return {"type": types[type(value)], "default": value} if type(value) in types else value


class AgentContract(_Strict):
    """What stands in `contract.yaml`."""

    name: str
    """What the agent is called; its bundle stands in `/bundle/<name>` in the sandbox."""
    install_cmd: str | None = None
    """Run once per sandbox, in `/bundle/<name>`; None installs nothing."""
    run_cmd: str
    """Run in the task's folder. Must hold `{problem_statement_path}`; may hold `{task_id}` and parameters."""
    final_output: str | None = None
    """Absolute path of a file or folder in the sandbox that is archived."""
    output_artifacts: list[Annotated[ArtifactEntry, BeforeValidator(_artifact)]] = Field(default_factory=list)
    egress_allowlist: list[str] = Field(default_factory=list)
    """URLs the agent may reach while `run_cmd` runs; empty is unrestricted."""
    secrets: dict[str, str] = Field(default_factory=dict)
    """Environment variable → name of the secret that fills it."""
    required_env: list[str] = Field(default_factory=list)
    """Environment variables the agent needs besides, each filled by what has its own name."""
    defaults: dict[str, Annotated[Parameter, BeforeValidator(_parameter)]] = Field(default_factory=dict)
    """Predefined parameters, or just their values; `model` is filled from `--model`."""
    kwargs: dict[str, Parameter] = Field(default_factory=dict)
    """The agent's own parameters, filled by `-k`."""
    provided: Annotated[None, BeforeValidator(lambda _anything: None)] = None
    """Documentation only; dropped."""
    ingest_lambda: str | None = None
    """Function that is told about results."""

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Predefined and own parameters together."""
        return {**self.defaults, **self.kwargs}

    @property
    def environment(self) -> dict[str, str]:
        """Every environment variable the agent needs → name of the secret that fills it."""
        return {**{name: name for name in self.required_env}, **self.secrets}

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} must be {NAME_RULE}")
        return name

    @field_validator("install_cmd", "run_cmd")
    @classmethod
    def _command(cls, command: str | None, info: ValidationInfo) -> str | None:
        if command is None:
            if info.context == _IN_A_FILE:
                raise ValueError("must be text, is empty; leave the key out where nothing is to be installed")
            return None
        if not command.strip() or "\0" in command:
            raise ValueError("is empty; write `true` for a command that does nothing")
        if len(command.encode("utf-8", "replace")) > MAX_COMMAND_BYTES:
            raise ValueError(
                f"is longer than {MAX_COMMAND_BYTES:,} bytes; put the script into a file of the bundle"
            )
        return command

    @field_validator("run_cmd")
    @classmethod
    def _told_the_problem(cls, command: str) -> str:
        try:
            told = placeholder_names(command, RUNTIME_PLACEHOLDERS[:1])
        except ContractValidationError as error:
            raise ValueError(str(error).removeprefix("run_cmd: ")) from None
        if not told:
            raise ValueError(
                "must contain {problem_statement_path}, outside comments: the file that holds the instruction"
            )
        return command

    @field_validator("final_output")
    @classmethod
    def _absolute(cls, path: str | None) -> str | None:
        if path is not None and (not path.startswith("/") or ".." in path.split("/") or not path.strip("/")):
            raise ValueError(f"{path!r} must be an absolute path in the sandbox, not `/`, without `..`")
        return path

    @field_validator("output_artifacts")
    @classmethod
    def _artifacts(cls, entries: list[ArtifactEntry]) -> list[ArtifactEntry]:
        if len(entries) > MAX_OUTPUT_ARTIFACTS:
            raise ValueError(f"lists {len(entries)} artifacts; {MAX_OUTPUT_ARTIFACTS} are allowed")
        paths = [PurePosixPath(entry.path) for entry in entries]
        for at, path in enumerate(paths):
            for other in paths[:at]:
                if path == other:
                    raise ValueError(f"{str(path)!r} is listed twice")
                if path in other.parents or other in path.parents:
                    raise ValueError(f"{str(path)!r} and {str(other)!r}: one would be a file and a folder")
        return entries

    @field_validator("egress_allowlist")
    @classmethod
    def _urls(cls, urls: list[str]) -> list[str]:
        for url in urls:
            try:
                parts = urlsplit(url)
                good = (
                    parts.scheme in ("http", "https") and bool(parts.hostname) and not re.search(r"\s", url)
                )
            except ValueError:
                good = False
            if not good:
                raise ValueError(f"{url!r} is no URL; write it like https://api.example.com")
        return urls

    @field_validator("secrets")
    @classmethod
    def _secrets(cls, secrets: dict[str, str]) -> dict[str, str]:
        for variable, name in secrets.items():
            if not _VARIABLE_NAME.fullmatch(variable):
                raise ValueError(f"{variable!r} is no name of an environment variable")
            if not name.strip():
                raise ValueError(f"{variable} names no secret")
        return secrets

    @field_validator("required_env")
    @classmethod
    def _variables(cls, names: list[str]) -> list[str]:
        for name in names:
            if not _VARIABLE_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name of an environment variable")
        return names

    @field_validator("defaults", "kwargs")
    @classmethod
    def _parameter_names(cls, parameters: dict[str, Parameter]) -> dict[str, Parameter]:
        for name, parameter in parameters.items():
            if name in RUNTIME_PLACEHOLDERS:
                raise ValueError(f"`{name}` is filled in by the platform; choose another name")
            if not _PARAMETER_NAME.fullmatch(name):
                raise ValueError(f"{name!r} must be letters, digits, `_` or `-`, starting with a letter")
            if name == "model" and parameter.type != "str":
                raise ValueError("`model` must be of type str")
        return parameters

    @model_validator(mode="after")
    def _declared_once(self) -> AgentContract:
        if twice := sorted(self.defaults.keys() & self.kwargs.keys()):
            raise ValueError(f"{', '.join(twice)} in both `defaults` and `kwargs`; keep one")
        return self


def load_contract(source: Path | str, where: str | None = None) -> AgentContract:
    """Read the contract in an agent's folder, in a file (both a Path) or in a text (a str).

    ContractValidationError lists all its problems at once.
    """
    if isinstance(source, Path):
        file = find_contract(source) if source.is_dir() else source
        where = where or str(file)
        source = _read_text(file, where)
    where = where or CONTRACT_FILES[0]
    document = yaml_documents.parse(source, where)
    if not isinstance(document.data, dict):
        raise ContractValidationError(
            f"{where}: must be keys and values (name: …, install_cmd: …, run_cmd: …)."
        )
    try:
        return AgentContract.model_validate(document.data, context=_IN_A_FILE)
    except ValidationError as error:
        raise ContractValidationError(_describe(error, document, where)) from None


def find_contract(folder: Path) -> Path:
    """Return the contract file of an agent's folder."""
    found = [folder / name for name in CONTRACT_FILES if (folder / name).is_file()]
    if len(found) > 1:
        raise ContractValidationError(f"{folder} has both {' and '.join(CONTRACT_FILES)}; keep one.")
    if not found:
        old = (
            " contract.py is no longer read; write its values into contract.yaml."
            * (folder / "contract.py").is_file()
        )
        raise ContractValidationError(
            f"{folder} has no contract.yaml.{old} `valk agent init NAME` writes one."
        )
    return found[0]


def _read_text(file: Path, where: str) -> str:
    try:
        if (size := file.stat().st_size) > yaml_documents.MAX_BYTES:
            raise ContractValidationError(f"{where}: too large for a contract ({size:,} bytes, 1 MiB).")
        return file.read_bytes().decode()
    except OSError as error:
        raise ContractValidationError(f"{where}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ContractValidationError(f"{where}: not UTF-8 text.") from None


def _describe(error: ValidationError, document: YamlDocument, where: str) -> str:
    """Name each problem in a line of its own: file, line, key and the way out."""
    problems: list[str] = []
    for item in error.errors(include_url=False):
        path = _without_union_arms(item["loc"])
        line = f"{where}:{document.line(path)}: {_dotted(path)}{_explain(item, path)}"
        if line not in problems:
            problems.append(line)
    return "\n".join(problems)


def _without_union_arms(path: KeyPath) -> KeyPath:
    """Pydantic names the tried types of a union after the index; people do not write those."""
    return path[:4] if path[2:3] == ("choices",) else path


def _dotted(path: KeyPath) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return f"{text.lstrip('.')}: " if text else ""


_WANTED = {
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "bool_type": "true or false",
}


def _explain(item: ErrorDetails, path: KeyPath) -> str:
    kind, given = item["type"], item["input"]
    if kind == "missing":
        return "missing; add it."
    if kind == "extra_forbidden":
        key = str(path[-1])
        if len(path) == 1 and key in _LATER:
            return "not supported by this version; remove it."
        known = list(_model_of(path).model_fields)
        return f"unknown key.{did_you_mean(key, known)} Known: {', '.join(known)}."
    if kind in _WANTED:
        quote = " Put it in quotes or a block (`|`)." if kind == "string_type" and given is not None else ""
        return f"must be {_WANTED[kind]}, is {_named(given)}.{quote}"
    if kind == "literal_error":
        return f"must be one of {', '.join(TYPES)}, is {given!r}."
    return item["msg"].removeprefix("Value error, ").rstrip(".") + "."


def _named(given: object) -> str:
    if given is None:
        return "empty"
    if isinstance(given, dict | list):
        return "keys and values" if isinstance(given, dict) else "a list"
    return f"{str(given).lower() if isinstance(given, bool) else given!r}"


def _model_of(path: KeyPath) -> type[BaseModel]:
    """Return the model whose key a path is."""
    if len(path) == 1:
        return AgentContract
    return ArtifactEntry if path[0] == "output_artifacts" else Parameter
