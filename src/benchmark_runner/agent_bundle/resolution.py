"""Values of an agent's parameters, and the filled contract that a run keeps."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from benchmark_runner.agent_bundle.placeholders import placeholder_names, strangers, substitute
from benchmark_runner.errors import ContractValidationError, did_you_mean

if TYPE_CHECKING:
    from benchmark_runner.agent_bundle.contract import AgentContract, Parameter


ParameterType = Literal["str", "int", "float", "bool", "dict"]

TYPES: Mapping[ParameterType, str] = {
    "str": "text",
    "int": "whole number",
    "float": "number",
    "bool": "true or false",
    "dict": "JSON object",
}
_BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_INTEGER = re.compile(r"[+-]?[0-9]{1,1000}")


def coerce(text: str, type_: ParameterType) -> Any:
    """Return the value `text` stands for; ValueError names what was expected."""
    stripped = text.strip()
    if type_ == "str":
        return text
    if type_ == "int" and _INTEGER.fullmatch(stripped):
        return int(stripped)
    if type_ == "float":
        return _finite(stripped)
    if type_ == "bool" and stripped.lower() in _BOOLS:
        return _BOOLS[stripped.lower()]
    if type_ == "dict":
        return _object(stripped)
    example = " (true, false, yes, no, 1 or 0)" if type_ == "bool" else ""
    raise ValueError(f"{text!r} is no {TYPES[type_]}{example}")


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or "_" in text:
        raise ValueError(f"{text!r} is no number")
    return number


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{text!r} is no JSON object ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f'{text!r} is JSON, but no object like {{"key": 1}}')
    return value


def fits(value: object, type_: ParameterType) -> bool:
    """Return whether a value written in YAML is of this type as it stands."""
    if type_ == "float":
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if type_ == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, {"str": str, "bool": bool, "dict": dict}[type_])


def as_text(value: object) -> str:
    """Write a value as a command gets it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


# A contract with its values filled in: what one run really executes.

Json = dict[str, Any]
RUNTIME_PLACEHOLDERS = ("problem_statement_path", "task_id")
"""Placeholders that each task fills."""


@dataclass(frozen=True, slots=True)
class OutputArtifact:
    """One file (or glob) to keep from the sandbox after the agent ran."""

    path: str
    """Where it is kept, relative."""
    source: str
    """Absolute path or glob in the sandbox; may hold {task_id}."""
    required: bool = True


@dataclass(frozen=True, slots=True)
class ResolvedContract:
    """Plain data; stored with the run."""

    name: str
    model: str | None
    install_cmd: str | None
    """None: nothing is to be installed."""
    run_template: str
    """`run_cmd` as the contract has it."""
    kwargs: Mapping[str, Any]
    """Every parameter that has a value, typed; without `model`."""
    final_output: str | None = None
    output_artifacts: Sequence[OutputArtifact] = ()
    egress_allowlist: Sequence[str] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)

    @property
    def run_cmd(self) -> str:
        """Return the command with model and parameters filled in; problem path and task id come later."""
        return substitute(self.run_template, self.values)

    def command(self, problem_statement_path: str, task_id: str) -> str:
        """Return the whole command for one task."""
        runtime = {"problem_statement_path": problem_statement_path, "task_id": task_id}
        # All at once, from the template: a parameter whose text is `{task_id}` must stay that text.
        return substitute(self.run_template, self.values | runtime)

    @property
    def values(self) -> dict[str, str]:
        """Return the text of model and parameters, as far as they have one."""
        values = {name: as_text(value) for name, value in self.kwargs.items()}
        return values if self.model is None else values | {"model": self.model}

    def to_json(self) -> Json:
        """Return plain JSON; `run_cmd` is in it for readers."""
        plain = asdict(self)
        plain["output_artifacts"] = [asdict(artifact) for artifact in self.output_artifacts]
        return plain | {"run_cmd": self.run_cmd, "egress_allowlist": list(self.egress_allowlist)}

    @classmethod
    def from_json(cls, plain: Json) -> ResolvedContract:
        """Make the contract that `to_json` wrote."""
        fields = {key: value for key, value in plain.items() if key != "run_cmd"}
        artifacts = tuple(OutputArtifact(**entry) for entry in fields.pop("output_artifacts"))
        allowlist = tuple(fields.pop("egress_allowlist"))
        return cls(**fields, output_artifacts=artifacts, egress_allowlist=allowlist)


