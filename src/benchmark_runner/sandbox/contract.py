"""`contract.yaml`: how an agent is installed and run. The platform's contracts are read as they are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from benchmark_runner.sandbox.yaml_files import problems, read_yaml

FILE_NAMES = ("contract.yaml", "contract.yml")
AT_RUN_TIME = ("problem_statement_path", "task_id")
"""Placeholders that each task fills."""
_PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_-]*)\}")
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+=,-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HARD_TO_QUOTE = re.compile(r"<<|`|\$['({]|(?:^|\s)#", re.MULTILINE)
"""With one of these in a command, what a place in it means takes a shell to say."""
_PARAMETER_KEYS = frozenset({"type", "required", "default", "choices", "description"})


class AgentContract(BaseModel):
    """What stands in `contract.yaml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """Names the agent, and its folder `/bundle/<name>` in the sandbox."""
    run_cmd: str
    """Run in the task's folder. Must hold `{problem_statement_path}`."""
    install_cmd: str | None = None
    """Run before it, in the bundle's folder."""
    final_output: str | None = None
    """The folder with `<task_id>/generation.json`, or one file whose text is the answer."""
    secrets: dict[str, str] = Field(default_factory=dict)
    """Environment variable of the agent → name of what fills it, where that is another variable."""
    required_env: list[str] = Field(default_factory=list)
    """Environment variables the agent needs besides."""
    defaults: dict[str, Any] = Field(default_factory=dict)
    """What placeholders stand for, where nobody says otherwise; `model` is the run's."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """The same, under the name the platform has for an agent's own parameters."""
    egress_allowlist: list[str] = Field(default_factory=list)
    """URLs the agent may reach; empty: whatever the sandbox's network reaches."""
    output_artifacts: Any = None
    """Of the platform; nothing here looks at it."""
    ingest_lambda: Any = None
    """Of the platform; nothing here looks at it."""
    provided: Any = None
    """For people."""

    @field_validator("run_cmd")
    @classmethod
    def _told_the_problem(cls, command: str) -> str:
        if "{problem_statement_path}" not in command:
            raise ValueError("must contain {problem_statement_path}, the file with the question")
        return command

    @field_validator("run_cmd", "install_cmd")
    @classmethod
    def _command(cls, command: str | None) -> str | None:
        if command is not None and "\0" in command:
            raise ValueError("holds a NUL character")
        return command

    @field_validator("final_output")
    @classmethod
    def _absolute(cls, path: str | None) -> str | None:
        if path is not None and (not path.startswith("/") or ".." in path.split("/") or not path.strip("/")):
            raise ValueError("must be an absolute path in the sandbox, not `/`, without `..`")
        return path

    @field_validator("secrets", "required_env")
    @classmethod
    def _variables(cls, names: Any) -> Any:
        for name in names:
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} is no name of an environment variable")
        return names

    def parameters(self, model: str, given: Mapping[str, str]) -> dict[str, str]:
        """The value of every placeholder the contract declares; ValueError for what is missing or unknown."""
        declared = {**self.defaults, **self.kwargs}
        own = set(declared) - {"model"}
        if unknown := sorted(set(given) - own):
            known = ", ".join(sorted(own)) or "no parameters"
            raise ValueError(f"contract {self.name} does not declare {', '.join(unknown)}; it has {known}.")
        values: dict[str, str] = {}
        for name, value in {"model": None, **declared}.items():
            parameter = value if _is_parameter(value) else {"default": value}
            chosen = model if name == "model" else given.get(name, parameter.get("default"))
            choices = [str(choice) for choice in parameter.get("choices") or ()]
            if name in given and choices and given[name] not in choices:
                raise ValueError(f"{name} of contract {self.name} is one of {', '.join(choices)}.")
            if chosen is not None:
                values[name] = str(chosen).lower() if isinstance(chosen, bool) else str(chosen)
            elif parameter.get("required"):
                raise ValueError(f"contract {self.name} needs a value for {name}: give -k {name} VALUE.")
        return values


def load_contract(path: Path) -> AgentContract:
    """The contract in a file, or in an agent's folder. ValueError says what is wrong with it."""
    if path.is_dir():
        found = [path / name for name in FILE_NAMES if (path / name).is_file()]
        if len(found) != 1:
            said = "has both contract.yaml and contract.yml" if found else "has no contract.yaml"
            raise ValueError(f"{path} {said}.")
        path = found[0]
    return read_yaml(path, AgentContract, "an agent's contract")


def made_contract(**values: Any) -> AgentContract:
    """A contract from values; ValueError in words."""
    try:
        return AgentContract(**values)
    except ValidationError as error:
        raise ValueError(f"This is no agent's contract: {problems(error)}") from None


def format_run_cmd(run_cmd: str, values: Mapping[str, Any]) -> str:
    """The command with its placeholders filled, but for those each task fills.

    ValueError when another placeholder is left: the agent would be given a word in braces.
    """
    filled = fill(run_cmd, {name: str(value) for name, value in values.items() if name not in AT_RUN_TIME})
    left = [name for name in dict.fromkeys(_PLACEHOLDER.findall(run_cmd)) if name not in values]
    if strangers := [f"{{{name}}}" for name in left if name not in AT_RUN_TIME]:
        raise ValueError(
            f"run_cmd: nothing fills {', '.join(strangers)}; declare it under `defaults` or `kwargs`. "
            "A brace that is the shell's has a space after it."
        )
    return filled


def fill(script: str, values: Mapping[str, str]) -> str:
    """Each `{name}` of `values` replaced, all at once, so that its value arrives as one word."""
    pieces: list[str] = []
    done = 0
    for match in _PLACEHOLDER.finditer(script):
        if match[1] in values:
            pieces += (
                script[done : match.start()],
                _quoted(values[match[1]], match[1], script, match.start()),
            )
            done = match.end()
    return "".join((*pieces, script[done:]))


def _quoted(value: str, name: str, script: str, place: int) -> str:
    if _PLAIN.fullmatch(value):
        return value
    if "\0" in value or _HARD_TO_QUOTE.search(script):
        raise ValueError(
            f"run_cmd: {{{name}}} cannot be filled with {value[:100]!r}: it needs quoting, which comments, "
            "here-documents and substitutions make unsafe. Move them to a script of the bundle."
        )
    match _open_quote(script[:place]):
        case "'":
            return value.replace("'", "'\\''")
        case '"':
            return re.sub(r'([\\"$`])', r"\\\1", value)
        case _:
            return shlex.quote(value)


def _open_quote(script: str) -> str:
    """The quote a place behind `script` stands in, if any."""
    quote, escaped = "", False
    for character in script:
        if escaped:
            escaped = False
        elif character == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
    return quote


def _is_parameter(value: Any) -> bool:
    """Whether a default is written in the platform's form, with its type and choices."""
    return isinstance(value, dict) and bool(value) and value.keys() <= _PARAMETER_KEYS
