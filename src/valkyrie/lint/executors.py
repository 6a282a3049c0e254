"""Whether the agent a spec names is one that is known here."""

from __future__ import annotations

from collections.abc import Iterator

from valkyrie.agents.catalogue.entries import CATALOG
from valkyrie.agents.executors import ALIASES, agent_for
from valkyrie.errors import ValkyrieError
from valkyrie.lint.codes import finding
from valkyrie.lint.options import LintOptions
from valkyrie.plugins import is_target
from valkyrie.specs.model import EvalSpec, Finding, Stimulus


def has_known_tools(executor: str | None) -> bool:
    """Whether it is an agent of the catalogue; a spec that names none means one of those."""
    return executor is None or ALIASES.get(executor, executor) in CATALOG


def unsupported(stimulus: Stimulus, executor: str) -> Finding | None:
    """That a stimulus is left out with this agent, if it is for others only."""
    names = {ALIASES.get(name, name) for name in stimulus.supported_executors}
    if not names or ALIASES.get(executor, executor) in names:
        return None
    named = ", ".join(stimulus.supported_executors)
    message = f"stimulus {stimulus.name!r} is left out: it is for {named}, not for {executor}"
    return finding("unsupported-executor", message, stimulus.place)


def executor_findings(spec: EvalSpec, options: LintOptions) -> Iterator[Finding]:
    """`executor:` names nothing that is known here; elsewhere, or with a plugin, it may well be."""
    name = spec.defaults.executor
    if name is not None:
        yield from filter(None, (unsupported(one, name) for one in spec.stimuli))
    if name is None or has_known_tools(name) or is_target(name) or options.unloaded_executors:
        return
    try:
        agent_for(name, plugins=options.executor_plugins, base=spec.folder)
    except ValkyrieError as error:
        yield finding("unknown-executor", str(error), spec.defaults.executor_place)
