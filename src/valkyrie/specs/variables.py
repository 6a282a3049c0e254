"""`${NAME}` in a spec: filled from `--param NAME=VALUE`, in some places from variables the user allows.

`${NAME=default}` brings its own value along. Of the environment only what `--pass-env` names is taken: a spec
may be a stranger's, and what it is filled with is sent, reported and kept.

What people and programs are told (prompts, rubrics, set-up commands, grader configs) takes parameters only,
and leaves a name it does not know as it stands: `${HOME}` in a shell line is the shell's, and a secret of
this machine must not end in a prompt. Everywhere else a name without a value is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from valkyrie.specs.fields import Notes
from valkyrie.specs.nodes import Node
from valkyrie.specs.yaml_places import resolve

_VARIABLE = re.compile(r"(\$?)\$\{([A-Za-z_][A-Za-z0-9_]*)(?:=([^{}]*))?\}")
FREE_TEXT = frozenset(
    (
        "prompt",
        "turns",
        "description",
        "rubric",
        "graders",
        "golden_patch",
        "golden_command",
        "golden_trajectory",
        "simulation",
        "commands",
        "args",
        "env",
    )
)
SHELL = frozenset(("commands", "command", "args", "env"))
"""Free text in which `${NAME}` is ordinary, and not worth a word."""


@dataclass(slots=True)
class Variables:
    """Values by name."""

    params: Mapping[str, str]
    allowed: Mapping[str, str]
    """Of the user's environment."""
    notes: Notes

    def fill(self, node: Node, *, free: bool = False, shell: bool = False) -> Node:
        """The same data with every variable replaced."""
        if (mapping := node.mapping) is not None:
            filled = {
                key: self.fill(value, free=free or key in FREE_TEXT, shell=shell or key in SHELL)
                for key, value in mapping.items()
            }
            same = all(filled[key] is value for key, value in mapping.items())
            return node if same else replace(node, value=filled)
        if (items := node.items) is not None:
            listed = [self.fill(item, free=free, shell=shell) for item in items]
            same = all(one is item for one, item in zip(listed, items, strict=True))
            return node if same else replace(node, value=listed)
        if not isinstance(node.value, str) or "${" not in node.value:
            return node
        text = _VARIABLE.sub(lambda match: self.value(match, node, free, shell), node.value)
        # `runs: ${RUNS}` is a number once it is filled in; in quotes it was meant as text.
        return replace(node, value=resolve(text) if node.plain and not free else text, raw=text)

    def value(self, match: re.Match[str], node: Node, free: bool, shell: bool) -> str:
        escaped, name, default = match[1], match[2], match[3]
        if escaped:
            return match[0][1:]
        if name in self.params:
            return self.params[name]
        if free and shell:
            return match[0]
        if default is not None and (free or name not in self.allowed):
            return default
        if free:
            self.notes.once(
                "unset-variable",
                name,
                f"`${{{name}}}` has no value and stays as it is: give it with --param {name}=VALUE, "
                f"or write `$${{{name}}}` if it is meant literally.",
                node.place,
            )
            return match[0]
        if name in self.allowed:
            return self.allowed[name]
        self.notes.error(
            "unset-variable",
            f"`${{{name}}}` has no value: give it with --param {name}=VALUE, let it have your variable with "
            f"--pass-env {name}, or write `$${{{name}}}` if it is meant literally.",
            node,
        )
        return match[0]
