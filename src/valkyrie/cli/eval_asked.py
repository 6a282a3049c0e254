"""What the command line of an eval or experiment asks for, as a request, and as words to type again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from valkyrie.cli.eval_options import Duration
from valkyrie.cli.eval_watching import tracker_here
from valkyrie.errors import UsageError

if TYPE_CHECKING:
    from valkyrie.evals.request import EvalItem, EvalRequest

_WITH_RESUME = frozenset(
    {"resume", "verbose", "output_format", "as_json", "no_color", "shutdown_timeout", "trust"}
)


def request_of(given: Mapping[str, Any], items: Sequence[EvalItem], output_dir: Path) -> EvalRequest:
    """Everything the options say that evals and experiments share."""
    from valkyrie.evals.request import EvalRequest

    return EvalRequest(
        items=items,
        executor=given["executor"],
        executor_plugins=placed_plugins(given["executor_plugins"]),
        grader_plugins=placed_plugins(given["grader_plugins"]),
        params=given["params"],
        work_dir=Path(given["work_dir"] or ".").resolve(),
        skill_dir=_resolved(given["skill_dir"]),
        timeout=given["timeout"],
        threshold=given["threshold"],
        enforce_constraints=given["enforce_constraints"],
        judge_model=given["judge_model"],
        judge_url=given["judge_url"],
        judge_effort=given["judge_effort"],
        runs=given["runs"],
        max_retries=given["max_retries"],
        skip_validate=given["skip_validate"],
        parallel_trials=given["parallel_trials"],
        workspace=_resolved(given["workspace"]),
        shutdown_timeout=given["shutdown_timeout"],
        provider=given["provider"],
        network=given["network"],
        model_url=given["model_url"],
        verify=given["verify"],
        family=given["family"],
        secrets=dict(given["secrets"]),
        kwargs=given["kwargs"],
        pass_env=given["pass_env"],
        allow_paths=given["allow_paths"],
        output_dir=output_dir.resolve(),
        run_id=given["run_id"],
        reporter_plugins=placed_plugins(given["reporter_plugins"]),
        otlp_endpoint=given["otlp_endpoint"],
        command=tuple(_words(click.get_current_context())),
    )


def named_agent(given: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the executor and the model that `--agent NAME|FOLDER[:MODEL]` and `--model` name."""
    from valkyrie.agents.executors import is_known_executor
    from valkyrie.cli.agent_model import split_agent

    said, model = given["executor"], given.get("model")
    if said is None or (is_known_executor(said, given["executor_plugins"], Path.cwd()) and ":" not in said):
        return said, model
    prefix, word = ("agent:", said[6:]) if said.startswith("agent:") else ("", said)
    agent, model = split_agent(word, model)
    if "/" in agent or agent in (".", "..") or agent.startswith("~"):
        # By its whole path: --resume may be typed in another folder.
        return f"agent:{(Path.cwd() / Path(agent).expanduser()).resolve()}", model
    if prefix or is_known_executor(agent, given["executor_plugins"], Path.cwd()):
        return f"{prefix}{agent}", model
    with tracker_here() as tracker:
        pushed = any(one.name == agent for one in tracker.agents())
    return f"agent:{agent}" if pushed else agent, model


def _resolved(said: str | None) -> Path | None:
    return Path(said).resolve() if said else None


def placed_plugins(said: Sequence[str]) -> tuple[str, ...]:
    """Return the plugins of the command line; what is a file of theirs by its whole path."""
    return tuple(placed(one, Path.cwd()) for one in said)


def placed(plugin: str, folder: Path) -> str:
    """A plugin's file by a path that means the same from everywhere; what is not there may be elsewhere."""
    name, py, rest = plugin.partition(".py")
    path = folder / f"{name}.py"
    return f"{path.resolve()}{rest}" if py and path.is_file() else plugin


def _words(context: click.Context) -> Iterator[str]:
    """The command as someone could type it again: what was said, not what goes without saying."""
    yield from ("valk", *context.command_path.split()[1:])
    for parameter in context.command.params:
        if _was_said(context, parameter.name):
            yield from _said(parameter, context.params[parameter.name or ""])


def _said(parameter: click.Parameter, value: Any) -> Iterator[str]:
    if isinstance(parameter, click.Argument):
        yield from map(str, value) if isinstance(value, tuple) else [str(value)]
        return
    option = next(word for word in parameter.opts if word.startswith("--"))
    if isinstance(value, bool):
        yield option if value else parameter.secondary_opts[0]
    elif isinstance(value, Mapping):
        for key, content in value.items():
            yield from (option, f"{key}={content}")
    elif isinstance(value, tuple):
        for one in value:
            yield from (option, *(one if isinstance(one, tuple) else (one,)))
    else:
        yield from (option, f"{value:g}s" if isinstance(parameter.type, Duration) else str(value))


def _was_said(context: click.Context, name: str | None) -> bool:
    return context.get_parameter_source(name or "") is click.core.ParameterSource.COMMANDLINE


def said_shutdown(given: Mapping[str, Any]) -> float | None:
    """`--shutdown-timeout` of the command line, not its default."""
    said = _was_said(click.get_current_context(), "shutdown_timeout")
    return given["shutdown_timeout"] if said else None


def refuse_with_resume(what: str, *also: str) -> None:
    """What an eval is was said when it began; `also` are further options that --resume goes with."""
    context = click.get_current_context()
    for parameter in context.command.params:
        if parameter.name not in _WITH_RESUME.union(also) and _was_said(context, parameter.name):
            is_option = isinstance(parameter, click.Option)
            word = parameter.opts[0] if is_option else parameter.human_readable_name
            raise UsageError(
                f"--resume goes on with the {what} as it was asked for; leave out {word}, or start a new one."
            )