def resolve(contract: AgentContract, model: str | None, kwargs: Mapping[str, str]) -> ResolvedContract:
    """Fill in what the command line gave; every problem is named in one error."""
    parameters = contract.parameters
    problems = [_unknown(name, parameters) for name in kwargs if name not in parameters and name != "model"]
    given = ({} if model is None else {"model": model}) | dict(kwargs)
    values: dict[str, Any] = {}
    for name, parameter in parameters.items():
        try:
            value = _value(name, parameter, given.get(name))
        except ValueError as error:
            problems.append(str(error))
        else:
            if value is not None:
                values[name] = value
    values.setdefault("model", given.get("model"))
    used = placeholder_names(contract.run_cmd, {*parameters, "model"})
    complained = {name for name in used if any(problem.startswith(f"`{name}`") for problem in problems)}
    for name in sorted(used - complained):
        if values.get(name) is None:
            problems.append(
                f"`{name}` is used by run_cmd but has no value: give {_way(name)}, or a default in it"
            )
    if problems:
        said = "; ".join(problems)
        raise ContractValidationError(f"agent {contract.name}: {said}{'' if said.endswith('?') else '.'}")
    resolved = ResolvedContract(
        name=contract.name,
        model=values.pop("model"),
        install_cmd=contract.install_cmd,
        run_template=contract.run_cmd,
        kwargs=values,
        final_output=contract.final_output,
        output_artifacts=tuple(
            OutputArtifact(entry.path, entry.source_path, entry.required)
            for entry in contract.output_artifacts
        ),
        egress_allowlist=tuple(contract.egress_allowlist),
        secrets=contract.environment,
    )
    _ = resolved.run_cmd  # refuses a value that its place in the command cannot take, before anything runs
    return resolved


def misspelt(contract: AgentContract) -> list[str]:
    """Return a note for each `{word}` of run_cmd that is not a placeholder but looks like one."""
    known = {*contract.parameters, "model", *RUNTIME_PLACEHOLDERS}
    hints = ((word, did_you_mean(word, known)) for word in strangers(contract.run_cmd, known))
    return [
        f"Agent {contract.name}: {{{word}}} in run_cmd is no placeholder and stays as it is.{hint}"
        for word, hint in hints
        if hint
    ]


def _value(name: str, parameter: Parameter, text: str | None) -> Any:
    if text is None:
        if parameter.default is None and parameter.required:
            about = f" ({parameter.description})" if parameter.description else ""
            raise ValueError(f"`{name}` is required{about}: give {_way(name)}")
        # A whole number is a fine default for a float.
        return (
            float(parameter.default)
            if parameter.type == "float" and parameter.default is not None
            else parameter.default
        )
    try:
        value = coerce(text, parameter.type)
    except ValueError as error:
        raise ValueError(f"`{name}` must be a {TYPES[parameter.type]}: {error}") from None
    if parameter.choices is not None and value not in parameter.allowed:
        known = ", ".join(as_text(choice) for choice in parameter.allowed)
        hint = did_you_mean(text, (str(choice) for choice in parameter.choices))
        raise ValueError(f"`{name}` must be one of {known}, not {text!r}.{hint}".removesuffix("."))
    return value


def _way(name: str) -> str:
    return "--model MODEL" if name == "model" else f"-k {name} VALUE"


def _unknown(name: str, parameters: Mapping[str, Parameter]) -> str:
    known = ", ".join(sorted(parameters)) or "none"
    return f"`{name}` is no parameter of it.{did_you_mean(name, [*parameters, 'model'])} Known: {known}"
